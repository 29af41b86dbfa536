"""Measures what parts of prefill steps take, so that prompts can be cut to a length of time.

In: a program that is ready, its graphs, and a timer. Out: `Costs`. What is timed are the same calls as in steps, of a
pack full of the padding row's tokens and of whatever crops are there; they write to the scrap page and to memory that
every step writes before it reads. In a table less never takes longer than more: whatever disturbs, only adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import torch

from gapless.costs import Costs, Table
from gapless.device.graphs import Graphs
from gapless.device.pictures import CROP_BUCKETS, MOST_CROPS
from gapless.device.program import Program
from gapless.device.runtime import Runtime
from gapless.device.tail import MASKED

Timer = Callable[[Callable[[], None]], float]
"""Seconds of some work, from when the device begins it until it is done."""
TIMES = 2
"""How often each is timed; the shortest counts, the first also loads what is needed."""
SIZES = (16, 32, 64, 128, 256, 512, 1024)
"""Tokens of texts that are timed where each goes alone."""
AROUND = 256
"""Tokens of the text that is timed once more at the end of the longest context."""
TILING = (3, 4)
"""Of the picture that is cut and projected: most large ones have this."""


def on_gpu(runtime: Runtime) -> Timer:
    """Times work by marks on the compute stream."""

    def seconds(work: Callable[[], None]) -> float:
        begin, end = runtime.event(timed=True), runtime.event(timed=True)
        runtime.mark(begin)
        work()
        runtime.mark(end)
        end.synchronize()
        return runtime.seconds(begin, end)

    return seconds


def on_host(work: Callable[[], None]) -> float:
    """Times work by the host's clock."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measured(program: Program, graphs: Graphs | None, timer: Timer) -> Costs:
    """Time everything. Without `graphs` the program is called itself. Under `torch.inference_mode`."""
    tokens, behind = _prompts(program, graphs, timer)
    crops, picture = _pictures(program, graphs, timer)
    if graphs is None:
        tail = partial(program.tail, program.batch.lines[:1], MASKED)
    else:
        tail = partial(graphs.tail, 0, graphs.bucket(1), MASKED)
    ends: list[Callable[[], None]] = [program.begin, partial(program.head, 1), tail]
    if program.packs is not None:
        ends.append(program.packs.feed_padding(program.packs.buckets[-1], program.model.max_context))
    step = sum(_best(timer, work) for work in ends)
    return Costs(crops, tokens, picture, step, behind, whole=program.pictures is None)


def _best(timer: Timer, work: Callable[[], None]) -> float:
    return min(timer(work) for _ in range(TIMES))


def _table(sizes: Sequence[int], seconds: Sequence[float]) -> Table:
    falling = list(accumulate(reversed(seconds), min))
    return tuple(zip(sizes, reversed(falling), strict=True))


def _prompts(program: Program, graphs: Graphs | None, timer: Timer) -> tuple[Table, float]:
    """Of so many tokens, and for each token and each position before them."""
    packs, most = program.packs, program.model.max_context
    if packs is None or graphs is None:
        sizes = [*(size for size in SIZES if size < program.most_text), program.most_text]
        return _table(sizes, [_best(timer, partial(program.padding_prompt, size)) for size in sizes]), 0.0
    times = []
    for size in packs.buckets:
        packs.feed_padding(size, most)
        times.append(_best(timer, partial(graphs.together, size)))
    size = next((size for size in packs.buckets if size >= AROUND), packs.buckets[-1])
    before = most - size
    if before <= 0:
        return _table(packs.buckets, times), 0.0
    packs.feed_padding(size, most, before)
    longer = _best(timer, partial(graphs.together, size)) - times[packs.buckets.index(size)]
    return _table(packs.buckets, times), max(0.0, longer) / (size * before)


def _pictures(program: Program, graphs: Graphs | None, timer: Timer) -> tuple[Table, float]:
    """Of so many crops, and of what else a picture takes. Nothing where pictures are encoded whole."""
    batch, tower = program.pictures, program.model.tower
    if batch is None or tower is None:
        return (), 0.0
    encode = batch.encode if graphs is None else graphs.pictures
    times = [_best(timer, partial(encode, size)) for size in CROP_BUCKETS]
    count = min(MOST_CROPS, 1 + TILING[0] * TILING[1])
    pixels = torch.zeros(
        (TILING[0] * tower.side, TILING[1] * tower.side, 3), dtype=torch.uint8, device=program.model.device
    )

    def rest() -> None:
        tower.cut(pixels, TILING, batch.crops[:count])
        tower.project([batch.features[:count]], [TILING])

    return _table(CROP_BUCKETS, times), _best(timer, rest)
