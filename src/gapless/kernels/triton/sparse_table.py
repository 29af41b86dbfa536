"""Tiles of steps with experts in them, from JSON's values and to them: what `gapless tune` keeps of them.

In: an object of a file. Out: a `Many` or, for one row, a `Lone`, of numbers that kernels can be compiled with. What
comes with the package stands in `sparse_choices`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gapless.kernels.triton.choices import ONE
from gapless.kernels.triton.sparse_choices import MOST_SHARES, NARROWEST, Lone, Many, Sparse
from gapless.kernels.triton.table_json import (
    number_of,
    numbers_of,
    object_of,
    portions_of,
    product_of,
    scan_of,
    with_modes,
)

PRODUCTS = ("up", "proj", "dense", "head")
PAIRS = ("up", "middle", "experts_down", "dense_down", "head")
FEWEST_ROWS = 4
"""Of a tile of experts: steps of so few rows have tiles of their own."""


def sparse_of(given: object, rows: str) -> Sparse:
    """What `shown_sparse` made. Raises `ValueError`."""
    where = f"sparse {rows}"
    return _lone(given, where) if rows == "1" else _many(given, where)


def shown_sparse(choice: Sparse) -> dict[str, Any]:
    """What `sparse_of` reads."""
    plain = asdict(choice)
    if isinstance(choice, Many):
        return with_modes(plain, PRODUCTS)
    return plain | {name: {"bn": plain[name][0], "warps": plain[name][1]} for name in PAIRS}


def _many(given: object, where: str) -> Many:
    of = object_of(given, where, (*PRODUCTS, "scan", "experts", "pdl", "ahead", "close", "cut"))
    up, proj, dense, head = (product_of(of[name], f"{where} {name}") for name in PRODUCTS)
    if ONE in (up.mode, proj.mode, dense.mode, head.mode):
        raise ValueError(f"{where}: mode one is for a single row")
    if up.splits > 1 or head.splits > 1 or max(proj.splits, dense.splits) > MOST_SHARES:
        raise ValueError(f"{where}: only proj and dense have splits, {MOST_SHARES} at most")
    if not isinstance(of["cut"], bool):
        raise ValueError(f"{where}: cut is {of['cut']!r:.40}, but must be true or false")
    if up.bn < NARROWEST:
        raise ValueError(f"{where} up: bn is {up.bn}, but must be {NARROWEST} or more")
    return Many(
        up=up,
        scan=scan_of(of["scan"], f"{where} scan"),
        proj=proj,
        dense=dense,
        head=head,
        experts=None if of["experts"] is None else portions_of(of["experts"], f"{where} experts", FEWEST_ROWS),
        pdl=number_of(of["pdl"], "pdl", where),
        ahead=number_of(of["ahead"], "ahead", where),
        close=number_of(of["close"], "warps", f"{where} close"),
        cut=of["cut"],
    )


def _lone(given: object, where: str) -> Lone:
    of = object_of(given, where, (*PAIRS, "scan", "columns", "pdl"))
    pairs = [numbers_of(of[name], f"{where} {name}", ("bn", "warps")) for name in PAIRS]
    up, middle, experts_down, dense_down, head = ((pair["bn"], pair["warps"]) for pair in pairs)
    scan, columns = scan_of(of["scan"], f"{where} scan"), number_of(of["columns"], "bk", f"{where} columns")
    return Lone(scan, up, middle, experts_down, dense_down, head, columns, number_of(of["pdl"], "pdl", where))
