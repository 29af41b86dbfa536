"""In what portions the experts' kernels work: by how many pairs an expert has on average, and by what a card holds.

Pure arithmetic. `lines` rows of a matrix meet `rows` pairs, `deep` columns at a time, `stages` of those on their way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

ROWS = (16, 32, 64, 128)
"""Pairs of a tile; the first is the least that tensor cores take."""
HALF = 2
"""Bytes of an element that tokens are computed in."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One kernel's portions."""

    rows: int
    lines: int
    deep: int
    warps: int
    stages: int

    def shared(self, matrices: int, itemsize: int) -> int:
        """Bytes of shared memory, at most: all stages of so many matrices and tokens, and FP8 once more, widened."""
        widened = self.deep * matrices * self.lines * HALF if itemsize < HALF else 0
        return self.stages * self.deep * (matrices * self.lines * itemsize + self.rows * HALF) + widened


@dataclass(frozen=True, slots=True)
class Tiles:
    """Of `up`, whose two halves are two matrices, and of `down`. Both have the same `rows`."""

    up: Tile
    down: Tile


_WIDE = {
    16: Tiles(Tile(16, 64, 128, 4, 3), Tile(16, 64, 128, 4, 3)),
    32: Tiles(Tile(32, 64, 128, 4, 4), Tile(32, 64, 128, 4, 3)),
    64: Tiles(Tile(64, 64, 64, 4, 3), Tile(64, 128, 64, 8, 3)),
    128: Tiles(Tile(128, 128, 64, 8, 4), Tile(128, 128, 64, 8, 3)),
}
"""Tokens and matrices both of two bytes."""
_NARROW = {
    16: Tiles(Tile(16, 32, 256, 4, 3), Tile(16, 128, 128, 4, 3)),
    32: Tiles(Tile(32, 64, 128, 4, 3), Tile(32, 128, 128, 4, 3)),
    64: Tiles(Tile(64, 64, 64, 4, 3), Tile(64, 256, 64, 8, 3)),
    128: Tiles(Tile(128, 64, 64, 4, 4), Tile(128, 128, 64, 4, 4)),
}
"""Matrices of one byte. Found on an H200, as the others."""


def tiles_for(pairs: int, experts: int, itemsize: int, shared: int) -> Tiles:
    """For so many pairs and experts, matrices of `itemsize` bytes, on a card with `shared` bytes for a program."""
    average = pairs / experts
    return tiles_of(next((rows for rows in ROWS if 1.5 * average <= rows), ROWS[-1]), itemsize, shared)


def tiles_of(rows: int, itemsize: int, shared: int) -> Tiles:
    """Those of so many rows, one of `ROWS`."""
    best = (_WIDE if itemsize == HALF else _NARROW)[rows]
    return Tiles(_fitted(best.up, 2, itemsize, shared), _fitted(best.down, 1, itemsize, shared))


def most_tiles(pairs: int, experts: int, rows: int) -> int:
    """How many tiles there could be: an expert that has any pair has at most one that is not full."""
    return (pairs + min(pairs, experts) * (rows - 1)) // rows


def _fitted(tile: Tile, matrices: int, itemsize: int, shared: int) -> Tile:
    """The same with fewer stages, if that many do not fit."""
    while tile.stages > 1 and tile.shared(matrices, itemsize) > shared:
        tile = replace(tile, stages=tile.stages - 1)
    return tile
