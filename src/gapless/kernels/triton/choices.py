"""Which tiles the kernels of a decode step use, by how many rows it has.

In: a step's dimensions and rows, and what the GPU offers. Out: a `Choice`, cut down to what divides the dimensions and
fits. The tables were measured on an H200 with Moondream 2's dimensions; where the
weights alone are read, what is best depends little on the dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

ROWS, WEIGHTS, ONE = 0, 1, 2
"""How a product of a few rows x with many weights w is computed: x w^T with the rows on the side of the matrix units
that is 64 wide or more; w x^T, for fewer rows; or, for a single one, whose padding to 16 would cost more than it helps,
as sums of products in float32."""
EARLY, LATE = 1, 2
"""When a kernel lets the next one start: at once, or behind its own main loop. 0: when it is over."""
MOST_ROWS = 128
SMALLEST = 16
"""Sides of a tile on the matrix units."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A product's tile: BN rows of the weights, BK columns at a time, `stages` of them on their way, in `splits`."""

    mode: int
    bn: int
    bk: int
    stages: int
    warps: int
    splits: int = 1


@dataclass(frozen=True, slots=True)
class Scan:
    """How a row's context is read: in `splits` parts, BT tokens at a time."""

    splits: int
    bt: int
    stages: int
    warps: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One step's tiles. `pdl`: when each kernel lets the next one start; `ahead`:
    how many columns of its weights a kernel asks for while it waits."""

    up: Tile
    scan: Scan
    down: Tile
    head: Tile
    pdl: int
    ahead: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a GPU offers: bytes of shared memory of a block, and whether a kernel may start before the one before it is
    over."""

    shared: int
    dependent: bool


@dataclass(frozen=True, slots=True)
class Dims:
    """A decoder's sizes."""

    dim: int
    inner: int
    heads: int
    rotary: int
    vocab: int


_FEW = Choice(
    up=Tile(WEIGHTS, 64, 128, 3, 4),
    scan=Scan(16, 64, 1, 2),
    down=Tile(WEIGHTS, 64, 128, 5, 4, 4),
    head=Tile(WEIGHTS, 128, 64, 5, 4),
    pdl=EARLY,
    ahead=128,
)
CHOICES: dict[int, Choice] = {
    1: Choice(
        up=Tile(ONE, 4, 2048, 1, 4),
        scan=Scan(16, 64, 1, 2),
        down=Tile(ONE, 4, 1024, 1, 8),
        head=Tile(ONE, 4, 2048, 1, 4),
        pdl=EARLY,
        ahead=0,
    ),
    2: _FEW,
    4: replace(_FEW, scan=Scan(8, 64, 1, 2)),
    8: replace(_FEW, scan=Scan(4, 16, 3, 1), pdl=LATE),
    16: replace(_FEW, scan=Scan(2, 16, 3, 1), pdl=0, ahead=0),
    32: Choice(
        up=Tile(WEIGHTS, 64, 128, 3, 4),
        scan=Scan(1, 16, 3, 1),
        down=Tile(WEIGHTS, 64, 64, 8, 4, 4),
        head=Tile(WEIGHTS, 64, 64, 8, 4),
        pdl=0,
        ahead=0,
    ),
    64: Choice(
        up=Tile(ROWS, 128, 128, 3, 8),
        scan=Scan(1, 32, 2, 1),
        down=Tile(WEIGHTS, 64, 128, 5, 4, 4),
        head=Tile(ROWS, 128, 64, 4, 4),
        pdl=LATE,
        ahead=0,
    ),
    128: Choice(
        up=Tile(ROWS, 128, 64, 4, 8),
        scan=Scan(1, 32, 2, 1),
        down=Tile(ROWS, 64, 128, 3, 8, 4),
        head=Tile(ROWS, 128, 64, 4, 8),
        pdl=LATE,
        ahead=0,
    ),
}
"""By the most rows a choice is for."""


def padded(rows: int) -> int:
    """Rows of the tiles that compute `rows`."""
    return 1 if rows == 1 else max(SMALLEST, 1 << (rows - 1).bit_length())


@cache
def choice(dims: Dims, rows: int, itemsize: int, gpu: Gpu) -> Choice | None:
    """What a step of `rows` uses on such a GPU; None if it cannot be computed."""
    if not 1 <= rows <= MOST_ROWS or not _regular(dims):
        return None
    found, bm = CHOICES[min(most for most in CHOICES if rows <= most)], padded(rows)
    fit = _Fit(bm, itemsize, gpu.shared)
    wide, outputs = dims.dim + dims.inner, (3 * dims.dim, dims.inner)
    return replace(
        found,
        up=fit(found.up, dims.dim, outputs),
        down=fit(found.down, wide, (dims.dim,)),
        head=fit(found.head, dims.dim, (dims.vocab,)),
        pdl=found.pdl if gpu.dependent else 0,
    )


def _regular(dims: Dims) -> bool:
    """Whether tiles of the smallest sizes divide everything, and a head is a power of two wide."""
    wide = dims.dim // dims.heads
    sizes = (dims.dim, dims.inner, dims.vocab)
    return not any(size % 64 for size in sizes) and wide & (wide - 1) == 0 and wide >= SMALLEST


@dataclass(frozen=True, slots=True)
class _Fit:
    bm: int
    itemsize: int
    shared: int

    def __call__(self, tile: Tile, columns: int, outputs: tuple[int, ...]) -> Tile:
        """A tile that divides a product of `columns` and `outputs`, and fits into shared memory."""
        splits = tile.splits
        while splits > 1 and columns % (splits * 64):
            splits //= 2
        bn = min([tile.bn, *(_power_in(n) for n in outputs)])
        bk = min(tile.bk, _power_in(columns // splits))
        stages = tile.stages
        while tile.mode != ONE and stages * bk * (self.bm + bn) * self.itemsize > self.shared:
            bk, stages = (bk, stages - 1) if stages > 2 else (bk // 2, stages)
        return replace(tile, bn=bn, bk=bk, stages=stages, splits=splits)


def _power_in(number: int) -> int:
    """The largest power of two that divides `number`."""
    return number & -number
