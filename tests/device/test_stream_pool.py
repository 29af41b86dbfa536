"""Streams go from engine to engine: one owner at a time, back once at every end, and not from a GPU that was lost."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
import torch
from tests.device.rig import SPEC, TABLE, Rig
from tests.fakes.hash_model import HashModel
from tests.fakes.inline_runtime import InlineRuntime

from gapless.config import CudaDeviceConfig, EngineConfig
from gapless.device import runtime as runtime_module
from gapless.device.cuda import CudaDevice
from gapless.device.runtime import CudaRuntime
from gapless.device.stream_pool import StreamPool
from gapless.errors import DeviceLost, InvariantBroken, NotEnoughMemory

BACK = ["settle", "give back"]


@dataclass(eq=False)
class FakeStream:
    device: object


@dataclass
class FakeCuda:
    made: list[FakeStream] = field(default_factory=list)

    def stream(self, device: object) -> FakeStream:
        self.made.append(FakeStream(device))
        return self.made[-1]


@pytest.fixture
def cuda(monkeypatch) -> FakeCuda:
    """As much of CUDA as a pool and a runtime ask for; GPU 1 is the current one."""
    fake = FakeCuda()
    monkeypatch.setattr(torch.cuda, "Stream", fake.stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", str)
    monkeypatch.setattr(runtime_module, "streams", StreamPool())
    return fake


def test_ten_engines_one_after_the_other_share_three_streams(cuda):
    for _ in range(10):
        CudaRuntime(torch.device("cuda:0")).give_back()
    assert len(cuda.made) == 3


def test_engines_that_live_together_share_nothing_and_gpus_neither(cuda):
    pool = StreamPool()
    together = [pool.take(torch.device("cuda:0")) for _ in range(4)] + [pool.take(torch.device("cuda:1"))]
    owned = [stream for triple in together for stream in (triple.compute, triple.copy, triple.upload)]
    assert len(set(map(id, owned))) == 15 == len(cuda.made)
    pool.give_back(together[4])
    assert pool.take(torch.device("cuda:0")).index == 0 and len(cuda.made) == 18
    assert pool.take(torch.device("cuda")) is together[4]  # without a number: the current GPU
    for triple in together[:4]:
        pool.give_back(triple)
    assert {id(pool.take(torch.device("cuda:0"))) for _ in range(4)} == {id(triple) for triple in together[:4]}


@pytest.mark.usefixtures("cuda")
def test_streams_come_back_once():
    pool = StreamPool()
    triple = pool.take(torch.device("cuda:0"))
    pool.give_back(triple)
    with pytest.raises(InvariantBroken, match="twice"):
        pool.give_back(triple)


def test_threads_never_hold_the_same_streams(cuda):
    pool, held, doubles = StreamPool(), set(), []

    def engine() -> None:
        for _ in range(300):
            triple = pool.take(torch.device("cuda:0"))
            if triple in held:
                doubles.append(triple)
            held.add(triple)
            held.remove(triple)
            pool.give_back(triple)

    threads = [threading.Thread(target=engine) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not doubles and len(cuda.made) <= 3 * len(threads)


# -- the ends of a device --------------------------------------------------------------------------------------------


def device_on(runtime, model=None) -> CudaDevice:
    config = EngineConfig(max_rows=8, page_size=4, pages=600)
    return CudaDevice(model or HashModel(SPEC), TABLE, config, CudaDeviceConfig(), runtime)


def test_a_device_that_closes_gives_its_streams_back_once_and_last():
    runtime = InlineRuntime()
    device = device_on(runtime)
    rig = Rig(device)
    seq = rig.seq(max_tokens=20, lasts=3)
    rig.once(rig.prefill_step([seq]), [seq])
    assert "give back" not in runtime.calls
    device.close()
    device.close()
    assert runtime.calls[-2:] == BACK and runtime.calls.count("give back") == 1


def test_a_start_that_fails_gives_its_streams_back():
    runtime = InlineRuntime(memory_of=(5 * 10**8, 10**9))
    with pytest.raises(NotEnoughMemory):
        device_on(runtime)
    assert runtime.calls[-2:] == BACK and runtime.calls.count("give back") == 1


def test_a_capture_that_fails_leaves_the_streams_to_close():
    runtime = InlineRuntime()
    device = device_on(runtime)

    def full(work):
        raise torch.OutOfMemoryError("CUDA out of memory")

    runtime.capture = full
    with pytest.raises(NotEnoughMemory):
        list(device.prepare())
    assert "give back" not in runtime.calls
    device.close()
    assert runtime.calls[-2:] == BACK and runtime.calls.count("give back") == 1


@pytest.mark.parametrize("sick_at_the_end", [True, False])
def test_streams_of_a_lost_gpu_are_nobodys_again(sick_at_the_end):
    runtime = InlineRuntime()
    device = device_on(runtime)
    rig = Rig(device)
    seq = rig.seq()
    step = rig.launch(rig.prefill_step([seq]), [seq])
    runtime.fails = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(DeviceLost):
        device.wait(step, (seq.ref,))
    runtime.sick = sick_at_the_end
    device.close()
    assert "give back" not in runtime.calls


def test_a_start_on_a_gpu_that_is_lost_gives_nothing_back():
    class Ill(HashModel):
        def forward(self, x, positions, tables, cache):
            runtime.sick = True
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    runtime = InlineRuntime()
    with pytest.raises(RuntimeError, match="illegal"):
        device_on(runtime, Ill(SPEC))
    assert "give back" not in runtime.calls
