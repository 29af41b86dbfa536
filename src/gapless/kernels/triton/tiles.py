"""In what portions the experts' kernels work: by how many pairs an expert has on average, and by what a card holds.

Pure arithmetic over a table. `lines` rows of a matrix meet `rows` pairs, `deep` columns at a time, `stages` of
those on their way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

ROWS = (16, 32, 64, 128)
"""Pairs of a tile; the first is the least that tensor cores take."""
CUTS = 4
"""Numbers that a token's element is cut into for products in FP8, see `cut_jit`."""
HALF = 2
"""Bytes of an element that tokens are computed in."""
LEAST_DEEP = 16
"""Columns that matrix units take at least, of two bytes each; of FP8 twice as many."""
MOST_HELD = 256 * 32
"""Sums of a product that a warp holds at most: with more compiling takes minutes."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One kernel's portions."""

    rows: int
    lines: int
    deep: int
    warps: int
    stages: int

    @property
    def possible(self) -> bool:
        """Whether warps can hold the sums of one matrix."""
        return self.rows * self.lines <= MOST_HELD * self.warps

    def shared(self, matrices: int, itemsize: int) -> int:
        """Bytes of shared memory, at most: all stages of so many matrices and tokens, and FP8 once more, widened."""
        widened = self.deep * matrices * self.lines * HALF if itemsize < HALF else 0
        return self.stages * self.deep * (matrices * self.lines * itemsize + self.rows * HALF) + widened

    def shared_cut(self, matrices: int) -> int:
        """The same where FP8 is multiplied as it is, by tokens that are cut into `CUTS` numbers."""
        return self.stages * self.deep * (matrices * self.lines + self.rows * CUTS)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Of `up`, whose two halves are two matrices, and of `down`. Both have the same `rows`."""

    up: Tile
    down: Tile


Kinds = Mapping[int, Mapping[int, Tiles]]
"""By bytes of a matrix' element, then by the rows of a tile; see `table`."""


def tiles_for(pairs: int, experts: int, itemsize: int, shared: int, kinds: Kinds) -> Tiles:
    """For so many pairs and experts, matrices of `itemsize` bytes, on a card with `shared` bytes for a program."""
    average = pairs / experts
    return tiles_of(next((rows for rows in ROWS if 1.5 * average <= rows), ROWS[-1]), itemsize, shared, kinds)


def tiles_of(rows: int, itemsize: int, shared: int, kinds: Kinds) -> Tiles:
    """Those of so many rows, one of `ROWS`."""
    return fitted(kinds[itemsize][rows], itemsize, shared)


def fitted(tiles: Tiles, itemsize: int, shared: int) -> Tiles:
    """The same with fewer stages, and then fewer columns, if that many do not fit."""
    return Tiles(_fitted(tiles.up, 2, itemsize, shared), _fitted(tiles.down, 1, itemsize, shared))


def most_tiles(pairs: int, experts: int, rows: int) -> int:
    """How many tiles there could be: an expert that has any pair has at most one that is not full."""
    return (pairs + min(pairs, experts) * (rows - 1)) // rows


def _fitted(tile: Tile, matrices: int, itemsize: int, shared: int) -> Tile:
    while tile.shared(matrices, itemsize) > shared and (tile.stages > 1 or tile.deep > LEAST_DEEP):
        fewer = tile.stages > 1
        tile = replace(tile, stages=tile.stages - 1) if fewer else replace(tile, deep=tile.deep // 2)
    return tile


@dataclass(frozen=True, slots=True)
class PromptTile:
    """Of a prompt's attention: `rows` queries meet `keys` positions at a time, `stages` of those on their way."""

    rows: int
    keys: int
    warps: int
    stages: int


PROMPT = PromptTile(64, 64, 4, 3)
"""On an H200 the fastest for one picture's prompt and for eight; every card has as much shared memory as it takes."""
