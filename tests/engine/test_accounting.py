"""The accounting on the simulated clock, where every second is known: by part, by reason, by step, by answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Entry, ask, limits_of, mix_of_requests, picture, sim_stage
from tests.fakes.sim_clock import SimClock
from tests.fakes.sim_device import Event, Fault, SimDevice, Timing

from gapless.errors import StepFailed
from gapless.observe.accounting import Accounting
from gapless.observe.meter import Meter, Part
from gapless.records import Arrival, Step, StepKind

SPEC = HashSpec(end_permille=0, answer_permille=0)
ENDING = HashSpec()
TIMING = Timing(forward=4.0, sampling=0.5, copy=0.25, bookkeeping=1.0, prefill=9.0, launch=0.125)


def play(depth: int, entries: list[Entry], timing: Timing = TIMING, spec: HashSpec = SPEC, delays=(0.0, 0.0), **more):
    stage, device = sim_stage(spec, limits_of(spec, depth), timing=timing, delays=delays, **more)
    stage.play(entries)
    return stage, device, Accounting.of(stage.engine.meter)


def batch(count: int = 3, tokens: int = 20) -> list[Entry]:
    return [Entry(ask(i, ids=(10 + i, 20), max_tokens=tokens)) for i in range(1, count + 1)]


def host(entry: Entry) -> Entry:
    return replace(entry, request=replace(entry.request, host_masked=True))


def seconds(events: list[Event], *names: str) -> float:
    return sum(event.end - event.start for event in events if event.name in names)


def stretches(device: SimDevice) -> list[Event]:
    """What the compute stream did, in its order."""
    return sorted((e for e in device.events if e.name in ("forward", "sample")), key=lambda e: e.start)


def idle_of(device: SimDevice, first: float = 0.0, last: float = float("inf")) -> float:
    """Gaps between what the compute stream did from `first` to `last`, found in the log alone."""
    done, idle = None, 0.0
    for event in stretches(device):
        if done is not None and event.start >= first and event.end <= last:
            idle += event.start - done
        done = event.end
    return idle


MIXES = [
    pytest.param(batch(), id="plain"),
    pytest.param([host(e) for e in batch(2)] + batch(4)[2:], id="some masked"),
    pytest.param([host(e) for e in batch(2)], id="all masked"),
]


@pytest.mark.parametrize("entries", MIXES)
@pytest.mark.parametrize("delays", [(0.0, 0.0), (3.0, 11.0)], ids=["quick", "slow"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_every_part_is_what_the_log_says(depth, entries, delays):
    stage, device, found = play(depth, entries, delays=delays)
    host = {name: spent / 1e3 for name, spent in found.host.items()}
    events = device.events
    assert host["device"] == pytest.approx(seconds(events, "wait"))
    assert host["launch"] == pytest.approx(seconds(events, "launch"))
    assert host["commit"] == pytest.approx(seconds(events, "commit"))
    slept = stage.clock.now() - seconds(events, "wait", "launch", "commit")
    assert host["mask"] == pytest.approx(slept) and (slept > 0 or not stage.mailbox.slept)
    assert host["plan"] == host["admit"] == host["finalize"] == host["mail"] == 0
    assert found.wall_ms == pytest.approx(1e3 * stage.clock.now())
    assert found.busy_ms == pytest.approx(1e3 * seconds(events, "forward", "sample"))
    assert found.idle_ms == pytest.approx(1e3 * idle_of(device))
    for kind in StepKind:
        mine = [event for event in events if event.kind is kind]
        assert found.busy[kind] == pytest.approx(1e3 * seconds(mine, "forward", "sample"))
        assert found.steps[kind] == len({event.step for event in mine if event.name == "wait"})


@pytest.mark.parametrize(("depth", "idle"), [(1, 0.25 + 1.0 + 0.125), (2, 0.0)])
def test_the_bubble_is_the_copy_the_bookkeeping_and_the_launch(depth, idle):
    """Known in advance: at depth 1 the device waits for all three in every step, at depth 2 for none."""
    _, _, found = play(depth, batch(tokens=20))
    steps = sum(found.steps.values())
    assert found.idle_ms == pytest.approx(1e3 * idle * (steps - 1))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_host_that_dawdles_before_each_launch_is_found_out(depth):
    """Sabotage: 7 s before every launch, longer than a step, is idle time of the device at any depth."""

    class Slow(SimDevice):
        def launch(self, step: Step) -> None:
            self._clock.advance(7.0)
            super().launch(step)

    stage, device = sim_stage(SPEC, limits_of(SPEC, depth), timing=TIMING)
    device.__class__ = Slow
    stage.play(batch())
    found = Accounting.of(stage.engine.meter)
    steps = sum(found.steps.values())
    assert found.idle_ms == pytest.approx(1e3 * idle_of(device))
    period = 7.0 + 0.125 + 1.0 + (4.5 + 0.25 if depth == 1 else 0.0)
    assert found.idle_ms == pytest.approx(1e3 * (period - 4.5) * (steps - 1), rel=0.15)
    assert found.host["launch"] == pytest.approx(1e3 * (7.0 + 0.125) * steps)


def test_an_answers_idle_time_is_that_between_its_first_and_last_token():
    entries = [Entry(ask(i, ids=(10 + i,), max_tokens=4 + 5 * i), arrives=4 * i) for i in range(1, 4)]
    stage, device, _ = play(1, entries)
    for entry in entries:
        metrics = stage.heard[entry.request.id].finish.metrics
        row = entry.request.id  # rows are given out in order
        mine = [e for e in stretches(device) if e.name == "sample" and row in [ref.row for ref in e.rows]]
        assert metrics.idle_ms == pytest.approx(1e3 * idle_of(device, mine[0].end, mine[-1].end))
        assert metrics.idle_ms > 0


def test_an_answer_at_depth_2_has_none():
    stage, _, _ = play(2, batch())
    assert all(heard.finish.metrics.idle_ms == pytest.approx(0.0, abs=1e-6) for heard in stage.heard.values())


def test_time_between_requests_is_mail_and_nobodys_bubble():
    stage, _ = sim_stage(SPEC, limits_of(SPEC, 2), timing=TIMING)
    stage.play(batch(1, tokens=3))
    before = Accounting.of(stage.engine.meter)
    stage.clock.advance(1000.0)
    stage.play([Entry(ask(9, max_tokens=3))])
    later = Accounting.of(stage.engine.meter) - before
    assert later.host["mail"] == pytest.approx(1e6)
    assert later.idle_ms == pytest.approx(0.0, abs=1e-6)
    assert later.steps == before.steps and later.counters == before.counters
    assert sum(later.in_flight) == pytest.approx(later.wall_ms - 1e6)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_steps_in_flight_are_weighed_by_time(depth):
    _, device, found = play(depth, batch(tokens=40), timing=replace(TIMING, bookkeeping=0.0, launch=0.0))
    assert len(found.in_flight) == depth + 1
    assert found.steps_in_flight == pytest.approx(depth, abs=0.1)
    began = {e.step: e.start for e in device.events if e.name == "launch"}
    landed = {e.step: e.end for e in device.events if e.name == "wait"}
    whole = sum(landed[step] - began[step] for step in began)
    assert sum(n * spent for n, spent in enumerate(found.in_flight)) == pytest.approx(1e3 * whole)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_any_mix_adds_up(seed, depth):
    """Cancels, host masks, preemption: the parts are the whole time, the device is busy, idle or at rest."""
    entries = mix_of_requests(seed, 14, host=0.4)
    stage, device, found = play(depth, entries, spec=ENDING, delays=(0.0, 6.0))
    assert found.wall_ms == pytest.approx(1e3 * stage.clock.now())
    assert found.host["device"] == pytest.approx(1e3 * seconds(device.events, "wait"))
    assert found.busy_ms == pytest.approx(1e3 * seconds(device.events, "forward", "sample"))
    assert -1e-6 <= found.idle_ms <= 1e3 * idle_of(device) + 1e-6
    assert found.counters.parked == sum(len(e.rows) for e in device.events if e.name == "park")
    assert 0 < found.steps_in_flight <= depth


def test_without_a_rest_idle_is_all_that_is_not_busy():
    entries = [replace(e, arrives=0, cancelled=None) for e in mix_of_requests(3, 8, host=0.5)]
    _, device, found = play(2, entries, spec=ENDING, delays=(0.0, 6.0))
    work = stretches(device)
    assert found.counters.parked > 0
    assert found.busy_ms + found.idle_ms == pytest.approx(1e3 * (work[-1].end - work[0].start))
    assert found.idle_ms == pytest.approx(1e3 * idle_of(device))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_that_failed_is_nobodys_bubble(depth):
    """What the device did for it is unknown: its time is neither busy nor idle, and the next gap counts as ever."""
    entries = [Entry(ask(1, max_tokens=30)), Entry(ask(2, max_tokens=5), arrives=6)]
    whole, device, right = play(depth, entries)
    waits = [event for event in device.events if event.name == "wait"]
    nth = [i for i, event in enumerate(waits) if event.kind is StepKind.PREFILL][1]
    fault = Fault("wait", nth, StepFailed("an injected fault"))
    stage, device, found = play(depth, entries, faults=(fault,))
    assert stage.heard[2].finish.error is not None and stage.heard[1].tokens == whole.heard[1].tokens
    assert right.steps[StepKind.PREFILL] == 2 and found.steps[StepKind.PREFILL] == 1
    gap = right.idle_ms / (sum(right.steps.values()) - 1)
    assert found.idle_ms == pytest.approx(gap * (sum(found.steps.values()) - 2), abs=1e-6)
    assert found.busy_ms == pytest.approx(1e3 * (9.5 + 4.5 * found.steps[StepKind.DECODE]))
    assert sum(found.in_flight) + found.host["mail"] == pytest.approx(found.wall_ms)


def test_totals_their_shares_and_what_came_in_between():
    stage, _ = sim_stage(SPEC, limits_of(SPEC, 1), timing=TIMING)
    stage.play(batch(1, tokens=3))
    before = Accounting.of(stage.engine.meter)
    stage.play([Entry(ask(9, ids=(12,), max_tokens=11))])
    found = Accounting.of(stage.engine.meter) - before
    assert found.steps == {"prefill": 1, "decode": 10, "parked": 0}
    assert found.busy_ms == pytest.approx(1e3 * (9.5 + 10 * 4.5)) and found.idle_ms == pytest.approx(1e3 * 10 * 1.375)
    assert found.idle_share == pytest.approx(13.75 / (54.5 + 13.75))
    assert found.step_ms == pytest.approx(1e3 * (54.5 + 13.75) / 11) and found.decode_ms == pytest.approx(4500.0)
    assert found.counters.tokens == 11 and before.counters.tokens == 3


def test_the_plain_numbers_have_every_part_once():
    _, _, found = play(2, [Entry(ask(1, "detect", shown=picture(1)))])
    plain = found.as_dict()
    parts = [f"wait_{part.label}_ms" if part.waits else f"{part.label}_ms" for part in Part]
    assert sum(plain[name] for name in parts) == pytest.approx(plain["wall_ms"])
    assert {"plan_ms", "wait_mail_ms", "decode_busy_ms", "steps_in_flight", "zombies"} <= set(plain)
    assert plain["tokens"] == found.counters.tokens > 0


@pytest.mark.parametrize(("landed", "waited"), [(5.75, 0.75), (5.0, 0.0), (0.0, 1.0), (7.0, 1.0)])
def test_the_commit_begins_when_the_results_were_there(landed, waited):
    """A device that goes by another clock than the loop's cannot make a part negative."""
    clock = SimClock()
    clock.advance(5.0)
    meter = Meter(clock, 2)
    step = Step(1, StepKind.DECODE, (), 0)
    meter.enter(Part.DEVICE, step)
    clock.advance(1.0)
    meter.landed(step, Arrival(1, (), 0.0, 1.0, landed=landed), set())
    meter.enter(Part.ADMIT)
    assert meter.spent[Part.DEVICE] == waited and meter.spent[Part.COMMIT] == 1.0 - waited
