"""Triton's experts where there is no GPU: interpreted, in a process of their own, as that is settled at their import;
and in what portions they work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from gapless.kernels.stacks import FP8, Stack
from gapless.kernels.triton.table import built_in
from gapless.kernels.triton.tiles import ROWS, most_tiles, tiles_for, tiles_of

ROOT = Path(__file__).resolve().parents[2]
SHARED = {"8.0": 166_912, "8.6": 101_376, "8.9": 101_376, "9.0": 232_448, "10.0": 232_448, "12.0": 101_376}
"""Bytes of shared memory that a program may have, by compute capability."""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_experts_are_right_when_interpreted() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/kernels/interpreted_experts.py"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert passed is not None and int(passed[1]) == 7, done.stdout


@pytest.mark.parametrize("card", SHARED)
@pytest.mark.parametrize("itemsize", [1, 2])
def test_every_card_holds_every_tile(card: str, itemsize: int) -> None:
    major, minor = map(int, card.split("."))
    table, shared = built_in((major, minor)), SHARED[card]
    assert table is not None
    for rows in ROWS:
        tiles = tiles_of(rows, itemsize, shared, table.experts)
        assert tiles.up.rows == tiles.down.rows == rows
        assert tiles.up.shared(2, itemsize) <= shared and tiles.down.shared(1, itemsize) <= shared
        assert tiles.up.stages > 1 and tiles.down.stages > 1
    assert tiles_for(8, 64, itemsize, shared, table.experts).up.rows == 16
    assert tiles_for(740 * 8, 64, itemsize, shared, table.experts).up.rows == ROWS[-1]


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_numbers_that_do_not_lie_side_by_side_are_left_to_others() -> None:
    from gapless.kernels.triton import experts

    x = torch.zeros(2, 32, dtype=torch.bfloat16)
    up, down = (Stack(torch.zeros(2, 32, 32).to(FP8), torch.ones(2, 32)) for _ in range(2))
    assert experts.fits(x, up, down)
    assert up.scales is not None
    for spoilt in (Stack(up.values.mT, up.scales), Stack(up.values, torch.ones(2, 1).expand(2, 32))):
        assert not experts.fits(x, spoilt, down) and not experts.fits(x, up, spoilt)


def test_there_are_tiles_enough_for_any_choice_and_never_many_more() -> None:
    """Every way to share out so many pairs among four experts, tiles of 16."""
    for pairs in (1, 2, 15, 16, 17, 40, 64):
        ways = ((a, b, c, pairs - a - b - c) for a in range(pairs + 1) for b in range(pairs + 1 - a)
                for c in range(pairs + 1 - a - b))  # fmt: skip
        needed = max(sum(-(-n // 16) for n in way) for way in ways)
        assert needed <= most_tiles(pairs, 4, 16) <= needed + 1


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
def test_every_tile_compiles_for_every_card_within_its_memory(capability: int) -> None:
    """A process of its own, which must not interpret, and no GPU."""
    command = [sys.executable, "tests/kernels/compiled_experts.py", str(capability)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(("src", *sys.path)), "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("\n") == 4 * len(ROWS)
