"""The driver of everything that needs a GPU: its processes, limits and report, without one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from tests.gpu.drive import NO_GPU, Section, main, run, sections, show


def says(text: str, code: int = 0, seconds: float = 0.0) -> tuple[str, ...]:
    return (
        sys.executable,
        "-c",
        f"import time; print({text!r}, flush=True); time.sleep({seconds}); raise SystemExit({code})",
    )


def test_sections_fail_and_hang_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [
        Section("good", 0, 30, says("3 passed")),
        Section("bad", 0, 30, says("1 failed", 1)),
        Section("hangs", 0, 1.0, says("begun", seconds=60)),
        Section("later", 1, 30, says("last")),
    ]
    run(chosen, tmp_path, seconds=60)
    assert [s.status for s in chosen] == ["passed", "failed (1)", "timeout", "passed"]
    assert [s.said for s in chosen] == ["3 passed", "1 failed", "begun", "last"]
    report = json.loads((tmp_path / "report.json").read_text())
    assert [one["status"] for one in report] == [s.status for s in chosen]
    assert "begun" in (tmp_path / "log.txt").read_text()
    show(chosen)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-5:]] == ["section", "good", "bad", "hangs", "later"]


def test_what_comes_too_late_is_left_out(tmp_path: Path) -> None:
    chosen = [Section("hangs", 0, 30, says("begun", seconds=60)), Section("late", 1, 30, says("never"))]
    run(chosen, tmp_path, seconds=0.5)
    assert [s.status for s in chosen] == ["timeout", "left out"]


def test_tests_that_were_all_skipped_show_nothing(tmp_path: Path) -> None:
    skipping = Section("skips", 0, 30, (*says("4 skipped"), "pytest"))
    run([skipping], tmp_path, seconds=30)
    assert skipping.status == "nothing ran"


def test_every_test_file_of_the_folder_has_a_section(tmp_path: Path) -> None:
    commands = " ".join(word for section in sections(tmp_path, 10.0) for word in section.command)
    for path in Path("tests/gpu").glob("test_*.py"):
        assert path.name in commands


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tests"]) == 2
    assert capsys.readouterr().out.strip() == NO_GPU
