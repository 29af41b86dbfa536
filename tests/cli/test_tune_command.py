"""`gapless tune` on the command line: what it prints, and what it says where it cannot work."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gapless.bench import tune_menu
from gapless.cli import tune
from gapless.cli.main import main
from gapless.kernels.triton.choices import BATCHES

ROW = {"rows": 8, "before_us": 1269.04, "after_us": 1230.2, "gain": 0.0306, "tried": 181, "wrong": 0, "whole": True}
PART = {"sizes": "decode-2048x8192x32x32x51200-bfloat16", "began_from": "built in", "rows": [ROW], "left_out": []}
REPORT = {
    "gpu": "NVIDIA H200",
    "capability": "9.0",
    "versions": {},
    "parts": [{**PART, "when": "now", "table": {}, "file": "/somewhere/NVIDIA-H200-decode.json"}],
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A machine with a GPU, whose runs end at once."""
    calls: list[tuple[Any, ...]] = []

    def run(*arguments: Any) -> dict[str, Any]:
        calls.append(arguments)
        return REPORT

    monkeypatch.setattr(tune, "_gpu", lambda device: "cuda:0")
    monkeypatch.setattr(tune, "_run", run)
    return calls


def test_the_batch_sizes_are_the_tables() -> None:
    assert tune.BATCHES == BATCHES and set(tune_menu.PARTS) == {"launch", "up", "scan", "down", "head"}


def test_a_table_for_people(asked: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune"]) == 0
    out = capsys.readouterr().out
    assert "NVIDIA H200" in out and "1269.0" in out and "1230.2" in out and "3.1" in out
    assert "kept in /somewhere/NVIDIA-H200-decode.json" in out
    text, where, dtype, rows, seconds, _ = asked[0]
    assert (text.dim, where, dtype, rows, seconds) == (2048, "cuda:0", "bfloat16", list(BATCHES), tune.SECONDS)
    assert main(["tune", "moondream-3"]) == main(["tune", "moondream-3.1"]) == 0
    assert [(text.moe is None, kinds) for text, *_, kinds in asked[1:]] == [
        (False, ("bfloat16",)),
        (False, ("float8",)),
    ]


def test_json_for_machines_and_a_file(
    asked: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "report.json"
    line = ["tune", "glint", "--rows", "8", "--rows", "1", "--rows", "8", "--dtype", "float16", "--seconds", "60"]
    assert main([*line, "--json", "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out) == REPORT == json.loads(out.read_text())
    text, _, dtype, rows, seconds, kinds = asked[0]
    assert (text.dim, dtype, rows, seconds, len(kinds)) == (256, "float16", [8, 1], 60.0, 2)


def test_what_was_left_out_is_said(
    asked: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried = {**PART, "rows": [{**ROW, "whole": False}], "left_out": [64, 128], "file": None}
    monkeypatch.setattr(tune, "_run", lambda *_: {**REPORT, "parts": [hurried]})
    assert main(["tune"]) == 0
    err = capsys.readouterr().err
    assert "left out: 64, 128" in err and "not searched to the end: 8" in err and "--seconds" in err
    monkeypatch.setattr(tune, "_run", lambda *_: {**REPORT, "parts": [{**hurried, "rows": []}]})
    assert main(["tune"]) == 1


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (["--device", "cpu"], 1, "a CPU has no tiles"),
        (["--rows", "3"], 2, "there are tiles for 1, 2, 4, 8, 16, 32, 64, 128 rows, not for 3"),
        (["--seconds", "0"], 2, "--seconds"),
        (["--dtype", "float32"], 2, "float32"),
        (["--device", "gpu"], 1, "does not exist"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    line: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *line]) == code
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.bench.load.where", lambda device: "cpu")
    assert main(["tune"]) == 1
    err = capsys.readouterr().err
    assert "tune times kernels on a GPU, and there is none" in err and err.count("\n") == 1


def test_a_model_that_is_not_there_is_no_search(
    asked: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "no-such-model"]) == 1
    assert "no-such-model" in capsys.readouterr().err and not asked


def test_a_gpu_that_fails_is_an_error_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing:
        @staticmethod
        def of(*_: object) -> Failing:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(tune, "_gpu", lambda device: "cuda:0")
    monkeypatch.setitem(sys.modules, "gapless.bench.tune_run", SimpleNamespace(Tuning=Failing))
    assert main(["tune"]) == 1
    err = capsys.readouterr().err
    assert "the GPU failed while tiles were tried (CUDA error: an illegal" in err and err.count("\n") == 1


def test_models_lists_the_files_that_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["models"]) == 0
    assert "tiles of" not in capsys.readouterr().out
    kept = tmp_path / "gapless" / "tune" / "NVIDIA-H200-decode-1-bfloat16.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    assert main(["models"]) == 0
    assert f"tiles of NVIDIA-H200-decode-1-bfloat16: {kept}" in capsys.readouterr().out
