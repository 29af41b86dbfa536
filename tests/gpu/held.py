"""Multiprocessors of a GPU that are taken by somebody else."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

NARROW = {"dim": 2048, "inner": 1024, "experts": 64, "share": 8, "dtype": torch.bfloat16, "device": "cuda"}


@triton.jit
def holding(started, numbers, out, nanoseconds):
    """For so long, with so much shared memory (192 KiB) that nobody else of any size finds a place beside it."""
    line, deep, column = tl.arange(0, 64), tl.arange(0, 512), tl.arange(0, 128)
    left = tl.load(numbers + line[:, None] * 512 + deep[None, :])
    right = tl.load(numbers + deep[:, None] + column[None, :] * 512)
    total = tl.dot(left, right)
    tl.atomic_add(started, 1)
    begin = globaltimer()
    at = begin
    while at - begin < nanoseconds:
        at = globaltimer()
    tl.store(out + line[:, None] * 128 + column[None, :], total)


class Holder:
    """Holds multiprocessors, on a stream of its own."""

    def __init__(self) -> None:
        self.all = torch.cuda.get_device_properties(0).multi_processor_count
        self.stream = torch.cuda.Stream()
        self.started = torch.zeros(1, dtype=torch.int32, device="cuda")
        self._numbers = torch.zeros(128 * 512, dtype=torch.bfloat16, device="cuda")
        self._out = torch.zeros(64, 128, device="cuda")
        self.hold(1, 1e-5)
        torch.cuda.synchronize()

    def hold(self, count: int, seconds: float) -> torch.cuda.Event:
        """Begin to hold so many, each once the GPU has it free. What is recorded when all are given back."""
        with torch.cuda.stream(self.stream):
            self.started.zero_()
            holding[(count,)](self.started, self._numbers, self._out, int(seconds * 1e9), num_warps=8)
            over = torch.cuda.Event()
            over.record()
        return over
