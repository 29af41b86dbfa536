"""Tables of tiles: what `choices` and `tiles` cut down to a model and a card, read from JSON.

In: `table.json` beside this, which has a table for each compute capability that the kernels were compiled for; or a
file that `gapless tune` wrote, see `tuned`. Out: a `Table`. A file may have been made or changed by anyone, so nothing
is taken from it that a kernel could not be compiled with: numbers are whole and within `LIMITS`, most of them powers of
two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gapless.kernels.triton import tiles
from gapless.kernels.triton.choices import BATCHES, MODES, ONE, Choice, Scan, Tile

BUILT_IN = Path(__file__).with_name("table.json")
KINDS = {"bfloat16": 2, "float8": 1}
"""Weights of experts by name, and their bytes: float16 is cut as bfloat16 is."""
LIMITS = {
    "bn": (1, 256),
    "bk": (16, 4096),
    "stages": (1, 16),
    "warps": (1, 16),
    "splits": (1, 8),
    "bt": (16, 256),
    "pdl": (0, 2),
    "ahead": (0, 4096),
    "rows": (16, 128),
    "lines": (16, 256),
    "deep": (16, 512),
}
"""The least and the most of each number, both included."""
ANY = ("stages", "splits", "pdl")
"""Numbers that need not be powers of two."""
MOST_PARTS = 16
"""Of a row's context; a power of two, unlike the splits of a product."""


@dataclass(frozen=True, slots=True)
class Table:
    """Tiles by batch size, and those of experts by the bytes of their weights and by pairs. Either may lack some.

    `source` is for people: where they are from.
    """

    decode: Mapping[int, Choice]
    experts: Mapping[int, Mapping[int, tiles.Tiles]]
    source: str

    def over(self, other: Table) -> Table:
        """This one, and the other's where this one has none."""
        kinds = {**other.experts, **self.experts}
        experts = {size: {**other.experts.get(size, {}), **self.experts.get(size, {})} for size in kinds}
        return Table({**other.decode, **self.decode}, experts, self.source)


@cache
def built_in(capability: tuple[int, int]) -> Table | None:
    """The table that comes with the package for such a card; None if there is none."""
    name = "{}.{}".format(*capability)
    found = json.loads(BUILT_IN.read_text(encoding="utf-8"))["cards"].get(name)
    return None if found is None else parse(found, f"built in for compute capability {name}")


def capabilities() -> list[tuple[int, int]]:
    """Those that there are tables for."""
    names = json.loads(BUILT_IN.read_text(encoding="utf-8"))["cards"]
    return [(int(major), int(minor)) for major, _, minor in (name.partition(".") for name in names)]


def parse(given: object, source: str) -> Table:
    """A table from JSON's values. Raises `ValueError` that says what is wrong and where."""
    whole = _object(given, "the table")
    batches, experts = _object(whole.get("decode", {}), "decode"), _object(whole.get("experts", {}), "experts")
    decode = {_key(name, BATCHES, "decode"): _choice(value, name) for name, value in batches.items()}
    kinds: dict[int, Mapping[int, tiles.Tiles]] = {}
    for kind, sizes in experts.items():
        if kind not in KINDS:
            raise ValueError(f"experts has {kind!r:.40}, but weights are {' or '.join(KINDS)}")
        named = _object(sizes, f"experts {kind}").items()
        kinds[KINDS[kind]] = {_key(name, tiles.ROWS, kind): _tiles(value, kind, int(name)) for name, value in named}
    return Table(dict(sorted(decode.items())), kinds, source)


def shown(table: Table) -> dict[str, Any]:
    """What `parse` reads."""
    names = {size: kind for kind, size in KINDS.items()}
    decode = {str(rows): _shown_choice(choice) for rows, choice in table.decode.items()}
    experts = {
        names[size]: {str(rows): asdict(both) for rows, both in of.items()} for size, of in table.experts.items()
    }
    return {"decode": decode, "experts": experts}


def _shown_choice(choice: Choice) -> dict[str, Any]:
    plain = asdict(choice)
    for name in ("up", "down", "head"):
        plain[name]["mode"] = MODES[plain[name]["mode"]]
    return plain


def _choice(given: object, rows: str) -> Choice:
    where = f"decode {rows}"
    of = _object(given, where, ("up", "scan", "down", "head", "pdl", "ahead"))
    up, down, head = (_product(of[name], f"{where} {name}") for name in ("up", "down", "head"))
    for tile in (up, down, head):
        if (tile.mode == ONE) is not (rows == "1"):
            raise ValueError(f"{where}: mode {MODES[ONE]} is for a single row, and the others are for several")
    if up.splits > 1 or head.splits > 1:
        raise ValueError(f"{where}: only down has splits")
    scan = Scan(**_numbers(of["scan"], f"{where} scan", ("splits", "bt", "stages", "warps"), {"splits": MOST_PARTS}))
    if scan.splits & (scan.splits - 1):
        raise ValueError(f"{where} scan: splits is {scan.splits}, but must be a power of two")
    return Choice(up, scan, down, head, _number(of["pdl"], "pdl", where), _number(of["ahead"], "ahead", where))


def _product(given: object, where: str) -> Tile:
    names = ("bn", "bk", "stages", "warps", "splits")
    of = _object(given, where, ("mode", *names))
    if of["mode"] not in MODES:
        raise ValueError(f"{where}: mode is {of['mode']!r:.40}, but must be {', '.join(MODES)}")
    tile = Tile(MODES.index(of["mode"]), **_numbers({name: of[name] for name in names}, where, names))
    if not tile.possible:
        raise ValueError(f"{where}: a tile of {tile.bn} times {tile.bk} is too small for matrix units, or too large")
    return tile


def _tiles(given: object, kind: str, rows: int) -> tiles.Tiles:
    names = ("rows", "lines", "deep", "warps", "stages")
    where = f"experts {kind} {rows}"
    of = _object(given, where, ("up", "down"))
    up, down = (tiles.Tile(**_numbers(of[name], f"{where} {name}", names)) for name in ("up", "down"))
    if not up.rows == down.rows == rows:
        raise ValueError(f"{where}: both kernels must have as many rows as they are for")
    return tiles.Tiles(up, down)


def _object(given: object, where: str, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"{where} is no object")
    if names is not None and set(given) != set(names):
        raise ValueError(f"{where} must have {', '.join(names)}, and nothing else")
    return given


def _key(name: str, known: tuple[int, ...], where: str) -> int:
    if name not in map(str, known):
        raise ValueError(f"{where} has {name!r:.40}, but there are {', '.join(map(str, known))}")
    return int(name)


def _numbers(
    given: object, where: str, names: tuple[str, ...], most: Mapping[str, int] | None = None
) -> dict[str, int]:
    of = _object(given, where, names)
    return {name: _number(of[name], name, where, (most or {}).get(name)) for name in names}


def _number(given: object, name: str, where: str, most: int | None = None) -> int:
    low, high = LIMITS[name]
    high = most or high
    if isinstance(given, bool) or not isinstance(given, int) or not low <= given <= high:
        raise ValueError(f"{where}: {name} is {given!r:.40}, but must be a whole number from {low} to {high}")
    if name not in ANY and given & (given - 1):
        raise ValueError(f"{where}: {name} is {given}, but must be a power of two")
    return given
