"""Pictures' embeddings in host memory, on the CPU device and on the CUDA device's own code: the same bits come back, of
each picture vision is computed once a step, and no launch waits for a copy."""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.device.rig import SPEC, TABLE, Rig, Seq, expected, host_device, picture
from tests.fakes.hash_model import HashModel
from tests.fakes.hash_tower import HashTower, TowerModel
from tests.fakes.inline_runtime import InlineEvent, InlineRuntime

from gapless.config import CudaDeviceConfig, EngineConfig
from gapless.device import program
from gapless.device.cuda import CudaDevice
from gapless.device.pinned import Arena
from gapless.errors import NotEnoughMemory
from gapless.observe.recording import record
from gapless.records import HostPlace, Step, StepKind

SLOTS = 3
BYTES = SLOTS * HashModel(SPEC).picture_bytes


class Counted(HashModel):
    """Says how many pictures were encoded."""

    encoded = 0

    def encode_picture(self, crops, tiling):
        self.encoded += 1
        return super().encode_picture(crops, tiling)


class CountedTower(Counted):
    tower = TowerModel.tower


def cuda_device(model, arena=2**16, runtime=None):
    config = EngineConfig(max_rows=20, page_size=4, pages=600, depth=2, picture_cache_host=BYTES)
    cuda = CudaDeviceConfig(poison=True, arena_bytes=arena)
    device = CudaDevice(model, TABLE, config, cuda, runtime or InlineRuntime())
    for _ in device.prepare():
        pass
    model.encoded = 0
    return device


@pytest.fixture(params=["host", "cuda", "tower"])
def room(request):
    model = CountedTower(SPEC) if request.param == "tower" else Counted(SPEC)
    device = host_device(model, picture_cache_host=BYTES) if request.param == "host" else cuda_device(model)
    yield model, device, Rig(device)
    device.close()


def kept(device):
    return device._uploads.kept if isinstance(device, CudaDevice) else device._streams.executor.kept


def step_of(rig: Rig, seqs: list[Seq], places: list[HostPlace | None], slot: int = 0) -> Step:
    prefills = [replace(rig.prefill(seq), places=(place,)) for seq, place in zip(seqs, places, strict=True)]
    return rig.step(StepKind.PREFILL, seqs, slot, prefills=tuple(prefills))


def test_what_was_kept_comes_back_and_vision_is_skipped(room):
    model, device, rig = room
    first = [rig.seq(ids=(9, n), picture=picture(which)) for n, which in ((1, 1), (2, 1), (3, 2))]
    rig.once(step_of(rig, first, [HostPlace(1, False), None, HostPlace(2, False)]), first)
    assert model.encoded == 2, "one of two pictures is shown twice"
    for slot, which in ((1, 1), (2, 2)):
        shown = picture(which)
        right = HashModel.encode_picture(model, torch.from_numpy(shown.crops), shown.tiling)
        assert torch.equal(kept(device)[slot], right)
    again = [
        rig.seq(ids=(9, n), picture=picture(which)) for n, which in ((4, 1), (5, 2), (6, 1))
    ]  # the last has no place of its own
    rig.once(step_of(rig, again, [HostPlace(1, True), HostPlace(2, True), None]), again)
    assert model.encoded == 2
    rig.play([*first, *again], 2)
    assert [seq.tokens for seq in (*first, *again)] == [expected(seq) for seq in (*first, *again)]


def test_what_is_there_is_believed_whatever_the_pixels_are(room):
    """So it does come from the slot; and beside it a new picture is encoded and kept."""
    _, _, rig = room
    one = rig.seq(ids=(9, 1), picture=picture(1))
    rig.once(step_of(rig, [one], [HostPlace(0, False)]), [one])
    wrong, new = rig.seq(ids=(9, 1), picture=picture(2)), rig.seq(ids=(9, 1), picture=picture(3))
    rig.once(step_of(rig, [wrong, new], [HostPlace(0, True), HostPlace(1, False)]), [wrong, new])
    assert wrong.tokens == one.tokens[:1] and new.tokens == expected(new)[:1]
    again = rig.seq(ids=(9, 1), picture=picture(3))
    rig.once(step_of(rig, [again], [HostPlace(1, True)]), [again])
    assert again.tokens == new.tokens[:1]


def test_a_launch_waits_for_no_copy_and_steps_in_flight_may_read_one_slot(monkeypatch):
    model = CountedTower(SPEC)
    device = cuda_device(model)
    rig, launching = Rig(device), False
    synchronize = InlineEvent.synchronize

    def only_in_wait(self):
        assert not launching, "the loop's thread waits for the GPU"
        synchronize(self)

    monkeypatch.setattr(InlineEvent, "synchronize", only_in_wait)
    first = [rig.seq(ids=(9, 1), picture=picture(1))]
    steps = [(step_of(rig, first, [HostPlace(0, False)]), first)]
    for step, seqs in steps:
        launching = True
        rig.launch(step, seqs)
        launching = False
        assert not kept(device)[0].any(), "it lands when the step does"
        rig.settle(step, seqs)
    for slot in (0, 1):
        seqs = [rig.seq(ids=(9, 2 + slot), picture=picture(1))]
        steps.append((step_of(rig, seqs, [HostPlace(0, True)], slot), seqs))
        launching = True
        rig.launch(*steps[-1])
        launching = False
    for step, seqs in steps[1:]:
        rig.settle(step, seqs)
        assert seqs[0].tokens == expected(seqs[0])[:1]
    assert model.encoded == 1
    device.close()


def test_what_is_being_copied_away_lives_until_it_has_landed():
    class Watching(InlineRuntime):
        def copy_out(self, source, *more):
            sources.append(weakref.ref(source))
            super().copy_out(source, *more)

    sources = []
    device = cuda_device(Counted(SPEC), runtime=Watching())
    rig = Rig(device)
    for number in range(2):
        seqs = [rig.seq(ids=(9, number), picture=picture(number))]
        step = rig.launch(step_of(rig, seqs, [HostPlace(number, False)]), seqs)
        assert all(source() is not None for source in sources[-2:]), "embeddings and lines are on their way"
        rig.settle(step, seqs)
    assert sources[0]() is None, "and no longer than until their slot is used again"
    device.close()


def test_what_is_brought_lies_beside_what_was_sent_before_it():
    runtime = InlineRuntime()
    arena, kept = Arena(runtime, 4096), [runtime.pinned((6, 8), torch.bfloat16).normal_() for _ in range(3)]
    sent = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3)
    found = [arena.bring(kept[0], runtime.event()), arena.send(sent, runtime.event())]
    found += [arena.bring(one, runtime.event()) for one in kept[1:]]
    assert np.array_equal(found.pop(1).numpy(), sent)
    assert all(torch.equal(one, right) and one.dtype is right.dtype for one, right in zip(found, kept, strict=True))


def test_an_arena_of_one_picture_passes_many():
    model = Counted(SPEC)
    device = cuda_device(model, arena=256)
    rig = Rig(device)
    first = [rig.seq(ids=(9, n), picture=picture(n)) for n in range(SLOTS)]
    rig.once(step_of(rig, first, [HostPlace(n, False) for n in range(SLOTS)]), first)
    again = [rig.seq(ids=(9, n), picture=picture(n)) for n in range(SLOTS)]
    rig.once(step_of(rig, again, [HostPlace(n, True) for n in range(SLOTS)]), again)
    assert [seq.tokens for seq in again] == [expected(seq)[:1] for seq in again] and model.encoded == SLOTS
    device.close()


def test_a_copy_to_host_memory_is_on_the_timeline_of_its_step():
    with record():
        device = cuda_device(Counted(SPEC))
    rig = Rig(device)
    one = [rig.seq(ids=(9, 1), picture=picture(1))]
    step = rig.launch(step_of(rig, one, [HostPlace(0, False)]), one)
    names = [span.name for span in device.wait(step, step.rows).spans]
    assert names.count("copy") == 2 and names.count("upload") == 1
    device.close()


def test_memory_comes_in_blocks_and_what_cannot_be_had_is_told(monkeypatch):
    asked = []

    class Short(InlineRuntime):
        def pinned(self, shape, dtype):
            asked.append((shape, dtype))
            if len(shape) == 3 and shape[0] == 1:
                raise NotEnoughMemory("no more of it")
            return super().pinned(shape, dtype)

    monkeypatch.setattr(program, "HOST_BLOCK", 2 * HashModel(SPEC).picture_bytes + 5)
    with pytest.raises(NotEnoughMemory, match=r"picture_cache_host of 0\.00 GB .*no more of it.*lower it") as raised:
        cuda_device(Counted(SPEC), runtime=Short())
    assert raised.value.param == "picture_cache_host"
    shape = (SPEC.prefix - 1, 2)
    assert asked[-2:] == [((2, *shape), torch.int64), ((1, *shape), torch.int64)]
    assert isinstance(TowerModel(SPEC).tower, HashTower)
