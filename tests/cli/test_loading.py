"""Errors of loading, and the list of models, through the real library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gapless.cli.main import main


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--model", "no-such-model"], 1, "'no-such-model'"),
        (["--model", "."], 1, "config.json"),
        (["--device", "abacus"], 1, "'abacus'"),
        (["--dtype", "float7"], 2, "float7"),
    ],
)
def test_a_model_that_cannot_be_loaded(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["caption", "a.png", *words]) == code
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.startswith("gapless: ") and err.count("\n") == 1


def test_models_are_listed(bundled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    head, row, *published = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "size", "licence", "skills", "where"]
    assert row.startswith("glint") and "Apache-2.0" in row and "segment" in row and row.endswith(str(bundled))
    assert any(line.startswith("moondream/moondream3-preview ") and "BSL 1.1" in line for line in published)


def test_an_incomplete_model_says_what_it_lacks(bundled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundled / "model.safetensors").unlink()
    assert main(["models", "--json"]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[0])
    assert row["skills"] == [] and row["size"] == 0 and row["problem"]


def test_several_pictures_and_a_bad_one(bundled: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "caption",
        "a.png",
        "broken.png",
        "a.png",
        "b.png",
        "--max-tokens",
        "8",
        "--temperature",
        "1",
        "--seed",
        "3",
    ]
    assert main(words) == 1
    out, err = capsys.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert [line["image"] for line in found] == ["a.png", "broken.png", "a.png", "b.png"]
    assert found[0]["caption"] == found[2]["caption"] and found[0]["metrics"]["output_tokens"] <= 8
    assert found[1]["error_type"] == "InvalidImage" and "broken" not in found[3]["caption"]
    assert err == "gapless: 1 of 4 pictures failed; their lines say why\n"


def test_the_stream_adds_up_to_the_answer(bundled: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["caption", "a.png", "--max-tokens", "30", "--temperature", "1", "--seed", "5"]
    assert main([*words, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert main([*words, "--json", "--stream"]) == 0
    *pieces, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert "".join(piece["chunk"] for piece in pieces) == last["caption"] == whole["caption"]
    assert last["completed"] is True and last["finish_reason"] == whole["finish_reason"]
