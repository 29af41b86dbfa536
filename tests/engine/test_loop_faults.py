"""What goes wrong in one step stays in that step (I11): faults at every call, broken rows, lost devices."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Entry, Stage, ask, expected, limits_of, mix_of_requests, picture, sim_stage
from tests.fakes.sim_device import Fault, SimDevice, Timing
from tests.fakes.verdict import judge, judge_all

from gapless.errors import (
    DeviceLost,
    EngineDead,
    InvariantBroken,
    NonFiniteLogits,
    RequestFailed,
    StepFailed,
)
from gapless.records import RowRef

SPEC = HashSpec(end_permille=15)
TIMING = Timing(forward=1.0, sampling=0.1, copy=0.1, bookkeeping=0.4)


@dataclass
class Riders:
    """Which requests rode on which call: kept by looking over the device's shoulder."""

    stage: Stage
    device: SimDevice
    of: dict[RowRef, int] = field(default_factory=dict)
    made: dict[int, set[RowRef]] = field(default_factory=dict)
    sharers: dict[RowRef, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        launch = self.device.launch

        def watched(step):
            for ref in step.rows:
                seq = self.stage.engine.roster.get(ref)
                self.of[ref] = seq.history.request.id
            self.made[step.id] = {p.start.ref for p in step.prefills}
            for prefill in step.prefills:
                for entry in self.stage.engine.roster.get(prefill.start.ref).path:
                    self.sharers.setdefault(entry.maker, set()).add(self.of[prefill.start.ref])
            launch(step)

        self.device.launch = watched

    def hit_by(self, fault: Fault) -> set[int]:
        """Requests whose step it was, and those that share what that step was to compute."""
        hit = {self.of[ref] for ref in fault.rows}
        if fault.call in ("launch", "device", "wait"):
            hit |= {i for maker in self.made.get(fault.step, ()) for i in self.sharers.get(maker, ())}
        return hit


def faulty(call, nth, depth, host=0.0, seed=0, error=None):
    """Play a scene with one fault. Returns entries, stage, device, riders and the fault."""
    fault = Fault(call, nth, error or StepFailed("an injected fault"))
    entries = mix_of_requests(seed, 10, host=host, cancels=0.0, spread=10)
    stage, device = sim_stage(SPEC, limits_of(SPEC, depth), timing=TIMING, faults=(fault,), delays=(0.0, 4.0))
    riders = Riders(stage, device)
    stage.play(entries)
    device.audit()
    return entries, stage, device, riders, fault


def check_blast(entries, stage, riders, fault):
    """Exactly the riders of the failed call lost their answers, each with the cause; everybody else is exact."""
    right = expected(SPEC, entries)
    hit = riders.hit_by(fault)
    lost = {i for i, heard in stage.heard.items() if heard.finish.error is not None}
    for i in lost:
        error = stage.heard[i].finish.error
        assert isinstance(error, RequestFailed)
        assert _chain_holds(error, fault.error), f"the cause is not told: {error!r}"
        judge(stage.heard[i], right[i], (RequestFailed,))
    for i, heard in stage.heard.items():
        if i not in lost:
            judge(heard, right[i])
    return hit, lost


def _chain_holds(error, cause):
    while error is not None:
        if error is cause:
            return True
        error = error.__cause__
    return False


@pytest.mark.parametrize(
    ("depth", "error"),
    [
        (1, StepFailed("an injected fault")),
        (2, RuntimeError("a bug in a kernel")),
        (3, StepFailed("an injected fault")),
        pytest.param(1, RuntimeError("a bug in a kernel"), marks=pytest.mark.slow),
        pytest.param(2, StepFailed("an injected fault"), marks=pytest.mark.slow),
        pytest.param(3, RuntimeError("a bug in a kernel"), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("call", ["launch", "device", "wait"])
def test_a_failed_step_fails_its_riders_and_nobody_else(call, depth, error):
    some = 0
    for nth in (0, 1, 2, 3, 7, 12, 20):
        entries, stage, _, riders, fault = faulty(call, nth, depth, error=error, seed=nth)
        assert fault.rows, "the fault was never reached"
        hit, lost = check_blast(entries, stage, riders, fault)
        assert lost <= hit
        some += len(lost)
    assert some >= 7


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.slow), 2, 3])
@pytest.mark.parametrize("call", ["launch", "device", "wait", "finalize", "park"])
def test_a_failed_call_with_host_masks_fails_its_riders_and_nobody_else(call, depth):
    some = 0
    for nth in (0, 1, 2, 5, 9, 12, 16):
        entries, stage, _, riders, fault = faulty(call, nth, depth, host=0.6, seed=nth)
        assert fault.rows, "the fault was never reached"
        hit, lost = check_blast(entries, stage, riders, fault)
        assert lost <= hit
        some += len(lost) + stage.engine.counters.retried
    assert some >= 7


@pytest.mark.parametrize("call", ["launch", "device", "wait", "finalize"])
def test_the_next_ordinary_request_succeeds(call):
    _, stage, device, _, _ = faulty(call, 1, 2, host=0.5)
    after = [Entry(ask(100, "detect", shown=picture(1))), Entry(ask(101, max_tokens=9))]
    stage.play(after)
    for entry in after:
        judge(stage.heard[entry.request.id], expected(SPEC, after)[entry.request.id])
    device.audit()


@pytest.mark.parametrize("call", ["launch", "device", "wait"])
def test_a_block_whose_step_failed_is_shared_with_nobody(call):
    """Two requests on one picture, the second launched behind the first whose block is never computed."""
    shown = picture(1)
    first, second, third = (ask(i, ids=(10 + i, 20), shown=shown, max_tokens=8) for i in (1, 2, 3))
    stage, device = sim_stage(SPEC, limits_of(SPEC, 3), timing=TIMING, faults=(Fault(call, 0),))
    stage.play([Entry(first), Entry(second, arrives=1), Entry(third, arrives=9)])
    right = expected(SPEC, [Entry(first), Entry(second), Entry(third)])
    assert isinstance(stage.heard[1].finish.error, RequestFailed)
    judge(stage.heard[2], right[2], (RequestFailed,))
    judge(stage.heard[3], right[3])
    device.audit()


def test_a_failed_sharer_does_not_take_the_block_and_its_owner_along():
    """The owner's prefill is in flight when the sharer's launch fails: the owner was on another step."""
    shown = picture(1)
    first, second = (ask(i, ids=(10 + i, 20), shown=shown, max_tokens=8) for i in (1, 2))
    stage, device = sim_stage(SPEC, limits_of(SPEC, 3), timing=TIMING, faults=(Fault("launch", 2),))
    stage.play([Entry(first), Entry(second, arrives=1)])
    right = expected(SPEC, [Entry(first), Entry(second)])
    assert device.faults[0].rows and len(stage.heard) == 2
    assert isinstance(stage.heard[2].finish.error, RequestFailed), "the fault hit another step"
    judge(stage.heard[1], right[1])


@pytest.mark.parametrize("nth", [0, 1, 5, 17])
def test_an_exception_in_a_commit_fails_that_request_alone(nth):
    entries = mix_of_requests(3, 10, host=0.3, cancels=0.0, spread=10)
    stage, device = sim_stage(SPEC, limits_of(SPEC, 2), timing=TIMING, delays=(0.0, 4.0))
    riders, commit, count, hit = Riders(stage, device), stage.engine.book.commit, [0], []

    def broken(record, now):
        count[0] += 1
        if count[0] == nth + 1:
            hit.append(riders.of[record.ref])
            raise ValueError("a bug in the bookkeeping")
        return commit(record, now)

    stage.engine.book.commit = broken
    stage.play(entries)
    lost = [i for i, heard in stage.heard.items() if heard.finish.error is not None]
    assert lost == hit
    right = expected(SPEC, entries)
    for i, heard in stage.heard.items():
        judge(heard, right[i], (RequestFailed,) if i in hit else ())
    device.audit()


@pytest.mark.parametrize("method", ["request", "take"])
def test_an_exception_in_a_mask_builder_fails_that_request_alone(method):
    entries = [Entry(replace(ask(i, "detect", ids=(10 + i,), shown=picture(i)), host_masked=True)) for i in range(1, 6)]
    stage, device = sim_stage(SPEC, limits_of(SPEC, 2), timing=TIMING, delays=(0.0, 4.0))
    riders, source, hit = Riders(stage, device), stage.engine.loop.masking._source, []
    whole = getattr(source, method)

    def broken(ref, *rest):
        if riders.of[ref] == 3 and 3 in stage.heard and len(stage.heard[3].tokens) == 2:
            hit.append(ref)
            raise ValueError("a bug in a grammar")
        return whole(ref, *rest)

    setattr(source, method, broken)
    stage.play(entries)
    assert hit
    right = expected(SPEC, entries)
    for i, heard in stage.heard.items():
        judge(heard, right[i], (RequestFailed,) if i == 3 else ())
    assert stage.heard[3].finish.error is not None
    device.audit()


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("host", [0.0, 1.0])
def test_non_finite_logits_end_their_row_alone(depth, host):
    entries = mix_of_requests(5, 12, host=host, cancels=0.0, spread=6)
    right = expected(SPEC, entries)
    victims = {i: len(a.tokens) // 2 for i, a in right.items() if i % 4 == 1}
    stage, device = sim_stage(SPEC, limits_of(SPEC, depth), timing=TIMING, delays=(0.0, 2.0))
    device.cursed = {right[i].hidden[at] for i, at in victims.items()}
    stage.play(entries)
    for i, heard in stage.heard.items():
        if i in victims:
            assert isinstance(heard.finish.error, NonFiniteLogits)
            assert [t.id for t in heard.tokens] == [t.id for t in right[i].tokens[: victims[i]]]
        else:
            judge(heard, right[i])
    device.audit()


@pytest.mark.parametrize("call", ["launch", "wait", "finalize", "park", "device"])
def test_a_lost_device_ends_the_loop_and_everybody_is_told(call):
    fault = Fault(call, 3, DeviceLost("the device fell off the bus"))
    entries = mix_of_requests(1, 10, host=0.6, cancels=0.0, spread=4)
    stage, device = sim_stage(SPEC, limits_of(SPEC, 2), timing=TIMING, faults=(fault,), delays=(0.0, 4.0))
    with pytest.raises(DeviceLost, match="bus"):
        stage.play(entries)
    dead = EngineDead("the engine stopped")
    stage.engine.book.end_all(dead, stage.clock.now())
    for emission in stage.engine.book.take_emissions():
        stage._note(emission)
    right = expected(SPEC, entries)
    told = [i for i, heard in stage.heard.items() if heard.finish is not None and heard.finish.error is dead]
    assert told
    for i, heard in stage.heard.items():
        judge(heard, right[i], (EngineDead,))
    with pytest.raises(InvariantBroken, match="I11"):
        device.referee.launch(None)


def test_an_arrival_for_another_life_of_a_row_stops_the_engine():
    stage, device = sim_stage(SPEC, limits_of(SPEC, 2), timing=TIMING)
    wait = device.wait

    def stale(step, rows):
        arrival = wait(step, rows)
        old = replace(arrival.records[0], ref=RowRef(rows[0].row, rows[0].epoch - 1))
        return replace(arrival, records=(old, *arrival.records[1:])) if step.id > 4 else arrival

    device.wait = stale
    with pytest.raises(InvariantBroken, match="I9"):
        stage.play([Entry(ask(1, max_tokens=30))])


def test_an_exact_scene_stays_exact_when_results_are_checked_for_aliasing():
    """I4: what a caller got is not changed by later steps."""
    entries = mix_of_requests(2, 8, cancels=0.0)
    stage, _ = sim_stage(SPEC, limits_of(SPEC, 2), timing=TIMING)
    heard = stage.play(entries)
    kept = {i: list(h.tokens) for i, h in heard.items()}
    stage.play([Entry(ask(200, max_tokens=30))])
    assert all(np.array_equal([t.id for t in kept[i]], [t.id for t in heard[i].tokens]) for i in kept)
    judge_all({i: heard[i] for i in kept}, expected(SPEC, entries), entries)
