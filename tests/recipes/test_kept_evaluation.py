"""An FP8 cache costs glint no answers: the committed comparison says so, and it is made as it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recipes.glint import evaluate, twice

KEPT = Path(evaluate.__file__).parent / "kept.json"
ROOT = Path(__file__).resolve().parents[2]


def test_as_many_answers_are_right_as_without():
    found = json.loads(KEPT.read_text(encoding="utf-8"))
    assert found["model"] == evaluate.digest(evaluate.BUNDLED)
    assert found["requests"] > 4000 and abs(found["apart"]) <= twice.APART == 0.003
    alone = found["right_with_fp8_alone"] - found["right_with_auto_alone"]
    assert found["apart"] == pytest.approx(alone / found["requests"], abs=1e-5)
    assert found["apart"] == pytest.approx(found["right"]["fp8"] - found["right"]["auto"], abs=2e-5)
    told = f"{found['requests']:,} questions, {found['right']['auto']:.2%} were"
    assert told.replace("%", " %") in " ".join((ROOT / "docs" / "memory.md").read_text().split())
    assert 0.8 < found["same_answers"] / found["requests"] < 1


@pytest.mark.slow
def test_the_comparison_asks_both(tmp_path, capsys):
    out = tmp_path / "kept.json"
    assert twice.main(["--scenes", "2", "--seed", "5", "--json", str(out)]) == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert json.loads(capsys.readouterr().out) == found and found["scenes"] == 2
    assert found["same_answers"] < found["requests"], "an FP8 cache moves a point or a box a little"
