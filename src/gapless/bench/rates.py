"""How fast this machine reads memory and multiplies matrices: the two roofs over every other number.

In: a device of torch and the number format that a model computes in. Out: `Rates`, measured on the spot, each the best
of a few ways; and `time_ms`, which times anything else in the same way. On a CPU the caller's thread measures, with its
own number of torch threads: `on_worker` gives it as many as the CPU device computes with.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import torch

from gapless.config import cpu_threads

T = TypeVar("T")
READ_BYTES = {"cuda": 4 * 2**30, "cpu": 2**28}
"""Far more than any cache holds."""
SIDES = {"cuda": (4096, 8192), "cpu": (512, 1024)}
"""Of the square matrices that are multiplied."""
REPEATS = {"cuda": 10, "cpu": 4}


@dataclass(frozen=True, slots=True)
class Rates:
    """`reads`: bytes per second by how they were read, and by a copy (bytes read plus written); `matmuls`: operations
    per second by the matrices' side, a multiply-add being two; `dtype` is theirs."""

    reads: dict[str, float]
    matmuls: dict[int, float]
    dtype: str

    @property
    def bandwidth(self) -> float:
        """The fastest read, in bytes per second."""
        return max(rate for name, rate in self.reads.items() if name != "copy")

    @property
    def flops(self) -> float:
        """The fastest product, in operations per second."""
        return max(self.matmuls.values())

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "read_gb_per_s": {name: round(rate / 1e9, 1) for name, rate in self.reads.items()},
            "matmul_tflop_per_s": {
                f"{self.dtype} {side}": round(rate / 1e12, 4) for side, rate in self.matmuls.items()
            },
        }


def time_ms(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Median milliseconds of `work`: on a GPU of the current stream, by events around each run, else by the clock."""
    work()
    if device.type != "cuda":
        return 1e3 * statistics.median(_seconds(work) for _ in range(repeats))
    torch.cuda.synchronize()
    events = [(_timer(), _timer()) for _ in range(repeats)]
    for before, after in events:
        before.record()
        work()
        after.record()
    torch.cuda.synchronize()
    return float(statistics.median(before.elapsed_time(after) for before, after in events))


def _seconds(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def _timer() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@torch.inference_mode()
def measure_rates(device: torch.device, dtype: torch.dtype, size: int | None = None) -> Rates:
    """Measure both. `size`: bytes that are read (None: see `READ_BYTES`)."""
    reads = _reads(device, size or READ_BYTES[device.type])
    matmuls = {side: _matmul(device, dtype, side) for side in SIDES[device.type]}
    return Rates(reads, matmuls, str(dtype).removeprefix("torch."))


def _reads(device: torch.device, size: int) -> dict[str, float]:
    room = torch.empty(size // 4, dtype=torch.float32, device=device).normal_()
    rows = room.view(-1, 16384)
    halves = room.view(torch.bfloat16).view(-1, 16384)
    target = torch.empty_like(room[: room.numel() // 2])
    ways: dict[str, Callable[[], object]] = {
        "sum of float32": room.sum,
        "row sums of float32": partial(rows.sum, dim=1),
        "row maxima of float32": partial(rows.amax, dim=1),
        "row maxima of bfloat16": partial(halves.amax, dim=1),
    }
    found = {name: 1e3 * size / time_ms(work, REPEATS[device.type], device) for name, work in ways.items()}
    copied = room[: target.numel()]
    found["copy"] = 1e3 * 2 * copied.numel() * 4 / time_ms(partial(target.copy_, copied), REPEATS[device.type], device)
    return found


def _matmul(device: torch.device, dtype: torch.dtype, side: int) -> float:
    a, b = (torch.empty(side, side, dtype=dtype, device=device).normal_() for _ in range(2))
    into = torch.empty_like(a)
    return 1e3 * 2 * side**3 / time_ms(partial(torch.mm, a, b, out=into), REPEATS[device.type], device)


def on_worker(work: Callable[[], T], device: torch.device) -> T:
    """Run `work` in a thread that computes with as many threads as the CPU device does; on a GPU just run it."""
    if device.type != "cpu":
        return work()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_with_threads, work).result()


def _with_threads(work: Callable[[], T]) -> T:
    threads = cpu_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    return work()
