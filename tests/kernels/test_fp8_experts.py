"""Experts in FP8: the numbers of dequantised ones, without ever having all of them wide."""

from typing import Any

import pytest
import torch
from tests.fakes.capture_watch import DEVICE, CaptureWatch
from tests.kernels.test_expert_kernels import close, inputs, narrow, widened
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gapless.kernels import reference
from gapless.kernels.graphed import Graphed
from gapless.kernels.stacks import FP8, Stack

SETS = {"reference": reference, "graphed": Graphed(), "grouped": Graphed(grouped=True), "fixed rows": Graphed(16)}


class Widest(TorchDispatchMode):
    """The largest tensor that was made wide of an FP8 one, in elements, and how often that happened."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.times = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        taken = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor) and t.dtype is FP8]
        if taken and out.dtype is not FP8:
            self.largest, self.times = max(self.largest, out.numel()), self.times + 1
        return out


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_is_what_it_is_dequantised(kind: str, dtype: torch.dtype) -> None:
    """To the bit where nothing else differs: a product over all experts at once adds in another order."""
    x, weights, chosen, up, down = inputs("random", 16, 6, dtype)
    up, down = narrow(up), narrow(down)
    kernels: Any = SETS[kind]
    out = kernels.experts(x, weights, chosen, up, down)
    if kind == "reference":
        assert torch.equal(out, kernels.experts(x, weights, chosen, widened(up, dtype), widened(down, dtype)))
    truth = reference.experts(x.float(), weights.float(), chosen, *(widened(s, torch.float32) for s in (up, down)))
    assert out.dtype is dtype and close(out, truth, 1e-6 if dtype is torch.float32 else 2**-7)
    spoilt = Stack(up.values, up.scales * torch.linspace(0.9, 1.1, up.count)[:, None])
    assert not close(kernels.experts(x, weights, chosen, spoilt, down), truth, 2**-6)


@pytest.mark.parametrize("kind", SETS)
def test_one_expert_is_widened_at_a_time(kind: str) -> None:
    x, weights, chosen, up, down = inputs("one untouched", 4, 8)
    kernels: Any = SETS[kind]
    with Widest() as widest:
        kernels.experts(x, weights, chosen, narrow(up), narrow(down))
    assert widest.largest == up.values[0].numel()
    read = up.count if kind != "reference" else len(set(chosen.flatten().tolist()))
    assert widest.times == 2 * read and (kind != "reference" or read < up.count)


@pytest.mark.parametrize("kind", ["graphed", "grouped"])
def test_a_graph_can_hold_fp8(kind: str) -> None:
    kernels: Any = SETS[kind]
    x, router = torch.empty(24, 256, dtype=torch.bfloat16, device=DEVICE), torch.empty(24, 64, device=DEVICE)
    stacks = [
        Stack(torch.empty(64, 256, width, device=DEVICE).to(FP8), torch.empty(64, 256, device=DEVICE))
        for width in (256, 128)
    ]
    with torch.inference_mode(), CaptureWatch() as watch:
        out = kernels.experts(x, *kernels.route(router, 8), *stacks)
    assert (out.shape, out.dtype) == (x.shape, torch.bfloat16)
    assert watch.operations > 64


@pytest.mark.parametrize("kind", ["reference", "fixed rows"])
def test_a_token_in_fp8_is_the_same_bits_in_any_company(kind: str) -> None:
    x, weights, chosen, up, down = inputs("random", 16, 2)
    up, down = narrow(up), narrow(down)
    kernels: Any = SETS[kind]
    whole = kernels.experts(x, weights, chosen, up, down)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(2))
    assert torch.equal(kernels.experts(x[order], weights[order], chosen[order], up, down), whole[order])


def test_a_stack_in_fp8_needs_a_scale_for_each_row() -> None:
    values = torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match=r"values of torch\.float32 take no scales"):
        Stack(values, torch.ones(2, 3))
    with pytest.raises(ValueError, match="need scales"):
        Stack(values.to(FP8))
    with pytest.raises(ValueError, match=r"scales \[3, 2\] are not a row's of values \[2, 3, 4\]"):
        Stack(values.to(FP8), torch.ones(3, 2))
