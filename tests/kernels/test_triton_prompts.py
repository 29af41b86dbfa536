"""The kernels of prompts without a GPU: interpreted and compiled, each in a process of its own."""

from __future__ import annotations

import pytest
from tests.kernels.test_triton_step import needs_triton, run


@pytest.mark.slow
@needs_triton
def test_prompts_are_right_when_interpreted() -> None:
    scenes = run("interpreted_prompts", interpret="1", seconds=300)
    assert len(scenes) == 13
    for number, errors in enumerate(scenes):  # the four before the last are kept in FP8
        most = 1e-2 if 8 <= number < 12 else 1e-5
        assert max(map(float, errors)) < most, "wrong, or something was written, or left out, that should not"


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
def test_every_kernel_of_prompts_compiles_for_every_card_within_its_memory(capability: int) -> None:
    compiled = run("compiled_prompts", str(capability), interpret="0", seconds=600)
    assert [name for name, *_ in compiled] == 3 * ["norm", "place", "attend", "attend", "tails"]
