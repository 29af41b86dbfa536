"""The referee and the simulated device catch every kind of misuse, and name the invariant that was broken."""

from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.refereed import Refereed
from tests.fakes.scene import limits_of, picture, table_of
from tests.fakes.sim_clock import SimClock
from tests.fakes.sim_device import Fault, SimDevice, Timing

from gapless.constrain.table import Walker
from gapless.errors import DeviceLost, InvariantBroken, StepFailed
from gapless.records import Flags, PageGrant, Prefill, RowRef, RowStart, Step, StepKind

SPEC = HashSpec(prefix=5, end_permille=0)
TABLE = table_of(SPEC)
A, B = RowRef(1, 1), RowRef(2, 1)


def device(depth=2, faults=(), timing=None) -> SimDevice:
    limits = limits_of(SPEC, depth, rows=4, pages=40, page_size=4)
    return SimDevice(limits, TABLE, SPEC, SimClock(), timing, faults)


def start(ref, program="text", host=False, left=20) -> RowStart:
    return RowStart(ref, TABLE.programs[program], left, left, 5, 0.0, 1.0, 0, -1, host)


def text(ref, pages=(1, 2), **kind) -> Prefill:
    return Prefill(start(ref, **kind), (0, 9), ((), ()), 0, pages)


def shown(ref, block=(3, 4), own=(5, 6), computes=True) -> Prefill:
    whole = Prefill(start(ref), (9,), ((),), 5, (block[0], *own), picture(1), block, (block[1], own[0]))
    return whole if computes else replace(whole, picture=None, prefix_pages=())


def prefill(number, *prefills, slot=0, **more) -> Step:
    rows = tuple(p.start.ref for p in prefills)
    unsampled = frozenset(p.start.ref.row for p in prefills if p.start.host_masked)
    return Step(number, StepKind.PREFILL, rows, slot, unsampled, prefills, **more)


def decode(number, *refs, slot=0, unsampled=(), **more) -> Step:
    return Step(number, StepKind.DECODE, refs, slot, frozenset(unsampled), **more)


def broken(invariant):
    return pytest.raises(InvariantBroken, match=f"^{invariant}:")


def test_a_regular_life_passes_and_leaves_nothing():
    sim = device()
    steps = [prefill(1, text(A)), decode(2, A, slot=1)]
    for step in steps:
        sim.launch(step)
    arrivals = [sim.wait(step, step.rows) for step in steps]
    assert [a.step_id for a in arrivals] == [1, 2]
    assert all(a.records[0].flags == Flags.NONE for a in arrivals)
    with pytest.raises(InvariantBroken, match="left behind"):
        sim.audit()
    sim.release(A)
    sim.audit()


def test_i1_a_second_forward_before_the_first_was_sampled():
    sim = device()
    first = prefill(1, text(A, host=True))
    sim.launch(first)
    sim.park(first, {A: 0})
    with broken("I1"):
        sim.launch(decode(2, A, slot=1, unsampled=(1,)))


def test_i1_a_forward_over_logits_that_wait_for_a_mask():
    sim = device()
    sim.launch(prefill(1, text(A, host=True)))
    with broken("I1"):
        sim.launch(prefill(2, text(B, (3, 4)), slot=1))


def test_i2_the_newer_step_first_and_a_step_twice():
    sim = device()
    one, two = prefill(1, text(A)), decode(2, A, slot=1)
    sim.launch(one)
    sim.launch(two)
    with broken("I2"):
        sim.wait(two, (A,))
    sim = device()
    sim.launch(one)
    sim.wait(one, (A,))
    with broken("I2"):
        sim.wait(one, (A,))


def test_i2_a_parked_row_enters_the_order_when_it_is_sampled():
    sim = device()
    one, two = prefill(1, text(A, host=True)), prefill(2, text(B, (3, 4)), slot=1)
    sim.launch(one)
    sim.park(one, {A: 0})
    sim.launch(two)
    small = Step(3, StepKind.PARKED, (A,), -1, lane=0)
    sim.finalize(small, {A: Walker.start(TABLE, "text", 20, 5).mask()})
    with broken("I2"):
        sim.wait(small, (A,))


def test_i3_more_steps_than_depth_and_a_row_past_its_cap():
    sim = device(depth=1)
    sim.launch(prefill(1, text(A)))
    with broken("I4"):
        sim.launch(decode(2, A))
    sim = device()
    sim.launch(prefill(1, text(A, left=1)))
    with broken("I3"):
        sim.launch(decode(2, A, slot=1))


def test_i4_a_slot_whose_results_were_not_read():
    sim = device()
    sim.launch(prefill(1, text(A)))
    with broken("I4"):
        sim.launch(prefill(2, text(B, (3, 4))))


def test_i4_a_step_whose_rows_are_all_parked_is_waited_for_too():
    sim = device()
    first = prefill(1, text(A, host=True))
    sim.launch(first)
    sim.park(first, {A: 0})
    with broken("I4"):
        sim.launch(prefill(2, text(B, (3, 4))))


def test_i4_a_lane_that_is_taken():
    sim = device()
    both = prefill(1, text(A, host=True), text(B, (3, 4), host=True))
    sim.launch(both)
    sim.park(both, {A: 0})
    with broken("I4"):
        sim.park(both, {B: 0})


@pytest.mark.parametrize(
    "wrong",
    [
        prefill(2, text(B, (2, 3)), slot=1),  # leased twice
        prefill(2, text(B, (0, 3)), slot=1),  # the scrap page
        prefill(2, text(B, (3, 99)), slot=1),  # no such page
        prefill(2, replace(text(B, (3,)), ids=(0,) * 5, values=((),) * 5), slot=1),  # no room for the prompt
        prefill(2, replace(shown(B), tail=None), slot=1),
        prefill(2, replace(shown(B), tail=(3, 5)), slot=1),
        prefill(2, replace(shown(B), tail=(4, 6)), slot=1),
        prefill(2, replace(shown(B), prefix_pages=(3,)), slot=1),
        prefill(2, shown(B, computes=False), slot=1),  # shares a block nobody computed
        prefill(2, text(B, (3, 4)), slot=1, freed=(1,)),  # frees a page that is being read
        decode(2, A, slot=1, grants=(PageGrant(1, 3, (7,)),)),
        decode(2, A, slot=1, grants=(PageGrant(1, 2, (1,)),)),
    ],
)
def test_i5_pages(wrong):
    sim = device()
    sim.launch(prefill(1, text(A)))
    with broken("I5"):
        sim.launch(wrong)


def test_i5_a_row_without_a_page_for_its_next_position():
    sim = device(depth=2)
    steps = [prefill(1, text(A, (1,))), *(decode(i, A, slot=(i + 1) % 2) for i in range(2, 5))]
    for step in steps[:3]:
        sim.launch(step)
        sim.wait(step, (A,))
    with broken("I5"):
        sim.launch(steps[3])


def test_i5_a_row_released_while_it_rides():
    sim = device()
    sim.launch(prefill(1, text(A)))
    with broken("I5"):
        sim.release(A)


def test_i5_a_shared_block_outlives_its_maker_only_while_somebody_reads_it():
    sim = device()
    maker, sharer = prefill(1, shown(A)), prefill(2, shown(B, own=(7, 8), computes=False), slot=1)
    sim.launch(maker)
    sim.launch(sharer)
    sim.wait(maker, (A,))
    sim.wait(sharer, (B,))
    sim.release(A)
    sim.launch(decode(3, B, freed=(5, 6)))
    with broken("I5"):
        sim.launch(decode(4, B, slot=1, freed=(3, 4)))


def test_i6_a_row_planned_after_its_end_was_committed():
    sim = device()
    first = prefill(1, text(A, left=1))
    sim.launch(first)
    assert sim.wait(first, (A,)).records[0].flags == Flags.LENGTH
    with broken("I6"):
        sim.launch(decode(2, A, slot=1))


@pytest.mark.parametrize("mask", ["none", "stale", "empty", "shape"])
def test_i7_masks(mask):
    sim = device()
    first = prefill(1, text(A, program="point", host=True))
    right = Walker.start(TABLE, "point", 20, 5).mask()
    masks = {"stale": TABLE.masks[0], "empty": np.zeros_like(right), "shape": right[:9]}
    sim.launch(first)
    with broken("I7"):
        if mask == "none":
            sim.wait(first, (A,))
        else:
            sim.finalize(first, {A: masks[mask]})


def test_i7_sampled_at_launch_or_before_the_commit_it_depends_on():
    sim = device()
    first = replace(prefill(1, text(A, host=True)), unsampled=frozenset())
    with broken("I7"):
        sim.launch(first)
    sim = device()
    first = prefill(1, text(A, host=True))
    mask = Walker.start(TABLE, "text", 20, 5).mask()
    sim.launch(first)
    sim.finalize(first, {A: mask})
    sim.launch(second := decode(2, A, slot=1, unsampled=(1,)))
    with broken("I7"):
        sim.finalize(second, {A: mask})


def test_i9_other_lives_of_a_row():
    sim = device()
    sim.launch(prefill(1, text(A)))
    with broken("I9"):
        sim.launch(decode(2, RowRef(1, 2), slot=1))
    sim = device()
    sim.launch(prefill(1, text(A)))
    with broken("I9"):
        sim.launch(prefill(2, text(RowRef(1, 2), (3, 4)), slot=1))
    sim = device()
    sim.launch(first := prefill(1, text(A)))
    sim.wait(first, (A,))
    sim.release(A)
    with broken("I9"):
        sim.launch(prefill(2, text(A, (3, 4)), slot=1))
    with broken("I11"):
        sim.launch(prefill(3, text(RowRef(1, 2), (5, 6)), slot=1))


def test_i11_nothing_is_asked_of_a_lost_device():
    sim = device(faults=(Fault("wait", 0, DeviceLost("gone")),))
    sim.launch(first := prefill(1, text(A)))
    with pytest.raises(DeviceLost):
        sim.wait(first, (A,))
    with broken("I11"):
        sim.launch(decode(2, A, slot=1))


def test_what_a_device_answers_is_judged_too():
    """A device that forgets to mute, speaks for others, or reads an unwritten buffer."""

    class Liar:
        def __init__(self, change):
            self.sim, self.limits, self.change = device(), device().limits, change
            self.launch, self.finalize, self.park, self.release = (
                self.sim.launch,
                self.sim.finalize,
                self.sim.park,
                self.sim.release,
            )

        def wait(self, step, rows):
            arrival = self.sim.wait(step, rows)
            return replace(arrival, records=tuple(self.change(r) for r in arrival.records))

    lies = {
        "I9": lambda r: replace(r, ref=RowRef(r.ref.row, 7)),
        "I6": lambda r: replace(r, flags=Flags.STOP),
        "I4": lambda r: replace(r, token=replace(r.token, id=-1)),
    }
    for invariant, lie in lies.items():
        liar = Refereed(Liar(lie), TABLE)
        liar.launch(first := prefill(1, text(A)))
        with broken(invariant):
            liar.wait(first, (A,))


def test_stale_memory_is_noticed_even_if_the_table_looks_right():
    sim = device()
    sim.launch(first := prefill(1, text(A)))
    sim.wait(first, (A,))
    sim._memory.poison((1,))
    with broken("I5"):
        sim.launch(decode(2, A, slot=1))


def test_results_land_when_the_timing_says():
    times = Timing(forward=3.0, sampling=0.5, copy=0.25, bookkeeping=1.0, prefill=5.0, launch=0.1)
    sim = device(timing=times)
    one, two = prefill(1, text(A)), decode(2, A, slot=1)
    sim.launch(one)
    sim.launch(two)
    first = sim.wait(one, (A,))
    assert (first.started, first.ended) == pytest.approx((0.1, 5.6))
    assert sim._clock.now() == pytest.approx(5.6 + 0.25 + 1.0)
    second = sim.wait(two, (A,))
    assert (second.started, second.ended) == pytest.approx((5.6, 9.1))
    assert sim._clock.now() == pytest.approx(9.1 + 0.25 + 1.0)


def test_a_fault_leaves_what_was_before_it_as_it_was():
    sim = device(faults=(Fault("launch", 1),))
    sim.launch(first := prefill(1, text(A)))
    with pytest.raises(StepFailed):
        sim.launch(decode(2, A, slot=1))
    sim.launch(third := decode(3, A, slot=1))
    for step in (first, third):
        assert sim.wait(step, (A,)).records[0].token is not None
