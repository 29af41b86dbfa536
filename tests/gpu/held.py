"""Multiprocessors of a GPU that are taken by somebody else; and, run by itself, what goes on in those that are left.

A program that waits for others of its launch holds its place meanwhile. With one multiprocessor left there are three
places for two thousand programs: were those that are waited for not ahead, nobody would ever be done. So this runs in a
process of its own, which can be killed.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import torch
import triton
import triton.language as tl
from tests.kernels.drawn_narrow import Launch, draw_narrow
from tests.kernels.drawn_sparse import MOONDREAM_3, draw
from torch import Tensor
from triton.language.extra.cuda import globaltimer

from gapless.kernels.choose import choose

SECONDS = 1.0
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


def forward() -> tuple[torch.cuda.CUDAGraph, Tensor, list[object]]:
    """A graph of a step of 8 rows, its hidden states, and what it reads."""
    scene = draw(8, 4, replace(MOONDREAM_3, vocab=2048, ff=2048), narrow=True, dtype=torch.bfloat16, device="cuda")
    fused = choose(torch.device("cuda")).fuse_sparse(scene.decoder)
    given = scene.x, scene.positions, scene.tables, scene.keys, scene.values
    fused.forward(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hidden = fused.forward(*given)
    return graph, hidden, [fused, given]


@torch.inference_mode()
def main() -> None:
    """One line a case: what, multiprocessors left, whether it was done before the others were given back, whether it
    was right."""
    launches = [Launch(draw_narrow(8, pdl, **NARROW), pdl=pdl) for pdl in (0, 1, 2)]
    right = [launch().said.clone() for launch in launches]
    graph, hidden, _kept = forward()
    graph.replay()
    torch.cuda.synchronize()
    step, holder, streams = hidden.clone(), Holder(), [torch.cuda.Stream() for _ in range(4)]
    for left in (8, 1):
        for launch in launches:
            launch.out.said.fill_(torch.nan)
        hidden.fill_(torch.nan)
        torch.cuda.synchronize()
        over, begun = holder.hold(holder.all - left, SECONDS), time.monotonic()
        while time.monotonic() < begun + 0.1:
            time.sleep(0.01)
        done = [torch.cuda.Event() for _ in streams]
        for stream, event, launch in zip(streams, done, [*launches, None], strict=True):
            with torch.cuda.stream(stream):
                graph.replay() if launch is None else launch()
                event.record()
        while not all(event.query() for event in done):
            time.sleep(0.001)
        before, took = not over.query(), time.monotonic() - begun
        torch.cuda.synchronize()
        same = [torch.equal(launch.out.said, own) for launch, own in zip(launches, right, strict=True)]
        same.append(torch.equal(hidden, step))
        print(left, int(holder.started) == holder.all - left, before, all(same), f"{took:.3f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
