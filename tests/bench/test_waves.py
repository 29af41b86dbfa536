"""A row of several waves is the median one, whatever order they came in; its parts stand in their own columns."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from typing import Any

import pytest

from gapless.bench.decode_rows import fill_isolated, row_of
from gapless.bench.hostpart import null_session
from gapless.bench.rig import Isolated
from gapless.bench.roofline import Roofline
from gapless.bench.timed import TickTimes
from gapless.bench.wave import MeanStep, Wave, advance, mean_step, questions
from gapless.models.moondream.config import MoeConfig, TextConfig
from gapless.observe.accounting import Accounting
from gapless.observe.counters import Counters
from gapless.observe.meter import Part
from gapless.records import RowRef, Step, StepKind


def wave(seconds: float, zombies: int) -> Wave:
    counters = Counters(tokens=880, zombies=zombies)
    spent = Accounting(counters, {"decode": 110}, {"decode": 900 * seconds}, 100 * seconds, {}, (0.0, 1.0, 3.0))
    return Wave(8, 50, 800.0, MeanStep(4 * seconds, 3.9, 0.02, 0.1, 0.2, 0.3, 0.4), spent, answered=8 * 110)


def test_the_median_wave_is_the_row():
    waves = [wave(1.0, 8), wave(2.0, 9), wave(4.0, 10)]
    for seed in range(6):
        random.Random(seed).shuffle(waves)
        row = row_of(("default", 8, 2), waves, Roofline(10**9, 10**5, 4e12))
        assert (row["sampler"], row["streams"], row["depth"], row["answer_tokens"]) == ("default", 8, 2, 110)
        assert (row["tokens_per_s"], row["period_ms"], row["zombie_share"]) == (440.0, 8.0, 0.010124)
        assert (row["idle_share"], row["steps_in_flight"]) == (0.1, 1.75)
        assert row["waves"] == [220.0, 880.0] and row["measured"] == 3


def test_the_mean_step_part_by_part():
    rows = tuple(RowRef(i, 1) for i in range(8))
    step = Step(1, StepKind.DECODE, rows, 0)
    parts = [(0.1, 0.2, 0.3, 0.4, 5.0, 0.7), (0.2, 0.3, 0.4, 0.5, 6.0, 0.8), (9.0, 9.0, 9.0, 9.0, 90.0, 9.0)]
    other = TickTimes(50.0, 50.0, 50.0, 50.0, 500.0, 50.0, step, replace(step, rows=rows[:7]))
    ticks = [TickTimes(*(1e-3 * part for part in some), step, step) for some in parts]
    found = mean_step([other, *ticks, other], 8)
    assert asdict(found) == pytest.approx(
        {
            "period_ms": 37.1666667,
            "device_ms": 33.6666667,
            "idle_ms": 3.5,
            "plan_ms": 3.1,
            "launch_ms": 3.1666666,
            "wait_ms": 3.2333333,
            "commit_ms": 3.3,
        }
    )


def test_parts_alone_go_to_the_rows_of_their_sampler():
    rows = {(sampler, n, 2): dict[str, Any]() for sampler in ("greedy", "default") for n in (1, 8)}
    fill_isolated(rows, 8, Isolated(forward_ms=3.0, greedy_ms=0.1, default_ms=0.4), Roofline(1, 1, 1.0))
    assert rows["greedy", 8, 2] == {"forward_ms": 3.0, "sampling_ms": 0.1}
    assert rows["default", 8, 2] == {"forward_ms": 3.0, "sampling_ms": 0.4}
    assert rows["greedy", 1, 2] == rows["default", 1, 2] == {}


def test_experts_that_were_counted_make_the_floor():
    """10 bytes of all weights, 5 layers of which 3 were read at 7 bytes each, 8 rows of 2 positions at 1 byte."""
    text = TextConfig(n_layers=6, moe=MoeConfig(start_layer=1))
    rows = {("greedy", 8, 1): {"context": 2.0, "period_ms": 1000.0}}
    fill_isolated(rows, 8, Isolated(1.0, 0.1, 0.2, experts_read=3.0), Roofline(10, 1, 1000.0, 7, text))
    row = rows["greedy", 8, 1]
    assert (row["experts_read"], row["floor_ms"], row["roofline_share"]) == (3.0, 131.0, 0.131)


def test_the_parts_of_ticks_are_the_meters():
    session = null_session(3, 2)
    meter = session.engine.meter
    session.submit(questions(3, 1, None))
    advance(session, 3, 15)
    session.stop()
    told = {Part.PLAN: "plan", Part.LAUNCH: "launch", Part.DEVICE: "wait"}
    for part, name in told.items():
        assert sum(getattr(tick, name) for tick in session.ticks) == pytest.approx(meter.spent[part])
    assert sum(tick.busy for tick in session.ticks) == pytest.approx(session.engine.bubble.busy)
    assert sum(tick.idle for tick in session.ticks) == pytest.approx(session.engine.bubble.idle)
