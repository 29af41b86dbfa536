"""The bubble: idle device time between steps, and only while there was work. Counters count what they say."""

import pytest

from gapless.observe.bubble import Bubble, Busy
from gapless.observe.counters import Counters
from gapless.records import Arrival, StepKind


def arrival(started: float, ended: float) -> Arrival:
    return Arrival(1, (), started, ended)


def test_gaps_between_steps_are_idle():
    bubble = Bubble()
    assert bubble.idle_share == 0.0
    for started, ended in ((0.0, 4.0), (4.0, 7.0), (8.0, 9.0)):
        bubble.note(StepKind.DECODE, arrival(started, ended))
    assert (bubble.busy, bubble.idle, bubble.steps) == (8.0, 1.0, 3)
    assert bubble.idle_share == pytest.approx(1 / 9)


def test_a_rest_is_not_idle_time():
    bubble = Bubble()
    bubble.note(StepKind.PREFILL, arrival(0.0, 1.0))
    bubble.rest()
    bubble.note(StepKind.DECODE, arrival(100.0, 101.0))
    bubble.note(StepKind.DECODE, arrival(101.5, 102.0))
    assert (bubble.busy, bubble.idle) == (2.5, 0.5)
    assert bubble.kinds[StepKind.DECODE] == Busy(2, 1.5)


def test_a_pause_for_host_masks_is_idle_time():
    bubble = Bubble()
    bubble.note(StepKind.DECODE, Arrival(1, (), 0.0, 4.0, paused=1.5))
    bubble.note(StepKind.DECODE, arrival(4.5, 5.0))
    assert (bubble.busy, bubble.idle) == (3.0, 2.0)


def test_a_step_within_anothers_pause_is_not_idle_time():
    bubble = Bubble()
    bubble.note(StepKind.DECODE, Arrival(1, (), 0.0, 5.0, paused=2.0))
    bubble.note(StepKind.PARKED, arrival(3.0, 3.5))
    bubble.note(StepKind.DECODE, arrival(6.0, 7.0))
    assert (bubble.busy, bubble.idle) == (4.5, 2.5)


def test_commits_beside_the_other_kind_are_counted_per_kind():
    counters = Counters()
    counters.launched(StepKind.PREFILL, overlaps=False)
    counters.launched(StepKind.DECODE, overlaps=True)
    counters.committed(StepKind.PREFILL, {StepKind.PREFILL, StepKind.DECODE})
    counters.committed(StepKind.DECODE, {StepKind.DECODE})
    counters.committed(StepKind.PARKED, {StepKind.DECODE, StepKind.PREFILL})
    assert (counters.prefill_steps, counters.decode_steps, counters.overlapped) == (1, 1, 1)
    assert counters.prefill_committed_during_decode == 1
    assert counters.decode_committed_during_prefill == 0
