"""Kernels of a decode step compiled in other processes, which have no GPU and leave them in Triton's cache on disk.

In: dimensions and choices. Out: nothing; a kernel that could not be compiled here is compiled, or fails, where it is
launched. Compiling is Python's work for the most part, so threads would not help. A process launches steps as usual,
over tensors without memory, under a driver that answers for the GPU and starts nothing.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from gapless.kernels.fused import Decoder
from gapless.kernels.triton.choices import Choice, Dims, Gpu
from gapless.kernels.triton.decode import TritonStep

WARP = 32
SLOW = "torch._dynamo"
"""What torch imports for the first tensor without memory, in seconds: once, not in every process."""


@dataclass(frozen=True, slots=True)
class Job:
    """A step of `rows` rows with a choice; the decoder is made anew in each process."""

    make: Callable[[torch.device], Decoder]
    capability: tuple[int, int]
    gpu: Gpu
    rows: int
    page: int
    choice: Choice


class Compilers:
    """So many processes, forked from one that has imported this and never used CUDA. They start at once."""

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, SLOW])
        self._pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin)
        for _ in range(processes):
            self._pool.submit(_begin)

    def compile(self, jobs: Sequence[Job]) -> None:
        """All of them; what fails is left to whoever launches it."""
        with suppress(BrokenProcessPool):
            list(self._pool.map(_compile, jobs))

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)


class _NoGpu:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self._target = GPUTarget("cuda", 10 * capability[0] + capability[1], WARP)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


def _begin() -> None:
    """What a process does first. It is one of many: torch's own threads would be in their way, and Ctrl-C is heard by
    whoever started them."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _compile(job: Job) -> None:
    """In a process of its own."""
    with suppress(Exception):
        compile_here(job)


@torch.inference_mode()
def compile_here(job: Job) -> None:
    """Compile one step's kernels in this process, which cannot launch any from then on."""
    triton.runtime.driver.set_active(_NoGpu(job.capability))
    JITFunction.__getitem__ = _warming
    nowhere = torch.device("meta")
    step = TritonStep(job.make(nowhere), job.gpu).with_choices({job.rows: job.choice})
    dims: Dims = step.dims
    wide = dims.dim // dims.heads
    x = torch.empty(job.rows, dims.dim, dtype=step.dtype, device=nowhere)
    positions = torch.empty(job.rows, dtype=torch.int64, device=nowhere)
    tables = torch.empty(job.rows, job.page, dtype=torch.int64, device=nowhere)
    keys = torch.empty(1, 2, dims.heads, job.page, wide, dtype=step.dtype, device=nowhere)
    step.logits(step.forward(x, positions, tables, keys, keys))


def _warming(kernel: Any, grid: object) -> Callable[..., object]:
    return partial(kernel.warmup, grid=grid)
