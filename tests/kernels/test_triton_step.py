"""The fused step without a GPU: interpreted and compiled, each in a process of its own; and what its tiles are."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from gapless.kernels.triton.choices import BATCHES, MOST_ROWS, MOST_SCANS, ONE, Dims, Gpu, choice, padded
from gapless.kernels.triton.table import built_in, capabilities
from gapless.kernels.triton.table_json import MOST_PARTS

ROOT = Path(__file__).resolve().parents[2]
USUAL = built_in((9, 0))
assert USUAL is not None
SMALL_CARD = Gpu(99 * 1024, dependent=False, choices=USUAL.decode)
LARGE_CARD = Gpu(227 * 1024, dependent=True, choices=USUAL.decode)
MOONDREAM_2 = Dims(dim=2048, inner=8192, heads=32, rotary=32, vocab=51200)
GLINT = Dims(dim=256, inner=512, heads=4, rotary=32, vocab=2048)
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
    scenes = run("interpreted_step", interpret="1", seconds=300)
    assert [scene[0] for scene in scenes] == ["1", "3", "17", "65", "1fp8", "17fp8"]
    for which, hidden, logits, stored, unseen in scenes:  # in FP8 a number near the middle of two may go either way
        assert max(float(hidden), float(logits), float(stored)) < (1e-2 if which.endswith("fp8") else 1e-5)
        assert unseen == "True", "something was written, or left out, that should not"


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("capability", [10 * major + minor for major, minor in capabilities()])
def test_every_kernel_compiles_for_every_card_within_its_memory(capability: int) -> None:
    compiled = run("compiled_step", str(capability), interpret="0", seconds=600)
    assert len(compiled) == 2 * 6 * len(BATCHES)
    assert {name for name, *_ in compiled} == {"entry", "up", "scan", "down", "head"}


@pytest.mark.parametrize("gpu", [SMALL_CARD, LARGE_CARD], ids=["small", "large"])
@pytest.mark.parametrize("dims", [MOONDREAM_2, GLINT], ids=["moondream-2", "glint"])
def test_tiles_divide_what_they_cut_and_fit(dims: Dims, gpu: Gpu) -> None:
    products = {"up": (dims.dim, 3 * dims.dim + dims.inner), "down": (dims.dim + dims.inner, dims.dim)}
    products["head"] = (dims.dim, dims.vocab)
    for rows in range(1, MOST_ROWS + 1):
        chosen = choice(dims, rows, 2, gpu)
        assert chosen is not None and padded(rows) >= rows
        assert chosen.pdl == 0 or gpu.dependent
        assert chosen.scan.splits * rows <= MOST_SCANS
        for name, (columns, outputs) in products.items():
            tile = getattr(chosen, name)
            assert outputs % tile.bn == 0 and columns % (tile.splits * tile.bk) == 0
            assert 3 * dims.dim % tile.bn == 0 or name == "head"
            if tile.mode != ONE:
                assert tile.stages * tile.bk * (padded(rows) + tile.bn) * 2 <= gpu.shared
                assert tile.stages > 1


def test_a_table_of_many_parts_writes_no_further_than_there_is_room() -> None:
    """Such a file is taken: of each number by itself nothing is wrong."""
    parts = {rows: replace(of, scan=replace(of.scan, splits=MOST_PARTS)) for rows, of in USUAL.decode.items()}
    for rows in range(1, MOST_ROWS + 1):
        chosen = choice(MOONDREAM_2, rows, 2, replace(LARGE_CARD, choices=parts))
        assert chosen is not None and 1 <= chosen.scan.splits <= MOST_PARTS
        assert (
            chosen.scan.splits * rows <= MOST_SCANS < 2 * chosen.scan.splits * rows or chosen.scan.splits == MOST_PARTS
        )


def test_what_cannot_be_cut_is_left_to_others() -> None:
    assert choice(MOONDREAM_2, 0, 2, LARGE_CARD) is None and choice(MOONDREAM_2, MOST_ROWS + 1, 2, LARGE_CARD) is None
    for odd in ({"dim": 2016}, {"inner": 100}, {"vocab": 51201}, {"heads": 3, "dim": 192 * 3}):
        assert choice(Dims(**{**vars_of(GLINT), **odd}), 4, 2, LARGE_CARD) is None


def vars_of(dims: Dims) -> dict[str, int]:
    return {name: getattr(dims, name) for name in dims.__slots__}
