"""The host device as a machine: order, poison, stale reads, failures, closing. No clock decides anything."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from tests.device.gated import PLAIN
from tests.device.rig import SPEC, Rig, expected, host_device, picture
from tests.fakes import hash_language as lang
from tests.fakes.hash_model import HashModel

from gapless.config import HostDeviceConfig
from gapless.device.packet import Count
from gapless.errors import InvariantBroken, StepFailed
from gapless.records import POISON, Flags, RowRecord, RowRef, Step, StepKind


def test_calls_return_while_the_device_works_and_wait_blocks(gated):
    model, device = gated
    rig = Rig(device)
    seq, held = rig.seq(lasts=2), rig.seq(ids=(1, 8), host_masked=True)
    model.gate.clear()
    first = rig.launch(rig.prefill_step([seq, held]), [seq, held])
    device.park(first, {held.ref: 0})
    second = rig.launch(rig.decode_step([seq], slot=1), [seq])
    device.finalize(rig.parked_step(held, 0), {held.ref: held.walker.mask()})
    device.release(RowRef(9, 1))
    order: list[str] = []

    def waits() -> None:
        rig.settle(first, [seq])
        order.append("landed")

    waiter = threading.Thread(target=waits)
    waiter.start()
    assert model.entered.wait(30)
    order.append("opened")
    model.gate.set()
    waiter.join(30)
    assert order == ["opened", "landed"]
    rig.settle(second, [seq])
    assert seq.tokens == expected(seq)[:2]
    assert model.threads == {"gapless-compute"}


def test_what_was_enqueued_is_not_touched_by_later_writes(gated):
    """I10, S-CON-07: masks and pictures may be overwritten as soon as the call is back."""
    model, device = gated
    rig = Rig(device)
    seq = rig.seq("text", (1, 8), picture=picture(1), host_masked=True)
    answer = expected(seq)[0]
    model.gate.clear()
    step = rig.launch(rig.prefill_step([seq]), [seq])
    mask = seq.walker.mask().copy()
    device.finalize(step, {seq.ref: mask})
    mask[:] = False
    seq.picture.crops[:] = 0
    model.gate.set()
    rig.settle(step, [seq])
    assert seq.tokens == [answer]


def test_arrivals_own_their_values():
    """I4: what one step brought does not change when its slot is used again."""
    device = host_device(HashModel(SPEC))
    rig = Rig(device)
    seq = rig.seq(max_tokens=20, top_logprobs=20, lasts=5)
    arrivals = []
    step = rig.launch(rig.prefill_step([seq]), [seq])
    for _ in range(4):
        arrival = device.wait(step, (seq.ref,))
        arrivals.append((arrival, repr(arrival)))
        step = rig.launch(rig.decode_step([seq]), [seq])
    device.wait(step, (seq.ref,))
    assert all(repr(arrival) == before for arrival, before in arrivals)
    assert [a.records[0].token for a, _ in arrivals] == expected(seq)[:4]
    assert all(a.started <= a.ended for a, _ in arrivals)
    assert all(a.ended <= b.started for (a, _), (b, _) in itertools.pairwise(arrivals))
    device.close()


def test_landing_buffers_are_poisoned_at_launch_and_hold_only_their_own_step(gated):
    """S-CON-07: two steps in flight never share a buffer."""
    model, device = gated
    device._flights.poison = True
    rig = Rig(device)
    seq = rig.seq(max_tokens=20, lasts=3)
    rig.once(rig.prefill_step([seq]), [seq])
    landing = device._flights.slots[0]
    assert int(landing.host[0, 0]) == 1
    assert not np.shares_memory(landing.host, device._slots[0])
    model.gate.clear()
    model.entered.clear()
    step = rig.launch(rig.decode_step([seq]), [seq])
    assert model.entered.wait(30)
    assert np.all(landing.host == POISON)
    model.gate.set()
    for landed in device._flights.due(step, (seq.ref,)).landed:
        assert landed.wait(30)
    landing.host[0, 0] = step.id - 1  # as if an older step's line were still there
    with pytest.raises(InvariantBroken, match="I4"):
        device.wait(step, (seq.ref,))


def test_a_record_of_another_life_stops_the_engine():
    """I9: the record echoes the row's epoch as the device knows it."""
    device = host_device(HashModel(SPEC), PLAIN)
    rig = Rig(device)
    seq = rig.seq(max_tokens=20, lasts=3)
    rig.once(rig.prefill_step([seq]), [seq])
    seq.ref = RowRef(seq.ref.row, seq.ref.epoch + 1)
    step = rig.launch(rig.decode_step([seq]), [seq])
    with pytest.raises(InvariantBroken, match="I9"):
        device.wait(step, (seq.ref,))
    device.close()


def test_a_slot_is_not_launched_into_before_its_records_were_read():
    device = host_device(HashModel(SPEC))
    rig = Rig(device)
    seq, other = rig.seq(max_tokens=20), rig.seq(ids=(1, 8), max_tokens=20, lasts=2)
    step = rig.launch(rig.prefill_step([seq]), [seq])
    with pytest.raises(InvariantBroken, match="I4"):
        device.launch(rig.prefill_step([other], slot=0))
    rig.settle(step, [seq])
    rig.once(rig.prefill_step([other], slot=0), [other])
    assert other.tokens == expected(other)[:1]
    device.close()


def test_rows_wait_for_their_masks_and_nothing_else_samples_them():
    device = host_device(HashModel(SPEC))
    rig = Rig(device)
    held, free = rig.seq(host_masked=True, lasts=2), rig.seq(ids=(1, 9), max_tokens=20)
    step = rig.launch(rig.prefill_step([held, free]), [held, free])
    with pytest.raises(InvariantBroken, match="I7"):
        device.wait(step, (held.ref, free.ref))
    with pytest.raises(InvariantBroken, match="I7"):
        device.finalize(step, {free.ref: None})
    with pytest.raises(InvariantBroken, match="I7"):
        device.park(step, {free.ref: 0})
    device.finalize(step, {held.ref: held.walker.mask()})
    rig.settle(step, [held, free])
    open_step = Step(99, StepKind.DECODE, (held.ref,), 0)
    with pytest.raises(InvariantBroken, match="I7"):
        device.launch(open_step)
    assert held.tokens == expected(held)[:1]
    device.close()


def test_logits_that_were_overwritten_cannot_be_sampled():
    device = host_device(HashModel(SPEC))
    rig = Rig(device)
    held, free = rig.seq(host_masked=True), rig.seq(ids=(1, 9), max_tokens=20, lasts=3)
    step = rig.launch(rig.prefill_step([held, free]), [held, free])
    rig.launch(rig.decode_step([free], slot=1), [free])
    with pytest.raises(InvariantBroken, match="park first"):
        device.finalize(step, {held.ref: held.walker.mask()})
    with pytest.raises(InvariantBroken, match="park first"):
        device.park(step, {held.ref: 0})
    device.close()


def test_lanes_hold_one_row_until_it_was_read():
    device = host_device(HashModel(SPEC))
    rig = Rig(device)
    one, two = rig.seq(host_masked=True), rig.seq(ids=(1, 9), host_masked=True)
    step = rig.launch(rig.prefill_step([one, two]), [one, two])
    device.park(step, {one.ref: 4})
    with pytest.raises(InvariantBroken, match="lane 4"):
        device.park(step, {two.ref: 4})
    device.park(step, {two.ref: 5})
    with pytest.raises(InvariantBroken, match="lane 4"):
        device.finalize(rig.parked_step(two, 4), {two.ref: two.walker.mask()})
    for seq, lane in ((two, 5), (one, 4)):
        small = rig.parked_step(seq, lane)
        device.finalize(small, {seq.ref: seq.walker.mask()})
        rig.settle(small, [seq])
        assert seq.tokens == expected(seq)[:1]
    third = rig.seq(ids=(1, 7), host_masked=True)
    with pytest.raises(InvariantBroken, match="I4"):  # all its rows are parked, but it was not waited for
        rig.launch(rig.prefill_step([third]), [third])
    rig.settle(step, [])
    step = rig.launch(rig.prefill_step([third]), [third])
    device.park(step, {third.ref: 4})
    device.finalize(small := rig.parked_step(third, 4), {third.ref: None})
    assert rig.settle(small, [third]) == [RowRecord(third.ref, Flags.MUTED, None)]
    device.close()


def test_a_row_whose_parking_failed_may_still_be_closed():
    device = host_device(HashModel(SPEC))
    rig = Rig(device)
    held, free = rig.seq(host_masked=True), rig.seq(ids=(1, 9))
    step = rig.launch(rig.prefill_step([held, free]), [held, free])
    device.finalize(small := rig.parked_step(held, 2), {held.ref: None})  # park was never called
    assert device.wait(small, (held.ref,)).records[0].flags == Flags.MUTED
    rig.settle(step, [free])
    device.close()


def test_steps_that_cannot_be_meant_are_refused_at_once():
    device = host_device(HashModel(SPEC))
    rig = Rig(device)
    seq = rig.seq(ids=())
    with pytest.raises(InvariantBroken, match="no ids"):
        device.launch(rig.prefill_step([seq]))
    with pytest.raises(InvariantBroken, match="finalize it instead"):
        device.launch(rig.parked_step(seq, 0))
    with pytest.raises(InvariantBroken, match="not in flight"):
        device.wait(rig.decode_step([seq]), (seq.ref,))
    ready = rig.seq(ids=(1, 2))
    rig.once(rig.prefill_step([ready]), [ready])
    assert ready.tokens == expected(ready)[:1]
    device.close()


def test_done_rows_are_muted_and_leave_pages_and_padding_alone():
    device = host_device(HashModel(SPEC))
    rig = Rig(device)
    done, live = rig.seq("point", (1, 8), max_tokens=1), rig.seq(ids=(1, 9), max_tokens=20, lasts=5)
    rig.once(rig.prefill_step([done, live]), [done, live])
    assert done.ended
    executor = device._streams.executor
    rows, memory = executor.program.rows, executor.program.cache.words
    before = rows.counts[0].clone(), rows.reals[0].clone(), rows.counts[done.ref.row].clone(), memory[done.pages]
    for _ in range(3):
        records = rig.once(rig.decode_step([done, live]), [done, live])
        assert records[0] == RowRecord(done.ref, Flags.MUTED, None)
    after = rows.counts[0], rows.reals[0], rows.counts[done.ref.row], memory[done.pages]
    for a, b, name in zip(before, after, ("padding", "padding", "done row", "its pages"), strict=True):
        same = a == b
        if name == "done row":
            same[Count.TOKEN] = True  # the cell is poisoned when it is handed over
        assert bool(same.all()), name
    assert int(rows.counts[0, Count.TOKEN]) == 0
    assert live.tokens == expected(live)[:4]
    device.close()


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_nonfinite_logits_end_their_row_only(temperature):
    model = HashModel(SPEC)
    device = host_device(model)
    rig = Rig(device)
    seqs = [rig.seq(ids=(1, 8 + i), max_tokens=9, temperature=temperature, seed=i) for i in range(3)]
    reading = lang.Reading(SPEC)
    for token_id in seqs[1].ids:
        reading.feed(token_id)
    model.curse([reading.hidden])
    records = rig.once(rig.prefill_step(seqs), seqs)
    assert records[1] == RowRecord(seqs[1].ref, Flags.NONFINITE, None)
    rig.play([seqs[0], seqs[2]], 2)
    assert rig.once(rig.decode_step([seqs[1]]), [seqs[1]])[0].flags == Flags.MUTED
    assert [s.tokens for s in (seqs[0], seqs[2])] == [expected(s) for s in (seqs[0], seqs[2])]
    device.close()


def test_a_failing_step_fails_alone_and_mutes_its_rows(gated):
    model, device = gated
    rig = Rig(device)
    lost, kept = rig.seq(max_tokens=30, lasts=4), rig.seq(ids=(1, 9), max_tokens=5, lasts=4)
    rig.once(rig.prefill_step([lost, kept]), [lost, kept])
    model.failure = RuntimeError("a broken kernel")
    model.gate.clear()
    bad = rig.launch(rig.decode_step([lost], slot=0), [lost])
    good = rig.launch(rig.decode_step([lost, kept], slot=1), [lost, kept])
    model.gate.set()
    with pytest.raises(StepFailed, match="a broken kernel") as raised:
        rig.settle(bad, [lost])
    assert isinstance(raised.value.__cause__, RuntimeError)
    arrival = device.wait(good, (lost.ref, kept.ref))
    assert arrival.records[0] == RowRecord(lost.ref, Flags.MUTED, None)
    rig.commit(kept, arrival.records[1])
    kept.refs = 0
    rig.play([kept], 2)
    assert kept.tokens == expected(kept)


def test_a_failing_forward_fails_the_rows_parked_from_it(gated):
    model, device = gated
    rig = Rig(device)
    held, free = rig.seq(host_masked=True), rig.seq(ids=(1, 9))
    model.failure = ValueError("no luck")
    step = rig.launch(rig.prefill_step([held, free]), [held, free])
    device.park(step, {held.ref: 1})
    small = rig.parked_step(held, 1)
    device.finalize(small, {held.ref: held.walker.mask()})
    with pytest.raises(StepFailed, match="no luck"):
        device.wait(step, (free.ref,))
    with pytest.raises(StepFailed, match="no luck"):
        device.wait(small, (held.ref,))
    later = rig.seq(ids=(1, 7), max_tokens=3)
    rig.once(rig.prefill_step([later]), [later])
    rig.play([later], 2)
    assert later.tokens == expected(later)


def test_a_row_without_a_page_is_noticed():
    device = host_device(HashModel(SPEC))
    rig = Rig(device)
    seq = rig.seq(ids=(1, 8, 9, 10), max_tokens=20, lasts=3)
    prefill = rig.prefill(seq, room=0)
    rig.once(rig.step(StepKind.PREFILL, [seq], prefills=(prefill,)), [seq])
    step = rig.launch(rig.decode_step([seq]), [seq])
    with pytest.raises(InvariantBroken, match="I5: without a page"):
        device.wait(step, (seq.ref,))
    device.close()


def test_jitter_changes_times_and_nothing_else():
    answers = []
    for seed in (None, 1, 2):
        device = host_device(HashModel(SPEC), HostDeviceConfig(1, True, seed, 0.4, 0.1))
        rig = Rig(device)
        seqs = [rig.seq("detect", (1, 8 + i), temperature=3.0, seed=i, top_logprobs=2) for i in range(4)]
        rig.once(rig.prefill_step(seqs), seqs)
        rig.play(seqs, 2)
        answers.append([s.tokens for s in seqs])
        device.close()
    assert answers[0] == answers[1] == answers[2]
