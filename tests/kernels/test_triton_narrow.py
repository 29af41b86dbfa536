"""Experts in FP8 multiplied as they are, interpreted, each launch by itself: far closer than a whole step can tell."""

from __future__ import annotations

import pytest
from tests.kernels.test_triton_sparse import needs_triton, run

FEW = ["few", "two lines", "odd"]
MORE = ["one expert", "same", "not finite", "wide"]


def judge(lines: list[list[str]], names: list[str]) -> None:
    """What `interpreted_narrow` prints of these scenes."""
    (word, off, near, lost, bits, norms), *scenes = lines
    assert (word, float(off), near, lost) == ("cut", 0.0, "True", "True"), "a number's cuts are not that number"
    assert float(bits) < 2, "of float32 fewer than 11 bits are left"
    assert norms == "True", "a norm's cuts are not the norm that is kept"
    assert [scene[0] for scene in scenes] == [name.replace(" ", "-") for name in names]
    for name, gated, said, proj, kept, alone, waited in scenes:
        assert max(float(gated), float(said)) < 1, f"{name}: further off than rounding"
        assert float(proj) < 1e-4, f"{name}: proj is wrong"
        assert kept == "True", f"{name}: what is gated is not rounded as tokens are"
        assert alone == "True", f"{name}: what is not finite is not where it belongs"
        assert waited == "True", f"{name}: not as many counted themselves as are waited for"


@needs_triton
def test_cuts_are_exact_and_experts_off_by_rounding_alone() -> None:
    judge(run("interpreted_narrow", *FEW, interpret="1", seconds=120), FEW)


@pytest.mark.slow
@needs_triton
def test_more_rows_more_experts_and_what_is_not_finite() -> None:
    judge(run("interpreted_narrow", *MORE, interpret="1", seconds=600), MORE)
