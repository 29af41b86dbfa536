"""The demo: what it asks, says, draws and ends with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from gapless.bench import samples
from gapless.bench.mix import picture_path
from gapless.bench.samples import read_samples
from gapless.cli.demo import _answer_all, _spelled
from gapless.cli.main import main

BOX = {"x_min": 0.69, "y_min": 0.23, "x_max": 0.85, "y_max": 0.38}
SAMPLE = {
    "file": "few.png",
    "captions": {"normal": "a drawing"},
    "questions": [{"question": "How many stars?", "answer": "2"}, {"question": "Is there a ring?", "answer": "no"}],
    "objects": [
        {"object": "shape", "boxes": [BOX]},
        {"object": "square", "boxes": [BOX]},
        {"object": "yellow square", "boxes": [BOX]},
        {"object": "ring", "boxes": []},
    ],
    "segment": {"object": "yellow square"},
}
ASKED = (
    "caption normal",
    "How many stars?",
    "Is there a ring?",
    "point square",
    "detect yellow square",
    "detect ring",
    "segment yellow square",
)


@pytest.fixture
def few_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundled: Path) -> Path:
    """One picture instead of the bundled three."""
    shutil.copy(picture_path("small_0"), tmp_path / "few.png")
    (tmp_path / "samples.json").write_text(json.dumps({"pictures": [SAMPLE]}))
    monkeypatch.setattr(samples, "FOLDER", tmp_path)
    return tmp_path


def test_demo_for_people(few_samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = few_samples / "new" / "folder"
    assert main(["demo", "--out", str(out)]) == 0
    said, err = capsys.readouterr()
    assert err == ""
    head, *rows = said.splitlines()
    assert head.split() == ["picture", "asked", "answer", "truth", "right"]
    for row, asked in zip(rows, ASKED, strict=False):
        assert row.startswith("few.png") and asked in row
    assert "of 7 answers are right" in said and str(out) in said
    assert "answers equal at every depth: yes" in said and "may gain nothing" in said
    names = {"text", "point-1", "detect-1", "detect-2", "segment-1"}
    assert {file.name for file in out.iterdir()} == {f"few-{name}.png" for name in names}
    assert Image.open(out / "few-text.png").height > 224 == Image.open(out / "few-point-1.png").height


def test_one_of_several_truths_is_enough_for_an_outline() -> None:
    places = [[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]
    assert _spelled(places, " or ") == "(0.10, 0.20, 0.30, 0.40) or (0.50, 0.60, 0.70, 0.80)"
    assert _spelled([], " or ") == "nothing" and _spelled("red") == "red"


def test_demo_for_machines(few_samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(few_samples / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [answer["skill"] for answer in found["answers"]] == [
        "caption", "query", "query", "point", "detect", "detect", "segment"
    ]  # fmt: skip
    assert found["answers"][3]["truth"] == [pytest.approx([0.77, 0.305])]
    for answer in found["answers"]:
        assert answer["error"] is None and answer["result"]["finish_reason"] and Path(answer["drawn"]).is_file()
    assert [run["depth"] for run in found["mix"]["runs"]] == [1, 2] and found["mix"]["answers_equal"] is True


def test_a_question_that_fails_is_told_in_its_row(few_samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (few_samples / "few.png").write_bytes(b"")
    assert main(["demo", "--out", str(few_samples / "out")]) == 0
    said = capsys.readouterr().out
    assert "0 of 7 answers are right" in said and said.count("empty (0 bytes)") == 7


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_asked(
    few_samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (few_samples / "file").write_text("in the way")
    assert main(["demo", "--out", str(few_samples / "file" / "out"), "--model", "no-such-model"]) == 1
    assert "cannot write" in capsys.readouterr().err  # and not: no such model


def test_the_bundled_model_is_mostly_right_about_the_bundled_pictures(tmp_path: Path) -> None:
    (first, *_) = {question.picture: None for question in read_samples()}
    answers = _answer_all(
        [question for question in read_samples() if question.picture == first], "glint", "cpu", tmp_path
    )
    assert len(answers) > 6 and sum(answer.right for answer in answers) >= 0.7 * len(answers)


@pytest.mark.slow
def test_the_real_demo_is_mostly_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["answers"]) == 30 and found["mix"]["model"] == "glint"
    wrong = [(a["picture"], a["skill"], a["text"]) for a in found["answers"] if not a["right"]]
    assert len(wrong) <= 6, wrong
    for skill in ("query", "caption", "point", "detect", "segment"):
        assert any(a["right"] for a in found["answers"] if a["skill"] == skill), skill


def test_the_demo_goes_to_the_device_it_is_told(few_samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(few_samples / "out"), "--device", "cuda:x"]) == 1
    assert "device 'cuda:x' does not exist" in capsys.readouterr().err
