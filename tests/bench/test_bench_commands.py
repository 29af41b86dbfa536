"""What the GPU's driver starts, as far as it goes without one: every command line is understood, and the benchmarks of
the engine run through the GPU's own code with a micro model in the full-size one's place."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.bench.small_rigs import CONFIG, MODEL, RATES, InlineRig, shorten
from tests.fakes.inline_runtime import InlineRuntime
from tests.fakes.micro import write_micro
from tests.gpu.drive import BENCHES, benchmark, sections

from gapless.bench.command import Benchmark
from gapless.bench.cuda_rig import CudaRig
from gapless.bench.decode import Decode
from gapless.bench.query import Query
from gapless.bench.rig import Rig
from gapless.errors import InvalidRequest
from gapless.models.registry import Loaded, load_model

NAMES = ("decode", "prefill", "vision", "query")


@pytest.mark.parametrize("name", NAMES)
def test_the_drivers_command_lines_are_understood(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[Benchmark, Path, Path, bool]] = []
    module = importlib.import_module(f"gapless.bench.{name}")
    monkeypatch.setattr(module, "finish", lambda *given: found.append(given) or 0)
    command = benchmark(name, tmp_path, 12.0)
    assert command[1:3] == ("-m", f"gapless.bench.{name}")
    assert module.main(command[3:]) == 0
    ((chosen, out, png, as_json),) = found
    assert (chosen.device, chosen.seconds, chosen.model, as_json) == ("cuda", 12.0, None, False)
    assert out.parent == png.parent == tmp_path and out.name.startswith(name)


def test_decode_and_query_end_in_time(tmp_path: Path) -> None:
    limits = {section.name: section.limit for section in sections(tmp_path, 150.0)}
    assert limits["bench"] + limits["query"] <= 320 and set(BENCHES) <= set(limits)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if there were a GPU, whose full-size model is the micro one."""
    shorten(monkeypatch)
    monkeypatch.setattr("gapless.bench.rig.ANSWERS", (70, 80))  # as long as what rides before graphs are timed
    folder = write_micro(tmp_path / "micro", max_context=800)
    micro = load_model(folder)
    loaded = Loaded(MODEL, CONFIG, micro.tokenizer_path, "micro", micro.revision)
    for name in NAMES:
        monkeypatch.setattr(f"gapless.bench.{name}.where", lambda device: "cuda:0")
        monkeypatch.setattr(f"gapless.bench.{name}.load", lambda *_: loaded)
    monkeypatch.setattr(Rig, "_measure_rates", lambda self: RATES)
    monkeypatch.setattr(CudaRig, "_runtime", lambda self: InlineRuntime())
    monkeypatch.setattr(CudaRig, "traced", InlineRig.traced)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("decode", ("--streams", "1,2", "--host-rows", "2", "--waves", "1")),
        ("prefill", ("--text", "7,30", "--batch", "1,2")),
    ],
)
def test_from_the_command_line_to_the_files(
    name: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module: Any = importlib.import_module(f"gapless.bench.{name}")
    assert module.main([*benchmark(name, tmp_path, 600.0)[3:], *words]) == 0
    told = capsys.readouterr().out
    assert "micro" in told and "note:" not in told and "roofline_share" in told and "reading 1.0 GB/s" in told
    report = json.loads((tmp_path / f"{name}-moondream2.json").read_text())
    assert report["benchmark"] == name and report["device"] == "cuda, graphs" and report["clocks"]
    assert report["memory"]["depth 2"]["graphs"] > 0 and not report["notes"]
    assert Image.open(tmp_path / f"{name}-moondream2.png").height == 640
    if name == "decode":
        assert all(row["predicted_gain"] is not None for row in report["rows"]) and len(report["rows"]) == 8


@pytest.mark.parametrize(
    ("benchmark", "told"),
    [
        (Decode("glint", "cpu", depths=(1, 65)), "depth must be a whole number from 1 to 64; got 65"),
        (Decode("glint", "cpu", streams=(1, 0)), "streams must be a whole number from 1 to 1024; got 0"),
        (Decode("glint", "cpu", host_rows=(2000,)), "streams must be a whole number from 1 to 1024; got 2000"),
        (Query("glint", "cpu", concurrency=(1025,)), "concurrency must be a whole number from 1 to 1024; got 1025"),
        (Query("glint", "cpu", depths=(0,)), "depth must be a whole number from 1 to 64; got 0"),
    ],
)
def test_more_than_an_engine_takes_is_refused_before_anything_is_loaded(benchmark: Any, told: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(told)):
        benchmark.run(lambda report: None)
