"""The sparse step without a GPU: interpreted and compiled, each in a process of its own; and what its tiles are."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
import torch

from gapless.kernels.triton.choices import MOST_ROWS, MOST_SCANS, Gpu, padded
from gapless.kernels.triton.sparse_choices import (
    MANY,
    MOST_SHARE,
    MOST_SHARES,
    NARROWEST,
    UNIT,
    Lone,
    Many,
    Own,
    SparseDims,
    choice,
)
from gapless.kernels.triton.tiles import CUTS, Tile, Tiles

ROOT = Path(__file__).resolve().parents[2]
SMALL_CARD, LARGE_CARD = Gpu(99 * 1024, False, {}), Gpu(227 * 1024, True, {})
MOONDREAM_3 = SparseDims(2048, 8192, 32, 32, 51200, experts=64, share=8, expert_inner=1024)
GLINT = SparseDims(256, 512, 4, 32, 2048, experts=8, share=2, expert_inner=64, expert_itemsize=1)
ODD = SparseDims(192, 320, 6, 16, 448, experts=7, share=3, expert_inner=48)
ALL_DENSE = replace(GLINT, experts=0, share=0, expert_inner=0, expert_itemsize=2)
ALL_MIXED = replace(GLINT, ff=0)
NARROW_3, NARROW_CARD = replace(MOONDREAM_3, expert_itemsize=1), replace(LARGE_CARD, narrow=True)
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


def run(script: str, *arguments: str, interpret: str, seconds: float) -> list[list[str]]:
    """The words of each line that a script prints."""
    command = [sys.executable, "-m", f"tests.kernels.{script}", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(("src", ".", *sys.path)), "TRITON_INTERPRET": interpret}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.slow
@needs_triton
def test_a_step_is_right_when_interpreted() -> None:
    scenes = run("interpreted_sparse", interpret="1", seconds=600)
    assert [(scene[0], scene[-1]) for scene in scenes] == [
        ("1", "7"), ("1", "7"), ("3", "12"), ("17", "12"), ("33", "8"), ("65", "8"),
        ("40", "8"), ("1fp8", "7"), ("17fp8", "12"), ("7cut", "11"), ("40cut", "7")
    ]  # fmt: skip
    for which, hidden, logits, stored, unseen, counted, _ in scenes:
        # in FP8 a number may go either of two ways; of float32 what is cut has 12 bits
        limit = 1e-5 if which.isdecimal() else 4e-4 if which.endswith("cut") else 1e-2
        assert max(float(hidden), float(logits), float(stored)) < limit
        assert unseen == "True", "something was written, or left out, that should not"
        assert counted == "True", "not the likeliest experts were taken"


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
def test_every_kernel_compiles_for_every_card_within_its_memory(capability: int) -> None:
    compiled = run("compiled_sparse", str(capability), interpret="0", seconds=900)
    lone = {name for module, name, *_ in compiled if module == "lone_jit"}
    assert lone == {"up", "middle", "experts_down", "dense_down"}
    many = {name for module, name, *_ in compiled if module in ("sparse_jit", "mixed_jit")}
    assert many == {"begin", "up", "scan", "experts_up", "experts_down", "dense_down", "close", "head"}
    narrow = {name for module, name, *_ in compiled if module == "narrow_jit"}
    assert narrow == ({"experts"} if capability == 90 else set())
    waits = {(name, *heard) for _, name, _, _, *heard in compiled if heard}  # for `up` of an expert, 32 lines each
    assert waits == ({("experts", "32"), ("experts", "2")} if capability == 90 else set())
    assert len(compiled) > 100


@pytest.mark.parametrize("gpu", [SMALL_CARD, LARGE_CARD], ids=["small", "large"])
@pytest.mark.parametrize("dims", [MOONDREAM_3, GLINT, ODD, ALL_DENSE, ALL_MIXED])
def test_tiles_divide_what_they_cut_and_fit(dims: SparseDims, gpu: Gpu) -> None:
    for rows in range(2, MOST_ROWS + 1):
        chosen, bm = choice(dims, rows, 2, gpu), padded(rows)
        assert isinstance(chosen, Many) and bm >= rows and (chosen.pdl == 0 or gpu.dependent)
        assert 3 * dims.dim % chosen.up.bn == 0 and UNIT % chosen.up.bn == 0 and dims.ff % chosen.up.bn == 0
        assert dims.vocab % chosen.head.bn == 0 and chosen.up.bn >= NARROWEST
        cuts = [(chosen.up, dims.dim), (chosen.head, dims.dim), (chosen.proj, dims.dim // chosen.proj.splits)]
        cuts += [(chosen.dense, (dims.dim + dims.ff) // chosen.dense.splits)]
        for tile, columns in cuts:
            assert columns % tile.bk == 0
            assert tile.stages > 1 and tile.stages * tile.bk * (bm + tile.bn) * 2 <= gpu.shared
        for tile, columns in ((chosen.proj, dims.dim), (chosen.dense, dims.dim + dims.ff)):
            assert columns % tile.splits == 0 and dims.dim % tile.bn == 0
        assert rows * chosen.scan.splits <= MOST_SCANS and max(chosen.proj.splits, chosen.dense.splits) <= MOST_SHARES
        assert (chosen.experts is None) is (dims.experts == 0)
        if chosen.experts is not None:
            for experts, matrices in ((chosen.experts.up, 2), (chosen.experts.down, 1)):
                assert experts.shared(matrices, dims.expert_itemsize) <= gpu.shared


@pytest.mark.parametrize("dims", [MOONDREAM_3, GLINT, ODD, ALL_DENSE, ALL_MIXED])
def test_one_row_has_tiles_of_its_own(dims: SparseDims) -> None:
    lone = choice(dims, 1, 2, LARGE_CARD)
    assert isinstance(lone, Lone) and lone.pdl > 0 and 3 * dims.dim % lone.up[0] == 0
    assert dims.ff == 0 or (dims.ff % lone.columns == 0 and lone.columns & (lone.columns - 1) == 0)


@pytest.mark.parametrize(
    ("dims", "gpu", "cut"),
    [
        (NARROW_3, NARROW_CARD, True), (GLINT, NARROW_CARD, True), (NARROW_3, replace(SMALL_CARD, narrow=True), True),
        (MOONDREAM_3, NARROW_CARD, False), (NARROW_3, LARGE_CARD, False), (ALL_DENSE, NARROW_CARD, False),
        (replace(ODD, expert_itemsize=1), NARROW_CARD, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rows", MANY)
def test_fp8_is_multiplied_as_it_is_where_gpu_and_sizes_allow(dims: SparseDims, gpu: Gpu, cut: bool, rows: int) -> None:
    found = choice(dims, rows, 2, gpu)
    assert isinstance(found, Many) and found.cut is cut
    again = choice(dims, rows, 2, gpu, Own({rows: replace(found, cut=True)}))
    assert isinstance(again, Many) and again.cut is cut
    if cut:
        assert found.experts is not None and again == found
        up, down, inner = found.experts.up, found.experts.down, dims.expert_inner
        for tile, matrices, lines, columns in ((up, 2, inner, dims.dim), (down, 1, dims.dim, inner)):
            assert lines % tile.lines == 0 and columns % tile.deep == 0
            assert tile.lines * matrices % UNIT == 0 and tile.warps == up.warps and tile.warps % 4 == 0
            assert tile.shared_cut(matrices) <= gpu.shared and tile.stages > 1
        assert up.rows == down.rows <= max(4, rows), "rows that there are none of would be multiplied"
    other = choice(dims, rows, 2, replace(gpu, narrow=False), Own({rows: found}))
    assert isinstance(other, Many) and not other.cut


@needs_triton
def test_only_one_kind_of_card_multiplies_fp8_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from gapless.kernels.triton import offer

    found = {}
    for capability in ((8, 0), (8, 9), (9, 0), (10, 0), (12, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, own=capability: own)
        found[capability] = offer.sparse_gpu(torch.device("cpu")).narrow
    assert [capability for capability, narrow in found.items() if narrow] == [(9, 0)]


@pytest.mark.parametrize("gpu", [NARROW_CARD, replace(SMALL_CARD, narrow=True)], ids=["large", "small"])
@pytest.mark.parametrize("dims", [NARROW_3, GLINT], ids=["3.1", "small"])
@pytest.mark.parametrize("cut", [True, False])
def test_tiles_of_any_file_are_cut_to_what_can_be_compiled(dims: SparseDims, gpu: Gpu, cut: bool) -> None:
    """Files may be changed by anyone: the least and the most of every number."""
    usual = choice(dims, 8, 2, gpu)
    assert isinstance(usual, Many)
    for rows, lines, deep, warps, stages in product((4, 128), (16, 256), (16, 512), (1, 16), (1, 16)):
        tile = Tile(rows, lines, deep, warps, stages)
        both = Tiles(tile, replace(tile, warps=17 - warps))
        found = choice(dims, 8, 2, gpu, Own({8: replace(usual, experts=both, cut=cut)}))
        assert isinstance(found, Many) and found.experts is not None and found.cut is cut
        for own, matrices in ((found.experts.up, 2), (found.experts.down, 1)):
            taken = own.shared_cut(matrices) if cut else own.shared(matrices, 1)
            assert taken <= gpu.shared and own.deep >= (32 if cut else 16) and own.stages >= 1
            if cut:
                assert own.lines * matrices * own.rows * CUTS <= 256 * 32 * own.warps
                assert own.deep <= 256, "of more products the units keep too little"
                assert own.lines * matrices % UNIT == 0
                assert own.warps == found.experts.up.warps and own.warps % 4 == 0


def test_every_number_of_rows_has_a_choice() -> None:
    assert max(MANY) == MOST_ROWS and sorted(MANY) == list(MANY)


@pytest.mark.parametrize(
    "odd",
    [
        {"dim": 2016}, {"ff": 100}, {"vocab": 51201}, {"heads": 3, "dim": 192 * 3}, {"expert_inner": 1001},
        {"share": MOST_SHARE + 1},
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_left_to_others(odd: dict[str, int]) -> None:
    assert all(choice(replace(MOONDREAM_3, **odd), rows, 2, LARGE_CARD) is None for rows in (1, 4))


def test_numbers_of_rows_that_no_step_has() -> None:
    assert choice(MOONDREAM_3, 0, 2, LARGE_CARD) is None and choice(MOONDREAM_3, MOST_ROWS + 1, 2, LARGE_CARD) is None
