"""What a person's terminal gets, however narrow it is: whole lines, and no cell cut off."""

from __future__ import annotations

import io
import json
import re

import pytest

from gapless.cli.terminal import progress_bar, table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def narrowed(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Both outputs on one terminal of 30 columns. (No fixture: between set-up and test pytest takes them back.)"""
    terminal = Terminal()
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("COLUMNS", "30"), ("LINES", "20"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("sys.stderr", terminal)
    return terminal


def plain(terminal: Terminal) -> list[str]:
    """Its lines without control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", terminal.getvalue()).splitlines()


def test_json_lines_above_a_progress_bar_stay_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = narrowed(monkeypatch)
    line = json.dumps({"image": "[bold]a.png", "caption": "words and more words, all on one line " * 3})
    with progress_bar("caption", 2) as progress:
        print(line)
        progress.advance(progress.task_ids[0])
    assert any(said.endswith(line) for said in plain(narrow))
    assert "1/2" in narrow.getvalue(), "no bar was shown"


def test_a_table_that_does_not_fit_is_printed_bare_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = narrowed(monkeypatch)
    cells = [f"0.{i}234" for i in range(8)]
    table([f"c{i}" for i in range(8)], [cells])
    assert [said.split() for said in plain(narrow)][1] == cells


def test_a_table_that_fits_is_framed(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = narrowed(monkeypatch)
    table(("a", "b"), [(1, 2)], title="two")
    assert any("│ 1 │ 2 │" in said for said in plain(narrow))


def test_in_a_pipe_no_line_ends_with_blanks(capsys):
    table(("name", "meaning"), [("a", "one"), ("b", "a longer one")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["a     one", "b     a longer one"]
    assert [line for line in lines if line != line.rstrip()] == []
