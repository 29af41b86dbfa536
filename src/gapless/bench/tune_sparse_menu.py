"""What `gapless tune` tries of steps with experts: for each part, tiles that may be better than those there are.

In: a choice that works, the batch size it is for, dimensions and a card. Out: whole choices that differ in one part.
Pure arithmetic; a tile that would be cut down on this card is left out, since it is another one's twin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from gapless.bench.tune_menu import IN_FLIGHT, launches, scans, tiles
from gapless.kernels.triton.choices import Gpu, Scan
from gapless.kernels.triton.sparse_choices import Lone, Many, Own, Sparse, SparseDims, choice
from gapless.kernels.triton.tiles import Tile as Portion

PARTS = ("launch", "experts up", "experts down", "scan", "up", "proj", "dense", "head", "close", "launch")
"""In the order they are tried. One row has no proj or close of its own."""
ROW_TILES = {"up": "up", "experts up": "middle", "experts down": "experts_down", "dense": "dense_down", "head": "head"}
"""What a part is called in a `Lone`."""


def menu(part: str, now: Sparse, rows: int, dims: SparseDims, itemsize: int, gpu: Gpu) -> list[Sparse]:
    """Choices that differ from `now` in `part` alone, none of them twice; `now` itself is not among them."""
    found: dict[Sparse, None] = {}
    others = _of_one(part, now) if isinstance(now, Lone) else _of_many(part, now, rows, dims, itemsize, gpu.shared)
    for other in others:
        if choice(dims, rows, itemsize, gpu, Own({rows: other})) == other != now:
            found[other] = None
    return list(found)


def _of_one(part: str, now: Lone) -> Iterator[Sparse]:
    if part == "launch":
        for pdl in (0, 1, 2):
            yield replace(now, pdl=pdl)
    elif part == "scan":
        for split, bt, warps in product((4, 8, 16), (16, 32, 64), (1, 2)):
            yield replace(now, scan=Scan(split, bt, 1, warps))
    elif part in ROW_TILES:
        for pair in product((2, 4, 8, 16), (4, 8)):
            yield _paired(now, ROW_TILES[part], pair)


def _paired(now: Lone, name: str, pair: tuple[int, int]) -> Lone:
    if name == "up":
        return replace(now, up=pair)
    if name == "middle":
        return replace(now, middle=pair)
    if name == "head":
        return replace(now, head=pair)
    return replace(now, experts_down=pair) if name == "experts_down" else replace(now, dense_down=pair)


def _of_many(part: str, now: Many, rows: int, dims: SparseDims, itemsize: int, shared: int) -> Iterator[Sparse]:
    if part == "launch":
        for pdl, ahead in launches():
            yield replace(now, pdl=pdl, ahead=ahead)
    elif part == "close":
        for warps in (4, 8, 16):
            yield replace(now, close=warps)
    elif part == "scan":
        for scan in scans(rows):
            yield replace(now, scan=scan)
    elif part in ("experts up", "experts down"):
        yield from _experts(part, now, dims, shared)
    else:
        yield from _products(part, now, rows, dims, itemsize)


def _products(part: str, now: Many, rows: int, dims: SparseDims, itemsize: int) -> Iterator[Sparse]:
    columns = dims.dim + dims.ff if part == "dense" else dims.dim
    splits = {"proj": (1, 2, 4), "dense": (2, 4, 5)}.get(part, (1,))
    for tile in tiles(rows, columns, itemsize, splits):
        if part == "up":
            yield replace(now, up=tile)
        elif part == "proj":
            yield replace(now, proj=tile)
        else:
            yield replace(now, dense=tile) if part == "dense" else replace(now, head=tile)


def _experts(part: str, now: Many, dims: SparseDims, shared: int) -> Iterator[Sparse]:
    if now.experts is None:
        return
    matrices, rows = (2, now.experts.up.rows) if part == "experts up" else (1, now.experts.down.rows)
    for lines, deep, warps, stages in product((32, 64, 128), (64, 128, 256, 512), (1, 2, 4, 8), (2, 3, 4, 5)):
        tile, ahead = Portion(rows, lines, deep, warps, stages), (stages - 1) * matrices * lines * deep
        flying = IN_FLIGHT[0] // 2 <= ahead * dims.expert_itemsize <= IN_FLIGHT[1]
        together = matrices * lines if now.cut else lines
        held = together // warps >= 16 and lines * deep * matrices <= 2**15 and rows * lines <= 2**12 * warps
        if flying and held and tile.shared(matrices, dims.expert_itemsize) <= shared:
            both = replace(now.experts, up=tile) if matrices == 2 else replace(now.experts, down=tile)
            yield replace(now, experts=both)
