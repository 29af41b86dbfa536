"""Tables of tiles: what `choices` and `tiles` cut down to a model and a card, read from JSON.

In: `table.json` beside this, which has a table for each compute capability that the kernels were compiled for; or a
file that `gapless tune` wrote, see `tuned`. Out: a `Table`. A file may have been made or changed by anyone, so nothing
is taken from it that a kernel could not be compiled with: numbers are whole and within `LIMITS`, most of them powers of
two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gapless.kernels.triton import tiles
from gapless.kernels.triton.choices import BATCHES, MODES, ONE, Choice
from gapless.kernels.triton.sparse_choices import Sparse
from gapless.kernels.triton.sparse_table import shown_sparse, sparse_of
from gapless.kernels.triton.table_json import key_of, number_of, object_of, portions_of, product_of, scan_of, with_modes

BUILT_IN = Path(__file__).with_name("table.json")
KINDS = {"bfloat16": 2, "float8": 1}
"""Weights of experts by name, and their bytes: float16 is cut as bfloat16 is."""


@dataclass(frozen=True, slots=True)
class Table:
    """Tiles by batch size, and those of experts by the bytes of their weights and by pairs; `sparse`: by batch size, of
    steps with experts in them. Each may lack some.

    `source` is for people: where they are from.
    """

    decode: Mapping[int, Choice]
    experts: Mapping[int, Mapping[int, tiles.Tiles]]
    source: str
    sparse: Mapping[int, Sparse] = field(default_factory=dict)

    def over(self, other: Table) -> Table:
        """This one, and the other's where this one has none."""
        kinds = {**other.experts, **self.experts}
        experts = {size: {**other.experts.get(size, {}), **self.experts.get(size, {})} for size in kinds}
        return Table({**other.decode, **self.decode}, experts, self.source, {**other.sparse, **self.sparse})


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
    whole = object_of(given, "the table")
    batches, experts = object_of(whole.get("decode", {}), "decode"), object_of(whole.get("experts", {}), "experts")
    named_sparse = object_of(whole.get("sparse", {}), "sparse")
    decode = {key_of(name, BATCHES, "decode"): _choice(value, name) for name, value in batches.items()}
    kinds: dict[int, Mapping[int, tiles.Tiles]] = {}
    for kind, sizes in experts.items():
        if kind not in KINDS:
            raise ValueError(f"experts has {kind!r:.40}, but weights are {' or '.join(KINDS)}")
        named = object_of(sizes, f"experts {kind}").items()
        kinds[KINDS[kind]] = {key_of(name, tiles.ROWS, kind): _tiles(value, kind, int(name)) for name, value in named}
    sparse = {key_of(name, BATCHES, "sparse"): sparse_of(value, name) for name, value in named_sparse.items()}
    return Table(dict(sorted(decode.items())), kinds, source, dict(sorted(sparse.items())))


def shown(table: Table) -> dict[str, Any]:
    """What `parse` reads."""
    names = {size: kind for kind, size in KINDS.items()}
    decode = {str(rows): _shown_choice(choice) for rows, choice in table.decode.items()}
    experts = {
        names[size]: {str(rows): asdict(both) for rows, both in of.items()} for size, of in table.experts.items()
    }
    sparse = {str(rows): shown_sparse(choice) for rows, choice in table.sparse.items()}
    return {"decode": decode, "experts": experts, "sparse": sparse}


def _shown_choice(choice: Choice) -> dict[str, Any]:
    return with_modes(asdict(choice), ("up", "down", "head"))


def _choice(given: object, rows: str) -> Choice:
    where = f"decode {rows}"
    of = object_of(given, where, ("up", "scan", "down", "head", "pdl", "ahead"))
    up, down, head = (product_of(of[name], f"{where} {name}") for name in ("up", "down", "head"))
    for tile in (up, down, head):
        if (tile.mode == ONE) is not (rows == "1"):
            raise ValueError(f"{where}: mode {MODES[ONE]} is for a single row, and the others are for several")
    if up.splits > 1 or head.splits > 1:
        raise ValueError(f"{where}: only down has splits")
    scan = scan_of(of["scan"], f"{where} scan")
    return Choice(up, scan, down, head, number_of(of["pdl"], "pdl", where), number_of(of["ahead"], "ahead", where))


def _tiles(given: object, kind: str, rows: int) -> tiles.Tiles:
    where = f"experts {kind} {rows}"
    both = portions_of(given, where)
    if both.up.rows != rows:
        raise ValueError(f"{where}: both kernels must have as many rows as they are for")
    return both
