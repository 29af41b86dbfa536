"""The kernels of pictures without a GPU: interpreted and compiled, each in a process of its own."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from tests.kernels.test_triton_step import run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")]


def test_a_tower_is_right_when_interpreted() -> None:
    scenes = run("interpreted_tower", interpret="1", seconds=300)
    assert len(scenes) == 3
    for features, first, second, same, launches in scenes:
        assert max(float(features), float(first), float(second)) < 1e-5
        assert same == "True" and launches == "1"


def test_crops_are_the_plain_ways_when_interpreted() -> None:
    lines = run("interpreted_pixels", interpret="1", seconds=300)
    assert lines == [["crops", "True"]] * 5 + [["patches", "True"]]


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
def test_every_kernel_compiles_for_every_card_within_its_memory(capability: int) -> None:
    compiled = run("compiled_tower", str(capability), interpret="0", seconds=600)
    assert len(compiled) == 2 * (3 + 2 * 5)
    names = {name for name, _ in compiled}
    assert names == {"tables", "across", "down", "tiles", "patches", "norm", "pool", "attend"}
