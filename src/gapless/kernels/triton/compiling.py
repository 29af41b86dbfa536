"""Kernels of a decode step compiled in other processes, which have no GPU and leave them in Triton's cache on disk.

In: steps of dimensions and choices. Out: nothing; a kernel that could not be compiled here is compiled, or fails, where
it is launched. Compiling is Python's work for the most part, so threads would not help. A process launches steps as
usual, over tensors without memory, under a driver that answers for the GPU and starts nothing.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, partialmethod
from itertools import count
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from gapless.kernels.fused import Decoder
from gapless.kernels.sparse import SparseDecoder
from gapless.kernels.triton.choices import Choice, Gpu
from gapless.kernels.triton.decode import TritonStep
from gapless.kernels.triton.sparse import TritonSparseStep
from gapless.kernels.triton.sparse_choices import Sparse

WARP = 32
SLOW = "torch._dynamo"
"""What torch imports for the first tensor without memory, in seconds: once, not in every process."""


@dataclass(frozen=True, slots=True)
class Job:
    """A step of `rows` rows with the tiles of one choice; it is made anew in each process, of weights without memory,
    by a function that can be sent there."""

    make: Callable[[torch.device], TritonStep | TritonSparseStep]
    capability: tuple[int, int]
    rows: int
    page: int
    part: int = 0
    parts: int = 1
    """Of its launches each `parts`th is compiled, from number `part` on."""


@dataclass(frozen=True, slots=True)
class Bare:
    """What a tensor leaves of itself that is sent to another process."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def mapped(f: Callable[[Any], Any], value: Any) -> Any:
    """A dataclass or a list with `f` of all that is in it; anything else as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: f(getattr(value, field.name)) for field in fields(value)})
    return [f(item) for item in value] if isinstance(value, list | tuple) else value


def given_step(
    kind: type[TritonStep] | type[TritonSparseStep],
    decoder: Any,
    gpu: Gpu,
    choices: Mapping[int, Any],
    nowhere: torch.device,
) -> TritonStep | TritonSparseStep:
    """What a `Job` makes, of a decoder that has `Bare` in place of tensors."""

    def shaped(value: Any) -> Any:
        if isinstance(value, Bare):
            return torch.empty(value.shape, dtype=value.dtype, device=nowhere)
        return mapped(shaped, value)

    return kind(shaped(decoder), gpu).with_choices(choices)


def dense_step(
    make: Callable[[torch.device], Decoder], gpu: Gpu, rows: int, choice: Choice, nowhere: torch.device
) -> TritonStep:
    """What a `Job` makes."""
    return TritonStep(make(nowhere), gpu).with_choices({rows: choice})


def sparse_step(
    make: Callable[[torch.device], SparseDecoder], gpu: Gpu, rows: int, choice: Sparse, nowhere: torch.device
) -> TritonSparseStep:
    """What a `Job` makes."""
    return TritonSparseStep(make(nowhere), gpu).with_choices({rows: choice})


class Compilers:
    """So many processes, forked from one that has imported this and never used CUDA. They start at once."""

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, SLOW])
        self._pool = ProcessPoolExecutor(processes, mp_context=context, initializer=begin)
        for _ in range(processes):
            self._pool.submit(begin)

    def compile(self, jobs: Sequence[Job]) -> None:
        """All of them; what fails is left to whoever launches it."""
        with suppress(BrokenProcessPool):
            list(self._pool.map(compile_quietly, jobs))

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


def begin() -> None:
    """What a process does first. It is one of many: torch's own threads would be in their way, and Ctrl-C is heard by
    whoever started them."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def compile_quietly(job: Job) -> None:
    """In a process of its own; what fails is left to whoever launches it."""
    with suppress(Exception):
        compile_here(job)


@torch.inference_mode()
def compile_here(job: Job) -> None:
    """Compile one step's kernels in this process, which cannot launch any from then on."""
    triton.runtime.driver.set_active(_NoGpu(job.capability))
    JITFunction.__getitem__ = partialmethod(_warming, count(), job)
    nowhere = torch.device("meta")
    step = job.make(nowhere)
    dims, layers = step.dims, len(step.weights.blocks)
    wide = dims.dim // dims.heads
    x = torch.empty(job.rows, dims.dim, dtype=step.dtype, device=nowhere)
    positions = torch.empty(job.rows, dtype=torch.int64, device=nowhere)
    tables = torch.empty(job.rows, job.page, dtype=torch.int64, device=nowhere)
    keys = torch.empty(layers, 2, dims.heads, job.page, wide, dtype=step.dtype, device=nowhere)
    step.logits(step.forward(x, positions, tables, keys, keys))


def _warming(kernel: Any, launches: Iterator[int], job: Job, grid: object) -> Callable[..., object]:
    """In place of a launch: compile, if it is one of the job's."""
    if next(launches) % job.parts == job.part:
        return partial(kernel.warmup, grid=grid)
    return _nothing


def _nothing(*_: object, **__: object) -> None:
    """A launch that another job compiles."""
