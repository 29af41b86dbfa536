"""The gaps benchmark with a micro model: all ways, what is counted, and what is asked of it. Nothing here is timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.bench.small_rigs import MODEL, MicroRig

from gapless.bench.gaps import COLUMNS, Gaps
from gapless.bench.gaps_run import GapsBench, Heard, Options, Way
from gapless.cli.main import main
from gapless.costs import Costs
from gapless.engine.feeding import Cutting

SMALL = Options(
    max_step_ms=5.0, streams=2, rate=40.0, tilings=((1, 1), (2, 2)), answer=9, length=0.12, slices=1, seconds=600
)
COSTS = Costs(((5, 1e-3),), ((16, 3e-3), (64, 12e-3)), whole=True)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """Of one run on the CPU device, with costs and a clock that are told."""
    rig, seen = MicroRig(6), []
    rig._answers, rig._sees = (760, 761), True
    encode = MODEL.encode_picture
    MODEL.encode_picture = lambda crops, tiling: (seen.append(len(crops)), encode(crops, tiling))[1]
    session = rig.session(2)
    session.engine.feeder.cutting = Cutting(COSTS, 5e-3)
    bench, clock = GapsBench(rig, SMALL), iter(range(10**9))
    bench.now = lambda: next(clock) * 1e-3
    try:
        found = bench.run(list)
        assert {2, 5} <= set(seen), "pictures were made up, not encoded"
        return found
    finally:
        rig.close()
        del MODEL.encode_picture


@pytest.mark.slow
def test_a_row_for_each_way_with_every_column(report: dict[str, Any]) -> None:
    assert report["notes"] == []
    assert [row["way"] for row in report["rows"]] == ["quiet", "whole", "cut"]
    quiet, whole, cut = report["rows"]
    for row in report["rows"]:
        assert set(COLUMNS) <= set(row) and row["gap_p50_ms"] <= row["gap_p99_ms"] <= row["longest_gap_ms"]
    assert quiet["pictures"] == 0 and quiet["ttft_p50_ms"] is None and cut["pictures"] > 0 < whole["pictures"]
    assert quiet["parts"] == whole["parts"] == 0 < cut["parts"]
    assert json.loads(json.dumps(report)) == report
    assert report["crops"] == [2, 5] and report["costs"]["tokens_ms"] == {"16": 3.0, "64": 12.0}
    assert Gaps().complete(report) and not Gaps().complete(report | {"device": "cuda", "costs": {"crops_ms": {}}})
    assert Gaps().draw(report).height == 640


@pytest.mark.slow
def test_what_is_asked_is_told_from_the_quiet_row(report: dict[str, Any]) -> None:
    quiet, _, cut = report["rows"]
    asked = report["asked"]
    assert asked["longest_gap_ms"] == pytest.approx(5.0 + 1.5 * quiet["gap_p50_ms"], rel=1e-3)
    assert asked["longest_gap"] is (cut["longest_gap_ms"] <= asked["longest_gap_ms"])
    assert asked["tpot_p99"] is (cut["tpot_p99_ms"] <= 2.5 * quiet["tpot_p99_ms"])


def test_gaps_are_between_tokens_of_one_request() -> None:
    heard = Heard()
    heard.times.update({1: [1.0, 1.5, 3.0], 2: [2.0 + 0.1 * n for n in range(8)], 3: []})
    heard.asked.update({2: 1.25, 3: 2.0})
    assert heard.gaps()[:2] == [500.0, 1500.0] and len(heard.gaps()) == 9
    assert heard.means() == [pytest.approx(100.0)] and heard.waits() == [750.0]
    assert Way([heard, heard]).all(Heard.waits) == [750.0, 750.0]


@pytest.mark.slow
def test_the_command_measures_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gaps.json"
    words = ["--device", "cpu", "--streams", "1", "--rate", "2", "--max-step-ms", "20", "--seconds", "20"]
    assert main(["bench", "gaps", *words, "--out", str(out), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["benchmark"] == "gaps" == json.loads(out.read_text())["benchmark"]
