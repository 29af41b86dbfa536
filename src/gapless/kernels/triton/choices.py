"""Which tiles the kernels of a decode step use, by how many rows it has.

In: a step's dimensions and rows, and what the GPU offers. Out: a `Choice`, cut down to what divides the dimensions and
fits. What is cut down stands in a table by batch size, see `table`: one
comes with the package for each kind of card, measured on an H200 with Moondream 2's dimensions; `gapless tune` writes
others. Where the weights alone are read, what is best depends little on the dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

MODES = ("rows", "weights", "one")
ROWS, WEIGHTS, ONE = 0, 1, 2
"""How a product of a few rows x with many weights w is computed: x w^T with the rows on the side of the matrix units
that is 64 wide or more; w x^T, for fewer rows; or, for a single one, whose padding to 16 would cost more than it helps,
as sums of products in float32."""
EARLY, LATE = 1, 2
"""When a kernel lets the next one start: at once, or behind its own main loop. 0: when it is over."""
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Most rows that the choices of a table may be for."""
MOST_ROWS = BATCHES[-1]
SMALLEST = 16
"""Sides of a tile on the matrix units."""
MOST_SCANS = 128
"""Rows of a step times the parts of a context: as many parts there is room for."""
MOST_SOON = 64
"""Keys and values that a program asks for before it needs them."""
MOST_HELD, MOST_STAGED = 256, 2**16
"""Weights of a tile: in the registers of a thread, and in a stage in shared memory."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A product's tile: BN rows of the weights, BK columns at a time, `stages` of them on their way, in `splits`."""

    mode: int
    bn: int
    bk: int
    stages: int
    warps: int
    splits: int = 1

    @property
    def possible(self) -> bool:
        """Whether a kernel of it can be compiled at all: a thread holds a bounded part of it, and matrix units fill."""
        if self.mode == ONE:
            return self.bn * self.bk <= MOST_HELD * 32 * self.warps
        return min(self.bn, self.bk) >= SMALLEST and self.bn * self.bk <= MOST_STAGED


@dataclass(frozen=True, slots=True)
class Scan:
    """How a row's context is read: in `splits` parts, BT tokens at a time."""

    splits: int
    bt: int
    stages: int
    warps: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One step's tiles. `pdl`: when each kernel lets the next one start; `ahead`: how many columns of its weights a
    kernel asks for while it waits, see `soon` for keys and values."""

    up: Tile
    scan: Scan
    down: Tile
    head: Tile
    pdl: int
    ahead: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a GPU offers: bytes of shared memory of a block, and whether a kernel may start before the one before it is
    over. `choices`: the table it has, by the most rows that one is for. `narrow`: whether its matrix units multiply FP8
    by FP8 from shared memory, as `narrow_jit` has it."""

    shared: int
    dependent: bool
    choices: Mapping[int, Choice] = field(hash=False)
    narrow: bool = False


@dataclass(frozen=True, slots=True)
class Dims:
    """A decoder's sizes."""

    dim: int
    inner: int
    heads: int
    rotary: int
    vocab: int


def soon(ahead: int, splits: int) -> int:
    """Keys and values that a program asks for beforehand where kernels ask for so many columns of weights: half as
    many, where contexts are read whole; of a part of one they would be most, all at once."""
    return min(MOST_SOON, ahead // 2) if splits == 1 else 0


def padded(rows: int) -> int:
    """Rows of the tiles that compute `rows`."""
    return 1 if rows == 1 else max(SMALLEST, 1 << (rows - 1).bit_length())


@cache
def choice(dims: Dims, rows: int, itemsize: int, gpu: Gpu) -> Choice | None:
    """What a step of `rows` uses on such a GPU; None if it cannot be computed, or the table has nothing for it."""
    if not 1 <= rows <= MOST_ROWS or not _regular(dims):
        return None
    most = min((most for most in gpu.choices if rows <= most), default=None)
    if most is None:
        return None
    found, bm = gpu.choices[most], padded(rows)
    fit = _Fit(bm, itemsize, gpu.shared)
    wide, outputs = dims.dim + dims.inner, (3 * dims.dim, dims.inner)
    return replace(
        found,
        up=fit(found.up, dims.dim, outputs),
        down=fit(found.down, wide, (dims.dim,)),
        scan=split(found.scan, rows),
        head=fit(found.head, dims.dim, (dims.vocab,)),
        pdl=found.pdl if gpu.dependent else 0,
        ahead=found.ahead if gpu.dependent else 0,
    )


def split(scan: Scan, rows: int) -> Scan:
    """The same in no more parts than there is room for."""
    splits = scan.splits
    while splits > 1 and splits * rows > MOST_SCANS:
        splits //= 2
    return replace(scan, splits=splits)


def over_bytes(scan: Scan, rows: int) -> Scan:
    """The same where a key's or value's number is one byte and not two: as many bytes at a time. A single row's parts
    are short, and stay as they are."""
    return scan if rows == 1 else replace(scan, bt=2 * scan.bt)


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


def tiles_of_region(dim: int, inner: int, bins: int, rows: int, itemsize: int, gpu: Gpu) -> tuple[Tile, Tile]:
    """Those of a region's decoders: of [inner, dim] behind hidden states, and of [bins, inner] behind that. They are
    like a step's `up` and `down`."""
    found, fit = (
        gpu.choices[min(most for most in gpu.choices if rows <= most)],
        _Fit(padded(rows), itemsize, gpu.shared),
    )
    return fit(found.up, dim, (inner,)), fit(found.down, inner, (bins,))
