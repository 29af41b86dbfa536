"""Overlap on the simulated clock: step periods come out as the timing says, and order of events proves the rest."""

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Entry, ask, expected, limits_of, picture, sim_stage
from tests.fakes.sim_device import Event, Timing
from tests.fakes.verdict import judge_all

from gapless.records import StepKind

SPEC = HashSpec(end_permille=0, answer_permille=0)
MS = 1e-3
MEASURED = Timing(forward=3.80 * MS, sampling=0.14 * MS, copy=0.0, bookkeeping=1.61 * MS)


def play(depth: int, timing: Timing, entries: list[Entry], delays=(0.0, 0.0)):
    stage, device = sim_stage(SPEC, limits_of(SPEC, depth), timing=timing, delays=delays)
    judge_all(stage.play(entries), expected(SPEC, entries), entries)
    return stage, device


def named(events: list[Event], name: str, kind: StepKind | None = None) -> list[Event]:
    return [e for e in events if e.name == name and (kind is None or e.kind is kind)]


def period(events: list[Event]) -> float:
    """Mean distance of decode commits, the first and last few left out."""
    ends = [e.end for e in named(events, "commit", StepKind.DECODE)][3:-3]
    assert len(ends) > 20
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def batch(count: int = 4, tokens: int = 40) -> list[Entry]:
    return [Entry(ask(i, ids=(10 + i, 20), max_tokens=tokens)) for i in range(1, count + 1)]


@pytest.mark.parametrize(("depth", "milliseconds"), [(1, 5.55), (2, 3.94), (3, 3.94), (4, 3.94)])
def test_the_period_of_the_design_to_one_percent(depth, milliseconds):
    stage, device = play(depth, MEASURED, batch())
    assert period(device.events) == pytest.approx(milliseconds * MS, rel=0.01)
    idle = stage.engine.bubble.idle_share
    assert idle == pytest.approx(1.61 / 5.55, abs=0.02) if depth == 1 else idle < 0.01


@pytest.mark.parametrize("bookkeeping", [4.5, 6.0, 12.0])
def test_bookkeeping_longer_than_the_device_is_the_period_at_depth_two(bookkeeping):
    timing = replace(MEASURED, bookkeeping=bookkeeping * MS)
    _, device = play(2, timing, batch())
    assert period(device.events) == pytest.approx(bookkeeping * MS, rel=0.01)


@pytest.mark.parametrize(("depth", "milliseconds"), [(1, 6.55), (2, 3.94)])
def test_a_slow_copy_is_hidden_from_depth_two_on(depth, milliseconds):
    _, device = play(depth, replace(MEASURED, copy=1.0 * MS), batch())
    assert period(device.events) == pytest.approx(milliseconds * MS, rel=0.01)


def test_at_depth_two_each_launch_comes_before_the_commit_of_the_step_before():
    _, device = play(2, MEASURED, batch())
    order = [(e.name, e.step) for e in device.events if e.name in ("launch", "commit")]
    steps = [step for name, step in order if name == "launch"]
    for before, after in pairwise(steps[2:-3]):
        assert order.index(("launch", after)) < order.index(("commit", before))
    forwards = named(device.events, "forward")
    samples = {e.step: e.end for e in named(device.events, "sample")}
    for before, after in pairwise(forwards[2:-3]):
        assert after.start == samples[before.step], "the device stood idle between two steps"


def test_at_depth_one_each_commit_comes_before_the_next_launch():
    _, device = play(1, MEASURED, batch())
    order = [(e.name, e.step) for e in device.events if e.name in ("launch", "commit")]
    assert all(a[0] == "launch" and b == ("commit", a[1]) for a, b in zip(order[::2], order[1::2], strict=True))


def test_a_prefill_rides_along_without_a_gap():
    late = [Entry(ask(9, ids=(33, 44), shown=picture(1), max_tokens=20), arrives=20)]
    _, device = play(2, replace(MEASURED, prefill=30.0 * MS), batch() + late)
    kinds = [e.kind for e in named(device.events, "forward")]
    at = kinds.index(StepKind.PREFILL, 2)
    spans = sorted((e.start, e.end) for e in device.events if e.name in ("forward", "sample"))
    gaps = [b[0] - a[1] for a, b in pairwise(spans[4 : 2 * at + 11])]
    assert max(gaps) < 1e-9, "the device stood idle around the prefill"
    forward = named(device.events, "forward")[at]
    during = [e for e in named(device.events, "commit", StepKind.DECODE) if forward.start <= e.start < forward.end]
    assert during, "no decode was committed while the prefill was computed"


def test_one_slow_host_mask_delays_nobody_else():
    slow = Entry(replace(ask(9, "detect", ids=(33,), shown=picture(1)), host_masked=True))
    _, device = play(2, MEASURED, [slow, *batch()], delays=(60 * MS, 60 * MS))
    plain = [e for e in named(device.events, "commit", StepKind.DECODE) if len(e.rows) >= 4]
    ends = [e.end for e in plain][3:-3]
    gaps = [b - a for a, b in pairwise(ends)]
    parks = named(device.events, "park")
    assert len(parks) >= 2
    sampled = named(device.events, "sample", StepKind.PARKED)
    first, until = parks[0].start, sampled[0].start
    between = [e for e in plain if first < e.end < until]
    assert until - first > 50 * MS
    assert len(between) >= 10, "others stood still while a mask was built"
    # now and then the slow row's own tail, or a step in which it goes along, comes between; never its wait
    assert max(gaps) < 2 * (3.94 + 1.61) * MS
    assert sum(gaps) / len(gaps) == pytest.approx(3.94 * MS, rel=0.10)


def test_masks_that_are_ready_in_time_cost_no_period():
    entries = [Entry(replace(ask(i, ids=(10 + i,), max_tokens=40), host_masked=True)) for i in range(1, 5)]
    _, device = play(2, MEASURED, entries)
    host = named(device.events, "commit", StepKind.DECODE)
    ends = [e.end for e in host][3:-3]
    assert not named(device.events, "park") or len(named(device.events, "park")) < 4
    # forward t+1 runs while t is committed; its sampling waits for that commit
    assert (ends[-1] - ends[0]) / (len(ends) - 1) < 5.55 * MS
