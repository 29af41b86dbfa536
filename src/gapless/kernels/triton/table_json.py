"""Reading numbers of tiles from JSON's values, strictly: a file may have been made or changed by anyone.

In: what `json` gave. Out: dicts and whole numbers within `LIMITS`, most of them powers of two. Raises `ValueError` that
says what is wrong and where.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gapless.kernels.triton.choices import MODES, Scan, Tile
from gapless.kernels.triton.tiles import ROWS, Tiles
from gapless.kernels.triton.tiles import Tile as Portion

LIMITS = {
    "bn": (1, 256),
    "bk": (16, 4096),
    "stages": (1, 16),
    "warps": (1, 16),
    "splits": (1, 8),
    "bt": (16, 256),
    "pdl": (0, 2),
    "ahead": (0, 4096),
    "lines": (16, 256),
    "deep": (16, 512),
}
"""The least and the most of each number, both included."""
ANY = ("stages", "splits", "pdl")
"""Numbers that need not be powers of two."""
MOST_PARTS = 16
"""Of a row's context; a power of two, unlike the splits of a product."""


def product_of(given: object, where: str) -> Tile:
    """A product's tile."""
    names = ("bn", "bk", "stages", "warps", "splits")
    of = object_of(given, where, ("mode", *names))
    if of["mode"] not in MODES:
        raise ValueError(f"{where}: mode is {of['mode']!r:.40}, but must be {', '.join(MODES)}")
    tile = Tile(MODES.index(of["mode"]), **numbers_of({name: of[name] for name in names}, where, names))
    if not tile.possible:
        raise ValueError(f"{where}: a tile of {tile.bn} times {tile.bk} is too small for matrix units, or too large")
    return tile


def portions_of(given: object, where: str, fewest: int = ROWS[0]) -> Tiles:
    """Tiles of both of experts' kernels, of as many rows each, `fewest` at least."""
    of, names = object_of(given, where, ("up", "down")), ("rows", "lines", "deep", "warps", "stages")
    limits = {"rows": (fewest, ROWS[-1])}
    up, down = (Portion(**numbers_of(of[name], f"{where} {name}", names, limits)) for name in ("up", "down"))
    if up.rows != down.rows:
        raise ValueError(f"{where}: both kernels must have as many rows")
    for tile in (up, down):
        if not tile.possible:
            raise ValueError(f"{where}: a tile of {tile.rows} times {tile.lines} is too large for {tile.warps} warps")
    return Tiles(up, down)


def scan_of(given: object, where: str) -> Scan:
    """How a context is read."""
    scan = Scan(**numbers_of(given, where, ("splits", "bt", "stages", "warps"), {"splits": (1, MOST_PARTS)}))
    if scan.splits & (scan.splits - 1):
        raise ValueError(f"{where}: splits is {scan.splits}, but must be a power of two")
    return scan


def object_of(given: object, where: str, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """An object, with just these `names` if there are any."""
    if not isinstance(given, dict):
        raise ValueError(f"{where} is no object")
    if names is not None and set(given) != set(names):
        raise ValueError(f"{where} must have {', '.join(names)}, and nothing else")
    return given


def key_of(name: str, known: tuple[int, ...], where: str) -> int:
    """A number of rows as a name."""
    if name not in map(str, known):
        raise ValueError(f"{where} has {name!r:.40}, but there are {', '.join(map(str, known))}")
    return int(name)


def numbers_of(
    given: object, where: str, names: tuple[str, ...], limits: Mapping[str, tuple[int, int]] | None = None
) -> dict[str, int]:
    """Those of an object that has no others. `limits`: in place of `LIMITS`."""
    of = object_of(given, where, names)
    return {name: number_of(of[name], name, where, (limits or {}).get(name)) for name in names}


def number_of(given: object, name: str, where: str, limits: tuple[int, int] | None = None) -> int:
    """One, within its limits."""
    low, high = limits or LIMITS[name]
    if isinstance(given, bool) or not isinstance(given, int) or not low <= given <= high:
        raise ValueError(f"{where}: {name} is {given!r:.40}, but must be a whole number from {low} to {high}")
    if name not in ANY and given & (given - 1):
        raise ValueError(f"{where}: {name} is {given}, but must be a power of two")
    return given


def with_modes(plain: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """A choice as a dict, whose tiles `names` have modes: by name, not by number, as `product_of` reads them."""
    return plain | {name: plain[name] | {"mode": MODES[plain[name]["mode"]]} for name in names}
