"""Run by itself, with TRITON_INTERPRET=1: Triton's experts on the CPU, the same kernels, slowly, without tensor cores.

The interpreter multiplies 16-bit floats of one kind only, so tokens are float16 here; bfloat16 is checked on a GPU.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from tests.kernels.test_expert_kernels import close, inputs, narrow, widened

import gapless.models.registry  # noqa: F401
from gapless.kernels import reference
from gapless.kernels.base import ExpertAdapters
from gapless.kernels.choose import choose
from gapless.kernels.graphed import Graphed
from gapless.kernels.stacks import FP8, Stack

assert choose(torch.device("cpu")) is reference and type(choose(torch.device("cuda"), exact=True)) is Graphed
assert not [name for name in sys.modules if name.startswith("gapless.kernels.triton")], "imported, but not chosen"

from gapless.kernels.triton import experts, offer  # noqa: E402
from gapless.kernels.triton.tiles import ROWS  # noqa: E402


def given_in(narrowly: bool, tokens: int, case: str = "random", seed: int = 1) -> list[Any]:
    """x, weights, chosen, up, down."""
    x, weights, chosen, up, down = inputs(case, tokens, seed, torch.float16)
    return [x, weights, chosen, *((narrow(up), narrow(down)) if narrowly else (up, down))]


def truth(given: list[Any]) -> torch.Tensor:
    x, weights, chosen, up, down = given
    return reference.experts(x.float(), weights.float(), chosen, *(widened(s, torch.float32) for s in (up, down)))


@pytest.mark.parametrize(
    ("tokens", "case", "narrowly"), [(1, "random", False), (5, "twice the same", True), (45, "all to one", False)]
)
def test_they_are_the_reference_over_poison(
    narrowly: bool, tokens: int, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = given_in(narrowly, tokens, case)
    right = truth(given)
    for unheard in set(range(given[3].count)) - set(given[2].flatten().tolist()):
        for stack in given[3:]:
            (stack.values if stack.scales is None else stack.scales)[unheard] = math.nan
    torch.use_deterministic_algorithms(True, warn_only=True)  # what is not filled is NaN, or as large as it can be
    try:
        out = experts.experts(*given)
    finally:
        torch.use_deterministic_algorithms(False)
    assert out.dtype is torch.float16 and close(out, right, 2**-9)


def test_company_does_not_show() -> None:
    given = given_in(True, 4)
    whole = experts.experts(*given)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(3))
    moved = [part[order] for part in given[:3]]
    moved[0][0] = math.nan
    assert torch.equal(experts.experts(*moved, *given[3:])[1:], whole[order][1:])


def test_adapters_are_added() -> None:
    given = given_in(True, 5)
    g = torch.Generator().manual_seed(2)
    pairs = [
        tuple(torch.randn(2, 7, *shape, generator=g) / shape[1] ** 0.5 for shape in ((3, into), (out, 3)))
        for into, out in ((24, 32), (16, 24))
    ]
    slots = torch.tensor([0, 1, 1, 0, 1])
    half = ExpertAdapters(*((a.half(), b.half()) for a, b in pairs), slots)
    out = experts.with_adapters(*given, half)
    x, weights, chosen, up, down = given
    wide = [widened(s, torch.float32) for s in (up, down)]
    right = reference.experts(x.float(), weights.float(), chosen, *wide, ExpertAdapters(*pairs, slots))
    assert close(out, right, 2**-8)
    assert close(out[slots == 0], truth(given)[slots == 0], 2**-8) and not close(out, truth(given), 0.1)


def test_the_set_takes_what_it_can_and_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[torch.dtype, int, bool]] = []

    def noted(self: experts.Pairs, x: torch.Tensor, stack: Stack) -> torch.Tensor:
        ran.append((stack.values.dtype, self.tiles.up.rows, self.alone))
        return x.new_zeros(self.order.numel(), stack.values.shape[1] // 2)

    def nothing(self: experts.Pairs, x: torch.Tensor, stack: Stack) -> torch.Tensor:
        return x.new_zeros(self.order.numel(), stack.values.shape[1])

    monkeypatch.setattr(experts.Pairs, "gated", noted)
    monkeypatch.setattr(experts.Pairs, "product", nothing)
    kernels = offer.TritonKernels()
    assert isinstance(kernels, Graphed)
    x, weights, chosen, up, down = inputs("random", 4, 1)
    kernels.experts(x, weights, chosen, up, down)  # float32
    kernels.experts(x.half(), weights.half(), chosen, narrow(up), narrow(down))  # rows of 24 and of 16 bytes
    assert not ran
    half = [Stack(stack.values.half()) for stack in (up, down)]
    kernels.experts(x.half(), weights.half(), chosen, *half)
    beforehand = [(torch.float16, rows, alone) for alone in (True, False) for rows in ROWS]
    assert ran == [*beforehand, (torch.float16, 16, False)]
    kernels.experts(x.half(), weights.half(), chosen, *half)
    assert len(ran) == 10
    twice = narrow(Stack(up.values.repeat(1, 1, 2))), narrow(Stack(down.values.repeat(1, 2, 1)))
    kernels.experts(x.half().repeat(1, 2), weights.half(), chosen, *twice)
    assert len(ran) == 19 and {dtype for dtype, _, _ in ran[10:]} == {FP8}


def test_a_gpu_on_which_nothing_compiles_gets_torchs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    chosen = choose(torch.device("cuda", 0))  # there is none, so the trial fails
    assert type(chosen) is Graphed
    assert "Triton's kernels do not run on this GPU" in caplog.text
