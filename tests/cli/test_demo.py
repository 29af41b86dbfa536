"""The demo: what it asks, says, draws and ends with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gapless.bench import samples
from gapless.bench.mix import picture_path
from gapless.cli.main import main

ASKS = [
    {"skill": "caption", "text": "short", "truth": "a drawing"},
    {"skill": "query", "text": "How many stars?", "truth": "3"},
    {"skill": "query", "text": "What color is the circle?", "truth": "cyan"},
    {"skill": "point", "text": "star", "truth": [[0.3, 0.28], [0.8, 0.3], [0.46, 0.76]]},
    {"skill": "detect", "text": "circle", "truth": [[0.35, 0.07, 0.47, 0.18]]},
    {"skill": "segment", "text": "circle", "truth": [[0.35, 0.07, 0.47, 0.18]]},
]


@pytest.fixture
def few_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundled: Path) -> Path:
    """One picture instead of the bundled three."""
    shutil.copy(picture_path("stars"), tmp_path / "stars.png")
    (tmp_path / "samples.json").write_text(json.dumps([{"file": "stars.png", "asks": ASKS}]))
    monkeypatch.setattr(samples, "FOLDER", tmp_path)
    return tmp_path


def test_demo_for_people(few_samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = few_samples / "new" / "folder"
    assert main(["demo", "--out", str(out)]) == 0
    said, err = capsys.readouterr()
    assert err == ""
    head, *rows = said.splitlines()
    assert head.split() == ["picture", "asked", "answer", "truth", "right"]
    for row, ask in zip(rows, ASKS, strict=False):
        assert row.startswith("stars.png") and f"{ask['skill']}: {ask['text']}" in row
    assert "of 6 answers are right" in said and str(out) in said
    assert "answers equal at every depth: yes" in said and "may gain nothing" in said
    names = {"caption", "query", "query-2", "point", "detect", "segment"}
    assert {file.name for file in out.iterdir()} == {f"stars-{name}.png" for name in names}


def test_demo_for_machines(few_samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(few_samples / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [answer["text"] for answer in found["answers"]] == [ask["text"] for ask in ASKS]
    for answer in found["answers"]:
        assert answer["error"] is None and answer["result"]["finish_reason"] and Path(answer["drawn"]).is_file()
    assert [run["depth"] for run in found["mix"]["runs"]] == [1, 2] and found["mix"]["answers_equal"] is True


def test_a_question_that_fails_is_told_in_its_row(few_samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (few_samples / "stars.png").write_bytes(b"")
    assert main(["demo", "--out", str(few_samples / "out")]) == 0
    said = capsys.readouterr().out
    assert "0 of 6 answers are right" in said and said.count("empty (0 bytes)") == 6
