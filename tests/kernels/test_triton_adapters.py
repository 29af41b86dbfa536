"""Adapters in the fused step, and values, without a GPU: interpreted and compiled, each in a process of its own."""

from __future__ import annotations

import pytest
from tests.kernels.test_triton_step import needs_triton, run

from gapless.kernels.triton.choices import BATCHES


@pytest.mark.slow
@needs_triton
def test_adapters_and_values_are_right_when_interpreted() -> None:
    scenes = run("interpreted_adapters", interpret="1", seconds=400)
    assert [scene[0] for scene in scenes] == ["adapters"] * 6 + ["values"] * 4
    for what, rows, error, exact in scenes:
        assert float(error) < 1e-5, (what, rows)
        assert exact == "True", (what, rows)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
def test_every_launch_with_adapters_compiles_for_every_card_within_its_memory(capability: int) -> None:
    made = run("compiled_adapters", str(capability), interpret="0", seconds=900)
    assert len(made) == 9 * len(BATCHES)
    wanted = {"plan", "entry", "up", "scan", "down", "embed", "think", "score", "read"}
    assert {name for name, *_ in made} == wanted
    assert {(name, *heard) for name, _, _, *heard in made if heard} == {("up", "1")}
