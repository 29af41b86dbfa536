"""What `gapless tune` tries: for each part of a decode step, the tiles that may be better than those there are.

In: a choice that works, the batch size it is for, dimensions and a card. Out: whole choices that differ in one part.
Pure arithmetic; a tile that would be cut down on this card is left out, since it is another one's twin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from gapless.kernels.triton.choices import (
    EARLY,
    LATE,
    ONE,
    ROWS,
    WEIGHTS,
    Choice,
    Dims,
    Gpu,
    Scan,
    Tile,
    choice,
)

PARTS = ("launch", "up", "scan", "down", "head", "launch")
"""In the order they are tried: when kernels start, then the kernels, and when these start."""
FEW, MANY = 16, 64
"""Batch sizes: up to there a context is read in several parts; from there on rows may be on the wide side."""
STAGES = (3, 4, 5, 6, 8)
SCANS = ((16, 2, 1), (16, 3, 1), (16, 4, 1), (32, 1, 1), (32, 2, 1), (32, 3, 1), (32, 2, 2), (64, 1, 1), (64, 1, 2),
         (64, 2, 2), (64, 1, 4))  # fmt: skip
"""Tokens at a time, stages and warps."""
IN_FLIGHT = (32 * 1024, 112 * 1024)
"""Bytes of weights that a program has on their way: fewer leave memory idle, more leave room for one program alone."""


def menu(part: str, now: Choice, rows: int, dims: Dims, itemsize: int, gpu: Gpu) -> list[Choice]:
    """Choices that differ from `now` in `part` alone, none of them twice; `now` itself is not among them."""
    found: dict[Choice, None] = {}
    for other in _others(part, now, rows, dims, itemsize):
        cut = choice(dims, rows, itemsize, replace(gpu, choices={rows: other}))
        if cut == other != now:
            found[other] = None
    return list(found)


def _others(part: str, now: Choice, rows: int, dims: Dims, itemsize: int) -> Iterator[Choice]:
    if part == "launch":
        for pdl, ahead in launches():
            yield replace(now, pdl=pdl, ahead=ahead)
    elif part == "scan":
        for scan in scans(rows):
            yield replace(now, scan=scan)
    else:
        columns = dims.dim + dims.inner if part == "down" else dims.dim
        for tile in tiles(rows, columns, itemsize, ((1, 2, 5) if rows == 1 else (2, 4, 8)) if part == "down" else (1,)):
            yield _with(now, part, tile)


def _with(now: Choice, part: str, tile: Tile) -> Choice:
    if part == "up":
        return replace(now, up=tile)
    return replace(now, down=tile) if part == "down" else replace(now, head=tile)


def launches() -> Iterator[tuple[int, int]]:
    """When kernels may start, and how many columns they ask for while they wait."""
    for pdl, ahead in product((0, EARLY, LATE), (0, 64, 128, 256, 512, 1024)):
        if pdl or not ahead:
            yield pdl, ahead


def scans(rows: int) -> Iterator[Scan]:
    """How a context may be read."""
    splits = (4, 8, 16) if rows == 1 else (1, 2, 4, 8, 16) if rows <= FEW else (1, 2)
    for split, (bt, stages, warps) in product(splits, SCANS):
        yield Scan(split, bt, stages, warps)


def tiles(rows: int, columns: int, itemsize: int, splits: tuple[int, ...]) -> Iterator[Tile]:
    """Of a product of so many columns, in one of `splits`."""
    if rows == 1:
        for bn, bk, warps, parts in product((2, 4, 8), (1024, 2048), (2, 4, 8), splits):
            held = bn * bk // (32 * warps)
            if columns % (parts * bk) == 0 and 16 <= held <= 64:
                yield Tile(ONE, bn, bk, 1, warps, parts)
        return
    modes = (WEIGHTS, ROWS) if rows >= MANY else (WEIGHTS,)
    for mode, bn, bk, warps, parts in product(modes, (64, 128), (64, 128, 256), (4, 8), splits):
        if columns % (parts * bk) or (warps == 8 and bn < 128):
            continue
        for stages in STAGES:
            if IN_FLIGHT[0] <= (stages - 1) * bn * bk * itemsize <= IN_FLIGHT[1]:
                yield Tile(mode, bn, bk, stages, warps, parts)
