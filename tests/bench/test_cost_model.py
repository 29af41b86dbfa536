"""The cost model: the published figures from their own columns, and what it says at the edges."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gapless.bench.cost_model import (
    Parts,
    Point,
    answer_tokens,
    gain_of_periods,
    marginal_row_ms,
    points_of,
    predict,
    predict_rows,
    zombie_tax,
)

H200 = Path(__file__).resolve().parents[2] / "benchmarks" / "h200" / "decode-moondream2.json"
PARTS = Parts(forward_ms=3.8, sampling_ms=0.2, host_ms=1.0, chain_ms=1.5)
POINT = Point(streams=1, parts=PARTS, blocking_ms=5.5, tokens=100)


def row(streams: int, depth: int, **columns: float | None) -> dict[str, Any]:
    """A report's row: a step of 4 ms (more with streams), 1 ms of host, T_block 6 ms more than the forward."""
    usual = {"forward_ms": 3.7 + 0.1 * streams, "sampling_ms": 0.2, "plan_ms": 0.1, "launch_ms": 0.4, "commit_ms": 0.5}
    return {"streams": streams, "depth": depth, "period_ms": 5.2 + 0.1 * streams, **usual, **columns}


@pytest.mark.parametrize(
    ("depth", "parts", "milliseconds"),
    [
        (1, PARTS, 5.5),
        (2, PARTS, 4.0),
        (2, replace(PARTS, host_ms=6.0, chain_ms=6.5), 6.0),
        (2, replace(PARTS, chain_ms=8.0), 6.0),
        (3, replace(PARTS, chain_ms=8.0), 4.0),
        (4, replace(PARTS, chain_ms=14.0), 4.5),
    ],
)
def test_the_period_is_the_device_the_host_or_the_shared_chain(depth: int, parts: Parts, milliseconds: float) -> None:
    assert parts.period_ms(depth) == pytest.approx(milliseconds)


def test_host_masks_put_sampling_and_chain_in_a_row() -> None:
    long = replace(PARTS, host_ms=4.5, chain_ms=5.0)
    assert [long.masked_period_ms(depth) for depth in (1, 2, 3)] == pytest.approx([9.0, 5.2, 5.2])
    assert PARTS.masked_period_ms(2) == PARTS.period_ms(2)


def test_a_zombie_costs_a_step_alone_and_a_row_in_a_batch() -> None:
    assert zombie_tax(2, 1, 100, None, 4.0) == pytest.approx(0.01)
    assert zombie_tax(2, 8, 100, 0.1, 4.0) == pytest.approx(8 / 100 * 0.1 / 4.0)
    assert zombie_tax(4, 8, 100, 0.1, 4.0) == pytest.approx(3 * 8 / 100 * 0.1 / 4.0)
    assert zombie_tax(1, 8, 100, 0.1, 4.0) == 0
    assert zombie_tax(2, 8, 100, None, 4.0) == pytest.approx(0.01), "nothing smaller was measured"
    assert zombie_tax(4, 1, 2, None, 4.0) == 1.0


def test_the_marginal_row_cost_is_the_slope_from_the_next_smaller_number() -> None:
    forwards = {1: 2.0, 8: 2.7, 32: 2.6}
    assert marginal_row_ms(forwards, 1) is None
    assert marginal_row_ms(forwards, 8) == pytest.approx(0.1)
    assert marginal_row_ms(forwards, 32) == 0


def test_depth_1_gains_nothing_and_depth_2_what_the_chain_was() -> None:
    assert predict(POINT, 1).gain == 0
    found = predict(POINT, 2)
    assert (found.pipelined_ms, found.tax) == (4.0, pytest.approx(0.01))
    assert found.gain == pytest.approx(5.5 / 4.0 * 0.99 - 1)
    assert predict(POINT, 3).gain < found.gain, "the device is the limit; more depth only makes more zombies"
    assert gain_of_periods(POINT, 2, 4.4).gain == pytest.approx(5.5 / 4.4 * 0.99 - 1)


def test_rows_are_predicted_from_depth_1_alone() -> None:
    rows = [row(1, 1), row(1, 2, period_ms=99.0, answer_tokens=50), row(8, 1, answer_tokens=40), row(8, 2)]
    one, eight = points_of(rows).values()
    assert (one.tokens, eight.tokens) == (50, 40)
    assert one.parts.host_ms == pytest.approx(1.0) and one.parts.chain_ms == pytest.approx(5.3 - 4.0)
    assert (one.row_ms, eight.row_ms) == (None, pytest.approx(0.1))
    gains = predict_rows(rows)
    assert gains[0] == gains[2] == 0
    assert gains[1] == pytest.approx(5.3 / 4.0 * (1 - 1 / 50) - 1)
    assert gains[3] == pytest.approx(6.0 / 4.7 * (1 - 8 / 40 * 0.1 / 4.7) - 1)


@pytest.mark.parametrize("missing", ["forward_ms", "sampling_ms", "period_ms", "launch_ms"])
def test_a_hole_at_depth_1_leaves_its_streams_without_a_prediction(missing: str) -> None:
    rows = [row(1, 1, **{missing: None}, answer_tokens=50), row(1, 2), row(8, 1, answer_tokens=40), row(8, 2)]
    assert [gain is None for gain in predict_rows(rows)] == [True, True, False, False]
    assert predict_rows(rows[1:2]) == [None]


def test_the_length_of_answers_is_told_or_follows_from_the_zombies() -> None:
    assert answer_tokens([row(1, 1, answer_tokens=100), row(1, 2, answer_tokens=110)]) == 105
    assert answer_tokens([row(1, 1, zombie_share=0.0), row(1, 2, zombie_share=1 / 101)]) == pytest.approx(100)
    assert answer_tokens([row(1, 1, zombie_share=0.0), row(1, 3, zombie_share=2 / 102)]) == pytest.approx(100)
    assert answer_tokens([row(1, 1, zombie_share=0.0)]) is None
    assert points_of([row(1, 1)]) == {}
    assert points_of([row(1, 1, answer_tokens=50)], tokens=80)[1].tokens == 80


def test_the_committed_report_has_what_a_prediction_takes() -> None:
    rows = json.loads(H200.read_text())["rows"]
    gains = predict_rows(rows)
    assert len(gains) >= 8
    for measured, gain in zip(rows, gains, strict=True):
        assert gain is not None and (gain == 0 if measured["depth"] == 1 else 0 < gain < 0.5)
