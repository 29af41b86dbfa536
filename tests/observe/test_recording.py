"""Recordings of all devices are whole: lanes do not overlap, every step is there, causes come before effects."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.inline_runtime import InlineRuntime
from tests.fakes.masks import ThreadMasks
from tests.fakes.scene import Entry, Stage, ask, limits_of, mix_of_requests, picture, sim_stage, table_of
from tests.fakes.sim_clock import SimClock
from tests.fakes.sim_device import Timing
from tests.observe.trace_schema import check_trace

from gapless.config import CudaDeviceConfig, EngineConfig, HostDeviceConfig
from gapless.device.base import Device
from gapless.device.cuda import CudaDevice
from gapless.device.host import HostDevice
from gapless.engine.build import Engine
from gapless.engine.mailbox import ThreadMailbox
from gapless.observe.chrome import slack_of, trace_of
from gapless.observe.recording import Recording, RecordingMeter, current, record

SPEC = HashSpec()
PLAIN = HashSpec(end_permille=0, answer_permille=0)
TIMING = Timing(forward=4.0, sampling=0.5, copy=0.25, bookkeeping=1.0, prefill=9.0, launch=0.125)


def recorded(depth: int, entries: list[Entry], spec: HashSpec = SPEC, delays=(0.0, 6.0), capacity: int = 10_000):
    with record(capacity) as recording:
        stage, device = sim_stage(spec, limits_of(spec, depth), timing=TIMING, delays=delays)
        stage.play(entries)
    return recording, device


def batch(count: int = 3, tokens: int = 20) -> list[Entry]:
    return [Entry(ask(i, ids=(10 + i, 20), max_tokens=tokens)) for i in range(1, count + 1)]


def real_stage(device: Device, config: EngineConfig) -> Iterator[Stage]:
    """An engine on the machine's own clock."""
    mailbox = ThreadMailbox()
    masks = ThreadMasks(mailbox.notify, (0.0, 0.003))
    try:
        yield Stage(Engine(device, table_of(SPEC), config, masks, mailbox), mailbox, SimClock())
    finally:
        device.close()
        masks.close()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_simulated_device(depth):
    recording, device = recorded(depth, mix_of_requests(2, 12, host=0.4))
    assert sum(e.name == "park" for e in device.events) > 0 or depth == 1
    steps = len({event.step for event in device.events if event.name == "wait"})
    assert check_trace(trace_of(recording)) == {1: steps}


@pytest.mark.parametrize("depth", [1, 2])
def test_the_cpu_device(depth):
    config = EngineConfig(depth=depth, max_rows=6, page_size=4, pages=300, lookahead=8)
    rehearsal = HostDeviceConfig(threads=1, poison=True, jitter_seed=1, jitter_ms=0.3, copy_delay_ms=0.2)
    with record() as recording:
        device = HostDevice(HashModel(SPEC), table_of(SPEC), config, rehearsal)
        for stage in real_stage(device, config):
            stage.play(mix_of_requests(1, 10, host=0.3, cancels=0.0))
            counters = stage.engine.counters
    trace = trace_of(recording)
    assert check_trace(trace)[1] >= counters.prefill_steps + counters.decode_steps
    zombies = {e["args"]["step"]: e["args"]["zombies"] for e in trace["traceEvents"] if "zombies" in e.get("args", {})}
    assert sum(zombies.values()) >= counters.zombies


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_zombies_of_the_spans_are_those_that_were_counted(depth):
    with record() as recording:
        stage, _ = sim_stage(SPEC, limits_of(SPEC, depth), timing=TIMING)
        stage.play(batch(4, 40))
    forwards = [span for span in recording.spans() if span.name == "forward"]
    assert sum(span.zombies for span in forwards) == stage.engine.counters.zombies
    assert (stage.engine.counters.zombies > 0) == (depth > 1)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_span_says_what_it_was_done_for(depth):
    recording, device = recorded(depth, mix_of_requests(2, 12, host=0.4))
    events = [event for event in trace_of(recording)["traceEvents"] if event["ph"] == "X"]
    for span, event in zip(recording.spans(), events, strict=True):
        told = event.get("args", {})
        assert (span.step is None) == (not told)
        if span.step is not None:
            rows = len(span.step.rows)
            about = {"step": span.step.id, "kind": span.step.kind.value, "slot": span.step.slot, "rows": rows}
            assert {name: value for name, value in told.items() if name != "zombies"} == about
        waits = span.name in ("device", "mask", "mail")
        assert event["cat"] == ("device" if span.lane != "loop" else "wait" if waits else "host")
    assert {e["args"]["slot"] for e in events if e["name"] == "forward"} == set(range(depth))
    rows = {e.step: len(e.rows) for e in device.events if e.name == "forward"}
    assert {e["args"]["step"]: e["args"]["rows"] for e in events if e["name"] == "forward"} == rows


def microseconds() -> Iterator[float]:
    while True:
        yield 1e6 * time.perf_counter()


@pytest.mark.parametrize("depth", [1, 2])
def test_the_gpus_device_without_a_gpu(depth):
    """Its marks on an imaginary GPU that does at once what it is told, so that its clock is the host's."""
    config = EngineConfig(depth=depth, max_rows=6, page_size=4, pages=300, lookahead=8)
    cuda = CudaDeviceConfig(arena_bytes=300)
    with record() as recording:
        runtime = InlineRuntime(clock=microseconds())
        for stage in real_stage(CudaDevice(HashModel(SPEC), table_of(SPEC), config, cuda, runtime), config):
            stage.play(mix_of_requests(1, 10, host=0.3, cancels=0.0))
    trace = trace_of(recording)
    assert check_trace(trace)[1] > 20
    uploads = [e for e in trace["traceEvents"] if e["name"] == "upload"]
    assert len(uploads) == runtime.uploads > 0
    (error,) = trace["otherData"]["clock_error_us"]
    assert error["earlier"] >= 0 and error["later"] >= 0


def test_without_a_recording_a_gpu_is_asked_for_no_more_marks():
    config = EngineConfig(max_rows=4, page_size=4, pages=300, lookahead=8)
    marks = {}
    for on in (False, True):
        runtime = InlineRuntime()
        with record() if on else Nothing():
            device = CudaDevice(HashModel(SPEC), table_of(SPEC), config, CudaDeviceConfig(), runtime)
        for stage in real_stage(device, config):
            stage.play(batch(2, 10))
            steps = stage.engine.bubble.steps
        marks[on] = next(runtime.clock) / steps
    assert marks[False] == pytest.approx(2, abs=0.5)
    assert marks[True] > marks[False] + 2


class Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def test_the_oldest_spans_are_dropped_and_counted():
    whole, _ = recorded(2, batch(tokens=20), PLAIN)
    kept, _ = recorded(2, batch(tokens=20), PLAIN, capacity=50)
    assert len(kept.spans()) == 50 and kept.dropped == len(whole.spans()) - 50 > 0
    assert max(span.end for span in kept.spans()) == max(span.end for span in whole.spans())
    assert trace_of(kept)["otherData"]["dropped_spans"] == kept.dropped


def test_only_what_is_made_within_is_recorded():
    before, _ = sim_stage(PLAIN, limits_of(PLAIN, 2))
    with record() as recording:
        assert current() is recording
        with pytest.raises(RuntimeError, match="on already"), record():
            pass
        before.play(batch(1, 3))
        within, _ = sim_stage(PLAIN, limits_of(PLAIN, 1), timing=TIMING)
    assert current() is None and recording.depths == [1] and not recording.spans()
    assert isinstance(within.engine.meter, RecordingMeter) and not isinstance(before.engine.meter, RecordingMeter)
    within.play(batch(1, 3))
    assert recording.spans()


def test_the_clocks_cannot_be_further_apart_than_causes_and_effects_allow():
    recording, _ = recorded(1, batch(), PLAIN)
    slack = slack_of(recording.spans())
    assert (slack.earlier, slack.later) == (pytest.approx(0.125), pytest.approx(0.0))
    for shift, wrong in ((-0.2, "before its launch"), (0.2, "before its copy")):
        moved = Recording()
        moved.enter(1)
        for span in recording.spans():
            by = 0.0 if span.lane == "loop" else shift
            moved.add(replace(span, start=span.start + by, end=span.end + by))
        with pytest.raises(AssertionError, match=wrong):
            check_trace(trace_of(moved))


def test_two_engines_are_two_processes():
    with record() as recording:
        for depth in (2, 1):
            stage, _ = sim_stage(PLAIN, limits_of(PLAIN, depth), timing=TIMING)
            stage.play(batch(1, 5))
    trace = trace_of(recording)
    assert [engine["depth"] for engine in trace["otherData"]["engines"]] == [2, 1]
    assert set(check_trace(trace)) == {1, 2}


def spoiled(trace, name, changes):
    """The trace with one field of the third span of that name changed by a function."""
    other = copy.deepcopy(trace)
    event = [e for e in other["traceEvents"] if e["ph"] == "X" and e["name"] == name][2]
    for field, change in changes.items():
        event[field] = change(event[field])
    return other


@pytest.mark.parametrize(
    ("name", "changes", "wrong"),
    [
        ("sampling", {"dur": lambda dur: dur + 5e6}, "overlap"),
        ("launch", {"name": lambda _: "dream"}, "dream"),
        ("copy", {"ts": lambda ts: ts - 1e6}, "before it was sampled"),
        ("forward", {"name": lambda _: "sampling"}, "of kind decode"),
        ("copy", {"dur": lambda dur: dur + 1e6}, "before its copy had landed"),
    ],
)
def test_the_check_finds_what_is_wrong(name, changes, wrong):
    with record() as recording:
        stage, _ = sim_stage(PLAIN, limits_of(PLAIN, 1), timing=TIMING)
        stage.play([Entry(ask(1, shown=picture(1), max_tokens=9))])
    trace = trace_of(recording)
    check_trace(trace)
    with pytest.raises(AssertionError, match=wrong):
        check_trace(spoiled(trace, name, changes))
