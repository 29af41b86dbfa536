"""Tables of tiles: what comes with the package, and that nothing impossible is read from anybody's."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from gapless.kernels.triton.choices import BATCHES, Dims, Gpu, choice
from gapless.kernels.triton.table import BUILT_IN, Table, built_in, capabilities, parse, shown
from gapless.kernels.triton.tiles import ROWS

CARDS = {(8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}
"""KiB of shared memory a block may have (CUDA C++ Programming Guide)."""
MOONDREAM_2 = Dims(dim=2048, inner=8192, heads=32, rotary=32, vocab=51200)


def usual() -> Table:
    found = built_in((9, 0))
    assert found is not None
    return found


def test_every_card_has_a_whole_table_whose_tiles_are_used_as_they_stand() -> None:
    assert capabilities() == list(CARDS)
    for card, kib in CARDS.items():
        table = built_in(card)
        assert table is not None and f"{card[0]}.{card[1]}" in table.source
        assert tuple(table.decode) == BATCHES and all(tuple(sizes) == ROWS for sizes in table.experts.values())
        gpu = Gpu(kib * 1024, dependent=card >= (9, 0), choices=table.decode)
        for rows in BATCHES:
            assert choice(MOONDREAM_2, rows, 2, gpu) == table.decode[rows], f"{card}: {rows} rows"
    assert built_in((7, 5)) is None and built_in((10, 3)) is None


def test_what_is_shown_is_read_again() -> None:
    table = usual()
    again = parse(json.loads(json.dumps(shown(table))), table.source)
    assert again == table


def test_one_table_lies_over_another() -> None:
    table = usual()
    mine = parse({"decode": {"8": shown(table)["decode"]["16"]}}, "mine")
    over = mine.over(table)
    assert over.decode[8] == table.decode[16] != table.decode[8] and over.decode[1] == table.decode[1]
    assert over.experts == table.experts and over.source == "mine"
    assert mine.over(Table({}, {}, "")).decode.keys() == {8}


def test_a_batch_size_without_tiles_is_left_to_others() -> None:
    table = parse({"decode": {"8": shown(usual())["decode"]["8"]}}, "mine")
    gpu = Gpu(227 * 1024, True, table.decode)
    assert choice(MOONDREAM_2, 5, 2, gpu) is not None and choice(MOONDREAM_2, 9, 2, gpu) is None


def changed(*path: str, to: Any) -> dict[str, Any]:
    """The usual table with one value changed; `...` takes it away."""
    whole = copy.deepcopy(shown(usual()))
    at: Any = whole
    for name in path[:-1]:
        at = at[name]
    if to is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return whole


@pytest.mark.parametrize(
    ("path", "to", "says"),
    [
        (("decode",), [1], "decode is no object"),
        (("decode", "3"), {}, "'3'"),
        (("decode", "8"), None, "decode 8 is no object"),
        (("decode", "8", "up"), ..., "must have"),
        (("decode", "8", "more"), 1, "nothing else"),
        (("decode", "8", "up", "mode"), "one", "single row"),
        (("decode", "1", "down"), shown(usual())["decode"]["8"]["down"], "single row"),
        (("decode", "8", "up", "mode"), ["weights"], "must be rows, weights, one"),
        (("decode", "8", "up", "bn"), 0, "bn is 0"),
        (("decode", "8", "up", "bn"), 48, "power of two"),
        (("decode", "8", "up", "bn"), 8, "too small"),
        (("decode", "8", "up", "bn"), True, "bn is True"),
        (("decode", "8", "up", "bn"), 64.0, "bn is 64.0"),
        (("decode", "8", "up", "bk"), 1e999, "bk is inf"),
        (("decode", "8", "up", "bk"), 10**30, "whole number from 16 to 4096"),
        (("decode", "1", "up", "bn"), 256, "too small for matrix units, or too large"),
        (("decode", "8", "up", "splits"), 2, "only down"),
        (("decode", "8", "down", "splits"), 9, "splits is 9"),
        (("decode", "8", "scan", "splits"), 3, "power of two"),
        (("decode", "8", "scan", "warps"), -1, "warps is -1"),
        (("decode", "8", "pdl"), 3, "pdl is 3"),
        (("decode", "8", "ahead"), 100, "power of two"),
        (("experts", "int4"), {}, "int4"),
        (("experts", "float8", "24"), {}, "'24'"),
        (("experts", "float8", "16", "up", "rows"), 32, "as many rows"),
        (("experts", "float8", "16", "down", "deep"), 2**20, "deep is"),
    ],
)
def test_what_no_kernel_can_be_is_refused_with_its_place(path: tuple[str, ...], to: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace(".", r"\.")):
        parse(changed(*path, to=to), "mine")


@pytest.mark.parametrize("given", [None, 1, "table", [], [[]]])
def test_what_is_no_object_is_no_table(given: object) -> None:
    with pytest.raises(ValueError, match="the table is no object"):
        parse(given, "mine")


def test_the_file_is_no_longer_than_it_must_be() -> None:
    assert BUILT_IN.stat().st_size < 64_000
