"""The kernels of prompts without a GPU: interpreted and compiled, each in a process of its own."""

from __future__ import annotations

import pytest
from tests.kernels.test_triton_step import needs_triton, run


@pytest.mark.slow
@needs_triton
def test_prompts_are_right_when_interpreted() -> None:
    scenes = run("interpreted_prompts", interpret="1", seconds=300)
    assert len(scenes) == 9
    for errors in scenes:
        assert max(map(float, errors)) < 1e-5, "wrong, or something was written, or left out, that should not"


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
def test_every_kernel_of_prompts_compiles_for_every_card_within_its_memory(capability: int) -> None:
    compiled = run("compiled_prompts", str(capability), interpret="0", seconds=600)
    assert [name for name, *_ in compiled] == 2 * ["norm", "place", "attend", "attend", "tails"]
