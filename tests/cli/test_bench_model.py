"""`gapless bench model` and `gapless bench compare` from the outside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from gapless.cli.main import main

NAN = float("nan")
REPORT = str(Path(__file__).resolve().parents[2] / "benchmarks" / "h200" / "decode-moondream2.json")


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_without_a_report_the_published_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "model", "--json"]) == 0
    gains = [row["predicted_gain"] for row in told(capsys)["rows"]]
    assert gains == pytest.approx([0.057, 0.076, 0.111, 0.172, 0.222, 0.391], abs=0.0015)
    assert main(["bench", "model"]) == 0
    out = capsys.readouterr().out
    assert "B200" in out and "+39.1" in out and "+35.4" in out


def test_a_report_with_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "made" / "gains.png"
    assert main(["bench", "model", REPORT, "--png", str(picture)]) == 0
    out, err = capsys.readouterr()
    assert "NVIDIA H200" in out and "by periods %" in out and "GPU " not in out and str(picture) in err
    assert Image.open(picture).width > 600


def test_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "model", "--forward-ms", "4", "--host-ms", "2", "--tokens", "50", "--json"]) == 0
    rows = told(capsys)["rows"]
    assert [row["pipelined_ms"] for row in rows] == [6, 4, 4, 4]
    assert rows[1]["predicted_gain"] == pytest.approx(6 / 4 * 0.98 - 1)
    assert main(["bench", "model", REPORT, "--streams", "8", "--depth", "3", "--depth", "3", "--host-ms", "9"]) == 0
    out = capsys.readouterr().out
    assert (
        "what if" in out
        and "observed %" not in out
        and out.count("9.000")
        == 2 * sum(out.count(f"\n{kind}") for kind in ("greedy", "default", "spatial", "adapters"))
        > 0
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["model", "--depth", "0"], 2, "--depth"),
        (["model", "--forward-ms", "-1"], 2, "not above 0"),
        (["model", "--sampling-ms", "nan"], 2, "no number"),
        (["model", "--png", "gains.txt"], 2, "must end with"),
        (["model", "--forward-ms", "4"], 1, "--host-ms"),
        (["model", "--streams", "5"], 1, "published are"),
        (["model", "missing.json"], 1, "cannot read"),
        (["model", "words.json"], 1, "is no JSON"),
        (["model", "list.json"], 1, "no JSON object"),
        (["model", "mix.json"], 1, "no decode report"),
        (["model", "odd.json"], 1, "no decode report"),
        (["model", "below.json"], 1, "no decode report"),
        (["model", "sampler.json"], 1, "no decode report"),
        (["model", "nan.json"], 1, "NaN is no number"),
        (["model", "--tokens", "0.5"], 2, "an answer has its end at least"),
        (["compare", REPORT, "nan.json", "--fail-above"], 1, "NaN is no number"),
        (["--compare", REPORT, REPORT, "decode"], 2, "leave out decode"),
        (["decode", "--seconds", "nan"], 2, "not above 0"),
        (["query", "--seconds", "0"], 2, "not above 0"),
        (["decode", "--out", "."], 1, "it is a folder"),
        (["compare", "mix.json", REPORT], 1, "no row in common"),
        (["compare", REPORT, REPORT, "--column", "speed"], 1, "called speed"),
        (["compare", REPORT, REPORT, "--threshold", "-1"], 2, "below 0"),
    ],
)
def test_what_is_wrong_is_said(
    words: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.json").write_text("not JSON")
    Path("list.json").write_text("[]")
    Path("mix.json").write_text(json.dumps({"runs": [{"depth": 1, "wall_s": 1.0}]}))
    Path("odd.json").write_text(json.dumps({"rows": [{"streams": 1, "depth": 1, "period_ms": "4"}]}))
    row = {"streams": 1, "depth": 1, "period_ms": 4.0}
    for name, odd in (("below", {"forward_ms": -1.0}), ("sampler", {"sampler": [1]}), ("nan", {"forward_ms": NAN})):
        Path(f"{name}.json").write_text(json.dumps({"rows": [{**row, **odd}]}))
    assert main(["bench", *words]) == code
    out, err = capsys.readouterr()
    assert message in err and not out


def test_two_reports_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    shutil.copy(REPORT, other)
    assert main(["bench", "compare", REPORT, str(other), "--fail-above"]) == 0
    out = capsys.readouterr().out
    assert "!" not in out.replace("! worse", "") and "A: " not in out
    report = json.loads(other.read_text())
    report["rows"][1]["tokens_per_s"] *= 0.9
    del report["rows"][2]
    report["rows"][2]["period_ms"] = None
    report["machine"] = {"gpu": "another GPU"}
    other.write_text(json.dumps(report))
    assert main(["bench", "compare", REPORT, str(other)]) == 0
    out = capsys.readouterr().out
    assert "0.900!" in out and "only in A: rows sampler=greedy streams=8 depth=1" in out
    assert "only in A: period_ms of rows sampler=greedy streams=8 depth=2" in out
    assert "A: NVIDIA H200, " in out and "; B: another GPU, " in out
    assert main(["bench", "compare", REPORT, str(other), "--fail-above", "--json"]) == 1
    found = told(capsys)
    assert found["failed"] and found["rows"][1]["columns"]["tokens_per_s"]["better"] is False
