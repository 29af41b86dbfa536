"""The CUDA device's own code on a runtime without a GPU: what it refuses, what fails alone, what loses the device."""

from __future__ import annotations

import time

import pytest
import torch
from tests.device.rig import SPEC, TABLE, Rig, expected, picture
from tests.fakes.hash_model import HashModel
from tests.fakes.inline_runtime import InlineRuntime
from tests.fakes.inline_stage import inline_stage
from tests.fakes.scene import expected as right_answers
from tests.fakes.scene import mix_of_requests
from tests.fakes.verdict import judge

from gapless.config import CudaDeviceConfig, EngineConfig
from gapless.device.cuda import CudaDevice
from gapless.device.packet import Count
from gapless.device.pinned import Arena
from gapless.errors import DeviceLost, InvalidRequest, InvariantBroken, NotEnoughMemory, RequestFailed, StepFailed
from gapless.records import Flags, PageGrant, RowRecord, RowRef, StepKind


class Fragile(HashModel):
    """Fails in the next forward when told to."""

    failure: Exception | None = None

    def forward(self, x, positions, tables, cache):
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        return super().forward(x, positions, tables, cache)


def cuda_device(model=None, runtime=None, cuda=None, **sizes) -> CudaDevice:
    settings = {"max_rows": 8, "page_size": 4, "pages": 600, "depth": 2} | sizes
    cuda = cuda or CudaDeviceConfig(poison=True)
    device = CudaDevice(model or HashModel(SPEC), TABLE, EngineConfig(**settings), cuda, runtime or InlineRuntime())
    assert [stage.done for stage in device.prepare()] == list(range(device.plan.graphs))
    return device


@pytest.fixture
def room():
    model, runtime = Fragile(SPEC), InlineRuntime()
    device = cuda_device(model, runtime)
    yield model, runtime, device, Rig(device)
    device.close()


def test_results_land_when_they_are_waited_for_and_not_before(room):
    _, _, device, rig = room
    seq = rig.seq(max_tokens=20, lasts=3)
    step = rig.launch(rig.prefill_step([seq]), [seq])
    assert (device._slots[0].landed.host == -1).all()
    with pytest.raises(InvariantBroken, match="I4"):
        device.launch(rig.prefill_step([rig.seq(ids=(1, 8))], slot=0))
    rig.settle(step, [seq])
    rig.once(rig.decode_step([seq]), [seq])
    assert seq.tokens == expected(seq)[:2]


def test_times_go_on_and_never_back(room):
    _, _, device, rig = room
    seqs = [rig.seq(ids=(1, 8 + i), max_tokens=20, lasts=4) for i in range(2)]
    steps = [rig.launch(rig.prefill_step([s], slot=i), [s]) for i, s in enumerate(seqs)]
    arrivals = [device.wait(step, step.rows) for step in steps]
    for _ in range(3):
        step = rig.launch(rig.decode_step(seqs), seqs)
        arrivals.append(device.wait(step, step.rows))
    times = [t for arrival in arrivals for t in (arrival.started, arrival.ended)]
    assert times == sorted(times) and len(set(times)) == len(times)


def test_no_record_is_of_padding_and_padding_stays_what_it_is(room):
    """S-NUM-05: a batch that is padded to its bucket."""
    _, _, device, rig = room
    seqs = [rig.seq(ids=(1, 8 + i), max_tokens=20, lasts=3) for i in range(3)]
    rows = device.program.rows
    before = rows.counts[0].clone(), rows.reals[0].clone(), rows.pages[0].clone()
    rig.once(rig.prefill_step(seqs), seqs)
    for _ in range(2):
        rig.once(rig.decode_step(seqs), seqs)
    assert [s.tokens for s in seqs] == [expected(s)[:3] for s in seqs]
    after = rows.counts[0], rows.reals[0], rows.pages[0]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert device.graphs.replays == {"forward": 2, "tail": 3}


def test_a_failing_step_fails_alone_and_mutes_its_rows(room):
    model, _, device, rig = room
    lost, kept = rig.seq(max_tokens=30, lasts=4), rig.seq(ids=(1, 9), max_tokens=5, lasts=4)
    rig.once(rig.prefill_step([lost, kept]), [lost, kept])
    model.failure = ValueError("a bug in a kernel")
    bad = rig.launch(rig.decode_step([lost], slot=0), [lost])
    good = rig.launch(rig.decode_step([lost, kept], slot=1), [lost, kept])
    with pytest.raises(StepFailed, match="a bug in a kernel"):
        rig.settle(bad, [lost])
    arrival = device.wait(good, (lost.ref, kept.ref))
    assert arrival.records[0] == RowRecord(lost.ref, Flags.MUTED, None)
    rig.commit(kept, arrival.records[1])
    kept.refs = 0
    rig.play([kept], 2)
    assert kept.tokens == expected(kept)


def test_the_first_step_of_all_may_fail_and_its_slot_serves_again(room):
    model, _, device, rig = room
    model.failure = torch.OutOfMemoryError("CUDA out of memory")
    lost, kept = rig.seq(), rig.seq(ids=(1, 9), max_tokens=5, lasts=4)
    bad = rig.launch(rig.prefill_step([lost], slot=0), [lost])
    with pytest.raises(StepFailed, match="out of memory"):
        device.wait(bad, (lost.ref,))
    rig.once(rig.prefill_step([kept], slot=0), [kept])
    rig.play([kept], 2)
    assert kept.tokens == expected(kept)


def test_a_failed_step_takes_no_time(room):
    model, _, device, rig = room
    seq, lost = rig.seq(max_tokens=20, lasts=6), rig.seq(ids=(1, 9))
    rig.once(rig.prefill_step([seq]), [seq])
    for _ in range(3):
        before = device.wait(rig.launch(rig.decode_step([seq]), [seq]), (seq.ref,))
    model.failure = ValueError("no luck")
    with pytest.raises(StepFailed):
        device.wait(rig.launch(rig.prefill_step([lost]), [lost]), (lost.ref,))
    after = device.wait(rig.launch(rig.decode_step([seq]), [seq]), (seq.ref,))
    assert before.ended < after.started < after.ended
    assert len(device._watch._marks) == 0


def test_a_step_pauses_while_the_host_makes_its_masks(room):
    """The imaginary GPU's clock counts marks: it moves on by one each microsecond, and at nothing else."""
    _, runtime, device, rig = room
    free, held = rig.seq(max_tokens=20, lasts=9), rig.seq(ids=(1, 9), host_masked=True, max_tokens=20, lasts=9)
    seqs = [free, held]
    for number in range(3):
        step = rig.launch(rig.prefill_step(seqs) if not number else rig.decode_step(seqs), seqs)
        for _ in range(5):
            runtime.mark(runtime.event())
        device.finalize(step, {held.ref: held.walker.mask()})
        began = time.perf_counter()
        arrival = device.wait(step, (free.ref, held.ref))
        for seq, record in zip(seqs, arrival.records, strict=True):
            seq.refs -= 1
            rig.commit(seq, record)
        assert arrival.paused == pytest.approx(6e-6) and arrival.ended - arrival.started == pytest.approx(8e-6)
        assert began < arrival.landed <= time.perf_counter()
    alone = device.wait(rig.launch(rig.decode_step([free]), [free]), (free.ref,))
    assert alone.paused == 0 and alone.started == pytest.approx(arrival.ended + 1e-6)


def test_rows_that_cannot_be_muted_lose_the_device(room, monkeypatch):
    model, _, device, rig = room
    seq = rig.seq()
    model.failure = ValueError("a bug in a kernel")

    def full(refs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(device.program.rows, "finish", full)
    step = rig.launch(rig.prefill_step([seq]), [seq])
    with pytest.raises(DeviceLost, match="out of memory"):
        device.wait(step, (seq.ref,))


def test_pages_granted_beside_prompts_reach_the_tables(room):
    _, _, device, rig = room
    old, new = rig.seq(max_tokens=20, lasts=3), rig.seq(ids=(1, 9))
    rig.once(rig.prefill_step([old]), [old])
    page = rig.take(1)
    grant = PageGrant(old.ref.row, len(old.pages), page)
    step = rig.step(StepKind.PREFILL, [new], prefills=(rig.prefill(new),), grants=(grant,))
    rig.once(step, [new])
    assert device.program.rows.pages[old.ref.row, len(old.pages)] == page[0]


def test_a_token_that_was_fed_is_not_there_to_be_fed_again(room):
    _, _, device, rig = room
    free, held = rig.seq(max_tokens=20, lasts=3), rig.seq(ids=(1, 9), host_masked=True, max_tokens=20, lasts=3)
    step = rig.launch(rig.prefill_step([free, held]), [free, held])
    device.finalize(step, {held.ref: held.walker.mask()})
    rig.settle(step, [free, held])
    rig.launch(rig.decode_step([free, held]), [free, held])
    tokens = device.program.rows.counts[:, Count.TOKEN]
    assert tokens[free.ref.row] >= 0 and tokens[held.ref.row] == -1 and tokens[0] == 0


def test_a_failing_forward_fails_the_rows_parked_from_it(room):
    model, _, device, rig = room
    held, free = rig.seq(host_masked=True), rig.seq(ids=(1, 9))
    model.failure = ValueError("no luck")
    step = rig.launch(rig.prefill_step([held, free]), [held, free])
    device.park(step, {held.ref: 1})
    small = rig.parked_step(held, 1)
    device.finalize(small, {held.ref: held.walker.mask()})
    for waited, seq in ((step, free), (small, held)):
        with pytest.raises(StepFailed, match="no luck"):
            device.wait(waited, (seq.ref,))


@pytest.mark.parametrize("when", ["enqueued", "later"])
def test_an_error_the_gpu_cannot_leave_loses_the_device(room, when):
    model, runtime, device, rig = room
    seqs = [rig.seq(ids=(1, 8 + i), max_tokens=9) for i in range(2)]
    first = rig.launch(rig.prefill_step(seqs[:1], slot=0), seqs[:1])
    if when == "enqueued":
        rig.settle(first, seqs[:1])
        model.failure, runtime.sick = RuntimeError("CUDA error: an illegal memory access was encountered"), True
        first = rig.launch(rig.decode_step(seqs[:1], slot=0), seqs[:1])
    else:
        runtime.fails = RuntimeError("CUDA error: an illegal memory access was encountered")
    second = rig.launch(rig.prefill_step(seqs[1:], slot=1), seqs[1:])
    for step, seq in ((first, seqs[0]), (second, seqs[1])):
        with pytest.raises(DeviceLost, match="illegal memory access"):
            device.wait(step, (seq.ref,))
    device.close()
    device.close()


def test_after_close_everything_says_so(room):
    _, _, device, rig = room
    seq = rig.seq()
    step = rig.launch(rig.prefill_step([seq]), [seq])
    device.close()
    with pytest.raises(DeviceLost, match="closed"):
        device.wait(step, (seq.ref,))
    with pytest.raises(DeviceLost, match="closed"):
        device.launch(rig.decode_step([seq], slot=1))
    device.release(RowRef(1, 1))
    device.close()


@pytest.mark.parametrize("host", [0.0, 0.6])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_faults_through_the_engine_fail_their_riders_alone(depth, host):
    for at in (3, 20):
        entries = mix_of_requests(at, 10, host=host, cancels=0.0, spread=10)
        right = right_answers(SPEC, entries)
        model = Fragile(SPEC)
        with inline_stage(model, depth) as (stage, device):

            def break_it(tick: int, model: Fragile = model, at: int = at) -> None:
                model.failure = ValueError("a bug") if tick == at else model.failure

            stage.before_tick = break_it
            stage.play(entries)
            device.audit()
            for i, heard in stage.heard.items():
                judge(heard, right[i], (RequestFailed,))
            lost = sum(heard.finish.error is not None for heard in stage.heard.values())
            assert model.failure is None, "the fault never struck"
            assert lost + stage.engine.counters.retried > 0, "the fault hurt nobody"
            assert lost < len(entries)


def test_a_picture_waits_for_room_and_a_larger_one_makes_room():
    runtime = InlineRuntime()
    arena = Arena(runtime, 300)
    for seed in range(4):  # 96 bytes each, aligned to 256: one fits at a time
        sent = arena.send(picture(seed).crops, runtime.event())
        assert sent.tolist() == picture(seed).crops.tolist()
        arena.release()
    assert sum(region.read.waited for region in arena._regions) == 0 and len(arena._regions) == 1
    large = picture(9).crops.repeat(8, axis=0)
    assert arena.send(large, runtime.event()).tolist() == large.tolist()
    assert arena.size == large.nbytes and runtime.uploads == 5


def test_an_arena_that_cannot_grow_serves_on_as_it_was():
    runtime = InlineRuntime()
    arena, small = Arena(runtime, 300), picture(1).crops
    pinned = runtime.pinned
    runtime.pinned = lambda shape, dtype: (_ for _ in ()).throw(MemoryError("no more pinned memory"))
    with pytest.raises(MemoryError):
        arena.send(small.repeat(8, axis=0), runtime.event())
    runtime.pinned = pinned
    for _ in range(5):
        assert arena.send(small, runtime.event()).tolist() == small.tolist()
        arena.release()
    assert arena.size == 300


def test_too_little_memory_is_told_before_the_cache_is_made():
    """S-MEM-03."""
    with pytest.raises(NotEnoughMemory, match=r"0\.50 GB free after the weights"):
        cuda_device(runtime=InlineRuntime(memory_of=(5 * 10**8, 10**9)))


def test_the_plan_counts_slots_for_adapters_and_the_empty_one():
    device = cuda_device(adapters=8, adapter_rank=2)
    assert device.plan.adapters == 9 * 8 and device.limits.adapters == 8
    device.close()


def test_slots_for_adapters_that_do_not_fit_are_told_before_they_are_made():
    class Wide(HashModel):
        def adapter_bytes(self, rank):
            return rank * 10**8

        def new_adapters(self, slots, rank):
            raise AssertionError("they would have been made")

    runtime = InlineRuntime(memory_of=(17 * 10**8, 2 * 10**9))
    with pytest.raises(NotEnoughMemory, match=r"take 1\.80 GB .* room for 1\.70 GB; lower max_adapters"):
        cuda_device(Wide(SPEC), runtime, adapters=8, adapter_rank=2)


def test_a_step_that_does_not_fit_is_told_with_the_numbers():
    class Large(HashModel):
        def forward(self, x, positions, tables, cache):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(NotEnoughMemory, match=r"max_rows = 8 .* 7\.00 of 8\.00 GB were free .* lower max_rows"):
        cuda_device(Large(SPEC), InlineRuntime(memory_of=(7 * 10**9, 8 * 10**9)))


def test_buckets_that_hold_no_full_step_are_refused():
    with pytest.raises(InvalidRequest, match="hold no step of max_rows = 8"):
        cuda_device(cuda=CudaDeviceConfig(buckets=(4,)))


def test_the_plan_counts_what_was_captured():
    runtime = InlineRuntime()
    device = cuda_device(runtime=runtime, cuda=CudaDeviceConfig(buckets=(2, 8)))
    assert device.plan.graphs == runtime.captured == 2 * 2 + 2 * 2 * 8 + 2 * 3 + 3
    assert "45 graphs" in str(device.plan)
    device.close()
    assert cuda_device(cuda=CudaDeviceConfig(graphs=False)).plan.graphs == 0
