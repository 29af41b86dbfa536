"""Which tiles the kernels of a sparse decode step use, by how many rows it has.

In: a step's dimensions and rows, and what the GPU offers. Out: a `Many` or, for one row, a `Lone`, cut down to what
divides the dimensions and fits. The tables were measured on an H200 with Moondream 3's dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from gapless.kernels.triton.choices import (
    EARLY,
    LATE,
    MOST_ROWS,
    ROWS,
    SMALLEST,
    WEIGHTS,
    Gpu,
    Scan,
    Tile,
    padded,
    split,
)
from gapless.kernels.triton.tiles import CUTS, HALF, LEAST_DEEP, MOST_HELD, Tiles, fitted, tiles_for
from gapless.kernels.triton.tiles import Tile as Portion

UNIT = 64
"""The router's rows are padded to a multiple of it, and everything else has to be one."""
MOST_SHARE = 32
"""Experts that one token may take."""
NARROWEST = 64
"""Rows of weights in a tile of `up`, at least."""
MOST_SHARES = 5
"""Of a sum over columns, parts at most."""


@dataclass(frozen=True, slots=True)
class SparseDims:
    """A decoder's sizes. `expert_itemsize`: bytes of an expert's weight; `experts` 0: there are none."""

    dim: int
    ff: int
    heads: int
    rotary: int
    vocab: int
    experts: int = 0
    share: int = 0
    expert_inner: int = 0
    expert_itemsize: int = 2


@dataclass(frozen=True, slots=True)
class Many:
    """A step's tiles for two rows or more. `proj`: beside experts, whose programs' memory and warps it shares; `dense`:
    of proj and fc2 side by side. `ahead`: columns of its weights that `up` and `head` ask for while
    they wait; `pdl`: see `choices`; `close`: warps of a row; `cut`: experts are multiplied in FP8, see `narrow_jit`."""

    up: Tile
    scan: Scan
    proj: Tile
    dense: Tile
    head: Tile
    experts: Tiles | None
    pdl: int
    ahead: int
    close: int
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Lone:
    """A step's tiles for one row: (rows of weights, warps) of a program of each kernel. The warps of `scan` count in
    dense layers alone."""

    scan: Scan
    up: tuple[int, int]
    middle: tuple[int, int]
    experts_down: tuple[int, int]
    dense_down: tuple[int, int]
    head: tuple[int, int]
    columns: int
    """Of fc2, that a program takes at once."""
    pdl: int


Sparse = Many | Lone

EXPERTS = {
    2: {
        16: Tiles(Portion(16, 64, 128, 4, 3), Portion(16, 64, 128, 4, 3)),
        32: Tiles(Portion(32, 64, 128, 4, 4), Portion(32, 64, 128, 4, 3)),
        64: Tiles(Portion(64, 64, 64, 4, 3), Portion(64, 128, 64, 8, 3)),
        128: Tiles(Portion(128, 64, 64, 4, 3), Portion(128, 64, 64, 4, 3)),
    },
    1: {
        16: Tiles(Portion(16, 32, 256, 4, 3), Portion(16, 64, 128, 4, 4)),
        32: Tiles(Portion(32, 64, 128, 4, 3), Portion(32, 128, 128, 4, 3)),
        64: Tiles(Portion(64, 64, 64, 4, 3), Portion(64, 128, 64, 4, 3)),
        128: Tiles(Portion(128, 64, 64, 4, 3), Portion(128, 64, 64, 4, 3)),
    },
}
"""Of experts, by the bytes of their weights, then by the rows of a tile."""
_FEWEST = Tiles(Portion(4, 32, 256, 4, 3), Portion(4, 64, 256, 4, 3))
_SOME = Tiles(Portion(8, 32, 256, 4, 3), Portion(8, 64, 256, 4, 3))
_MOST = Tiles(Portion(16, 32, 128, 4, 4), Portion(16, 64, 128, 4, 4))
CUT = {2: _FEWEST, 4: _FEWEST, 8: _SOME, 16: _SOME, 32: _SOME, 64: _MOST, 128: _MOST}
"""Of experts in FP8 where the GPU multiplies that, in place of those above, by the most rows that they are for. Both
take as much shared memory, since they share a launch."""
GROUP = 4
"""Warps that multiply FP8 together."""
MOST_DEEP = 256
"""Columns whose products of FP8 the units sum by themselves: the more there are, the more is lost of a sum."""
LONE = Lone(
    scan=Scan(8, 64, 1, 2),
    up=(8, 4),
    middle=(4, 4),
    experts_down=(4, 8),
    dense_down=(4, 8),
    head=(8, 4),
    columns=1024,
    pdl=EARLY,
)
_FEW = Many(
    up=Tile(WEIGHTS, 64, 128, 5, 4),
    scan=Scan(16, 64, 1, 2),
    proj=Tile(WEIGHTS, 64, 64, 3, 4, 2),
    dense=Tile(WEIGHTS, 64, 128, 5, 4, 5),
    head=Tile(WEIGHTS, 128, 64, 5, 4),
    experts=None,
    pdl=EARLY,
    ahead=128,
    close=8,
)
MANY: dict[int, Many] = {
    2: _FEW,
    4: replace(_FEW, scan=Scan(8, 64, 1, 2)),
    8: replace(_FEW, scan=Scan(4, 16, 3, 1), pdl=LATE),
    16: replace(_FEW, scan=Scan(2, 16, 3, 1), pdl=0, ahead=0),
    32: replace(_FEW, scan=Scan(1, 32, 2, 1), head=Tile(WEIGHTS, 64, 64, 8, 4), pdl=0, ahead=0),
    64: replace(_FEW, scan=Scan(1, 32, 2, 1), head=Tile(ROWS, 128, 64, 4, 4), pdl=LATE, ahead=0),
    128: replace(
        _FEW,
        up=Tile(ROWS, 64, 64, 4, 4),
        scan=Scan(1, 32, 2, 1),
        proj=Tile(ROWS, 64, 64, 3, 4, 2),
        dense=Tile(ROWS, 64, 128, 3, 8, 5),
        head=Tile(ROWS, 128, 64, 4, 8),
        pdl=LATE,
        ahead=0,
    ),
}
"""By the most rows a choice is for."""


@dataclass(frozen=True, slots=True)
class Own:
    """Choices by the most rows that one is for, in place of those that come with the package."""

    choices: Mapping[int, Sparse] = field(hash=False)


NONE = Own({})


@cache
def choice(dims: SparseDims, rows: int, itemsize: int, gpu: Gpu, own: Own = NONE) -> Sparse | None:
    """What a step of `rows` uses on such a GPU; None if it cannot be computed."""
    if not 1 <= rows <= MOST_ROWS or not _regular(dims):
        return None
    most = 1 if rows == 1 else min(most for most in MANY if rows <= most)
    found, bm = own.choices.get(most) or (LONE if rows == 1 else MANY[most]), padded(rows)
    if isinstance(found, Lone):
        return _lone(found, dims, gpu)
    proj, dense = (
        replace(tile, splits=max(splits for splits in range(1, tile.splits + 1) if columns % (splits * UNIT) == 0))
        for tile, columns in ((found.proj, dims.dim), (found.dense, dims.dim + dims.ff))
    )
    experts, cut = _experts(found, most, rows * dims.share, dims, gpu)
    return replace(
        found,
        up=_fitted(found.up, dims.dim, (3 * dims.dim, UNIT), bm, itemsize, gpu.shared),
        proj=_fitted(proj, dims.dim // proj.splits, (dims.dim,), bm, itemsize, gpu.shared),
        dense=_fitted(dense, (dims.dim + dims.ff) // dense.splits, (dims.dim,), bm, itemsize, gpu.shared),
        head=_fitted(found.head, dims.dim, (dims.vocab,), bm, itemsize, gpu.shared),
        scan=split(found.scan, rows),
        experts=experts,
        cut=cut,
        pdl=found.pdl if gpu.dependent else 0,
    )


def _experts(found: Many, most: int, pairs: int, dims: SparseDims, gpu: Gpu) -> tuple[Tiles | None, bool]:
    """Tiles of experts, a choice's own or, where it has none or they are of kernels that cannot be used, those of a
    table; and whether they are of the kernels that multiply FP8."""
    if not dims.experts:
        return None, False
    narrow = gpu.narrow and dims.expert_itemsize == 1 and dims.expert_inner % UNIT == 0
    tiles, cut = (found.experts, found.cut) if found.experts else (CUT.get(most), True)
    if tiles is None or cut > narrow:
        tiles = tiles_for(pairs, dims.experts, min(HALF, dims.expert_itemsize), gpu.shared, EXPERTS)
        return tiles, False
    if not cut:
        return fitted(tiles, dims.expert_itemsize, gpu.shared), False
    up = _cut(tiles.up, 2, dims.expert_inner, dims.dim, gpu.shared)
    down = _cut(replace(tiles.down, warps=up.warps), 1, dims.dim, dims.expert_inner, gpu.shared)
    return Tiles(up, down), True


def _cut(tile: Portion, matrices: int, lines: int, columns: int, shared: int) -> Portion:
    """A tile that divides matrices of so many lines and columns, and fits into shared memory and registers; of whole
    warp groups, and of as many columns as FP8 is multiplied by."""
    least, most = UNIT // matrices, _power_in(lines)
    warps, deep = max(GROUP, tile.warps), max(2 * LEAST_DEEP, min(tile.deep, MOST_DEEP, _power_in(columns)))
    tile = replace(tile, lines=max(least, min(tile.lines, most)), deep=deep, warps=warps)
    while tile.lines > least and matrices * tile.lines * tile.rows * CUTS > MOST_HELD * warps:
        tile = replace(tile, lines=tile.lines // 2)
    while tile.shared_cut(matrices) > shared and (tile.stages > 2 or tile.deep > 2 * LEAST_DEEP):
        fewer = tile.stages > 2
        tile = replace(tile, stages=tile.stages - 1) if fewer else replace(tile, deep=tile.deep // 2)
    return tile


def _lone(found: Lone, dims: SparseDims, gpu: Gpu) -> Lone:
    return replace(found, columns=min(found.columns, _power_in(dims.ff)), pdl=found.pdl if gpu.dependent else 0)


def _regular(dims: SparseDims) -> bool:
    """Whether tiles of the smallest sizes divide everything, a head is a power of two wide, and tokens take few
    experts, whose rows are whole 16-byte words."""
    wide = dims.dim // dims.heads
    words = dims.expert_inner * dims.expert_itemsize % 16 == 0
    return (
        not any(size % UNIT for size in (dims.dim, dims.ff, dims.vocab))
        and wide & (wide - 1) == 0
        and wide >= SMALLEST
        and words
        and dims.share <= MOST_SHARE
    )


def _fitted(tile: Tile, columns: int, outputs: tuple[int, ...], bm: int, itemsize: int, shared: int) -> Tile:
    """A tile that divides a product of `columns` and `outputs`, and fits into shared memory."""
    bn = min([tile.bn, *(_power_in(n) for n in outputs)])
    bk, stages = min(tile.bk, _power_in(columns)), tile.stages
    while stages * bk * (bm + bn) * itemsize > shared:
        bk, stages = (bk, stages - 1) if stages > 2 else (bk // 2, stages)
    return replace(tile, bn=bn, bk=bk, stages=stages)


def _power_in(number: int) -> int:
    """The largest power of two that divides `number`."""
    return number & -number
