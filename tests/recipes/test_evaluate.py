"""The evaluation end to end: the bundled model behind its engine, a few scenes, the report and the exit code."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections import Counter

import pytest
from recipes.glint import evaluate
from recipes.glint.exam import set_paper
from recipes.glint.streams import ASSETS, Vocabulary
from rich.console import Console

SCENES = 1


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluate") / "report.json"
    code = evaluate.main(["--scenes", str(SCENES), "--seed", "3", "--json", str(path)])
    return code, json.loads(path.read_text(encoding="utf-8"))


def test_the_report_names_the_weights_and_every_score(written):
    code, report = written
    assert report["schema"] == 1 and report["scenes"] == SCENES and report["seed"] == 3
    assert report["model"] == hashlib.sha256((ASSETS / "model.safetensors").read_bytes()).hexdigest()
    assert {t["name"] for t in report["targets"]} == set(evaluate.report.FLOORS) <= set(report["scores"])
    assert code == int(not all(t["met"] for t in report["targets"]))
    assert report["scores"]["caption_seconds"]["value"] > 0


def test_every_question_was_answered(written):
    papers = [set_paper(3, number, Vocabulary()) for number in range(SCENES)]
    asked = [q for paper in papers for q in paper.questions]
    _, report = written
    assert report["requests"] == len(asked)
    asked_kinds = Counter(q.kind for q in asked if not q.unseen)
    assert {kind: entry["right"]["n"] for kind, entry in report["kinds"].items()} == asked_kinds
    assert report["unseen"]["all"]["n"] == sum(q.unseen for q in asked) > 0


def test_a_folder_of_weights_is_evaluated_like_the_bundled_one(tmp_path):
    folder = tmp_path / "candidate"
    shutil.copytree(ASSETS, folder)
    plan = evaluate.Plan(folder, 1, 3, "cpu")
    with evaluate.open_model(plan) as vlm:
        (marks,) = evaluate.sit(vlm, plan, [0])
    assert evaluate.digest(folder) == evaluate.digest(evaluate.BUNDLED)
    assert len(marks) == len(set_paper(3, 0, Vocabulary()).questions)


def test_a_missed_floor_is_exit_code_one(monkeypatch, capsys):
    monkeypatch.setattr(evaluate, "run", answered_nothing)
    assert evaluate.main(["--scenes", "1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["floors_met"] is False


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(["--scenes", "0"], "1 or more"), (["--processes", "-2"], "1 or more"), (["--json", "no/such/r.json"], "folder")],
)
def test_a_wrong_command_line_is_refused_before_anything_is_asked(wrong, said, monkeypatch, capsys):
    monkeypatch.delattr(evaluate, "run")
    with pytest.raises(SystemExit) as end:
        evaluate.main(wrong)
    assert end.value.code == 2 and said in capsys.readouterr().err


def answered_nothing(plan, processes, console):
    paper = set_paper(plan.seed, 0, Vocabulary())
    marks = [evaluate.mark(0, q, evaluate.Answer(), paper.groups) for q in paper.questions]
    return marks, {"value": 0.1, "n": 1}, 1.0


def test_the_table_says_which_floor_is_missed():
    plan = evaluate.Plan(evaluate.BUNDLED, 1, 3, "cpu")
    out = io.StringIO()
    marks, timed, seconds = answered_nothing(plan, 1, Console())
    evaluate.show(evaluate.summary(marks, plan, timed, seconds), Console(file=out, width=120))
    assert "MISSED" in out.getvalue() and "query_exact" in out.getvalue()
