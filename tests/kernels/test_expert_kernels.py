"""Experts and tau: the reference against the formula in float64, other ways against the reference, with proofs."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from tests.fakes.capture_watch import DEVICE, CaptureWatch, HostRead
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gapless.kernels import grouped, reference
from gapless.kernels.choose import choose
from gapless.kernels.graphed import Graphed
from gapless.kernels.stacks import FP8, Stack

EXPERTS, DIM, INNER = 7, 24, 16
CASES = ("random", "all to one", "one untouched", "equal rows", "twice the same")


class Calls(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def inputs(case: str, tokens: int, seed: int, dtype: torch.dtype = torch.float32) -> list[Any]:
    """x, weights, chosen, up, down."""
    g = torch.Generator().manual_seed(seed)
    x, logits = torch.randn(tokens, DIM, generator=g), torch.randn(tokens, EXPERTS, generator=g)
    up = torch.randn(EXPERTS, 2 * INNER, DIM, generator=g) / DIM**0.5
    down = torch.randn(EXPERTS, DIM, INNER, generator=g) / INNER**0.5
    if case == "one untouched":
        logits[:, 3] = -9
    if case == "equal rows":
        x, logits = x[:1].repeat(tokens, 1), logits[:1].repeat(tokens, 1)
    weights, chosen = reference.route(logits, 1 if case == "all to one" else 3)
    if case == "all to one":
        chosen = torch.full_like(chosen, 5)
    if case == "twice the same":
        chosen[:, 1] = chosen[:, 0]
    return [x.to(dtype), weights.to(dtype), chosen, Stack(up.to(dtype)), Stack(down.to(dtype))]


def narrow(stack: Stack) -> Stack:
    """In FP8."""
    scales = stack.values.float().abs().amax(-1) / 448
    return Stack((stack.values.float() / scales[..., None]).to(FP8), scales)


def widened(stack: Stack, dtype: torch.dtype) -> Stack:
    """All of it beforehand, as if the checkpoint had been dequantised when it was read."""
    return Stack(torch.stack([stack.wide(expert, dtype).to(dtype) for expert in range(stack.count)]))


def formula(x: Tensor, weights: Tensor, chosen: Tensor, up: Stack, down: Stack) -> Tensor:
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(x.shape[0]):
        for p, e in zip(weights[t].double(), chosen[t].tolist(), strict=True):
            z = up.values[e].double() @ x[t].double()
            h, gate = z[:INNER], z[INNER:]
            out[t] += p * (down.values[e].double() @ (0.5 * h * (1 + torch.erf(h / math.sqrt(2))) * (gate + 1)))
    return out


def close(a: Tensor, b: Tensor, relative: float) -> bool:
    return float((a.double() - b.double()).norm()) <= relative * float(b.double().norm())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tokens", [1, 16, 45])
def test_the_reference_is_the_formula(case: str, tokens: int) -> None:
    given = inputs(case, tokens, seed=tokens)
    assert close(reference.experts(*given), formula(*given), 1e-6)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tokens", [1, 16, 45])
@pytest.mark.parametrize(("kernels", "dtype", "products"), [
    (Graphed(grouped=True), torch.bfloat16, {"_grouped_mm": 2}),
    (Graphed(grouped=True), torch.float32, {"bmm": 2}),
    (Graphed(), torch.bfloat16, {"bmm": 2}),
    (Graphed(16), torch.float32, {"bmm": 2}),
])  # fmt: skip
def test_each_way_is_the_reference_and_is_the_way_that_ran(
    case: str, tokens: int, kernels: Graphed, dtype: torch.dtype, products: dict[str, int]
) -> None:
    given = inputs(case, tokens, seed=7 * tokens, dtype=dtype)
    with Calls() as calls:
        out = kernels.experts(*given)
    assert {name: calls.seen[name] for name in ("_grouped_mm", "bmm") if calls.seen[name]} == products
    assert out.dtype is dtype
    x, weights, chosen, up, down = given
    truth = reference.experts(x.float(), weights.float(), chosen, *(widened(s, torch.float32) for s in (up, down)))
    assert close(out, truth, 1e-6 if dtype is torch.float32 else 2**-7)


def test_a_width_that_the_grouped_product_cannot_take_goes_the_other_way() -> None:
    for dim, inner, fits in ((24, 16, True), (20, 16, False), (24, 12, False)):
        up, down = (Stack(torch.ones(3, *shape).bfloat16()) for shape in ((2 * inner, dim), (dim, inner)))
        x = torch.empty(2, dim).bfloat16()
        assert grouped.fits_grouped(x, up, down) is fits
        assert not grouped.fits_grouped(x.float(), up, down)
        assert not grouped.fits_grouped(x, narrow(up), narrow(down))


@pytest.mark.parametrize("way", [reference.experts, grouped.grouped, grouped.for_all])
def test_what_nobody_chose_is_not_heard(way: Any) -> None:
    x, weights, chosen, up, down = inputs("one untouched", 20, 3, torch.bfloat16)
    up.values[3], down.values[3] = math.nan, math.nan
    assert torch.isfinite(way(x, weights, chosen, up, down)).all()
    x[4] = math.nan
    out = way(x, weights, chosen, up, down)
    assert torch.isnan(out[4]).all() and torch.isfinite(out[:4]).all() and torch.isfinite(out[5:]).all()


@pytest.mark.parametrize("kernels", [reference, Graphed(16)], ids=["reference", "fixed rows"])
@pytest.mark.parametrize("seed", range(4))
def test_a_token_is_the_same_bits_in_any_company(kernels: Any, seed: int) -> None:
    """Sixteen rows, as a piece has them; who else chose the same experts does not show."""
    x, weights, chosen, up, down = inputs("random", 16, seed)
    whole = kernels.experts(x, weights, chosen, up, down)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(kernels.experts(x[order], weights[order], chosen[order], up, down), whole[order])
    for row in range(16):
        company = inputs("random", 16, seed + 100 + row)
        for part, own in zip(company[:3], (x, weights, chosen), strict=True):
            part[15 - row] = own[row]
        assert torch.equal(kernels.experts(*company[:3], up, down)[15 - row], whole[row])


def test_the_references_bits_do_not_depend_on_how_many_there_are() -> None:
    x, weights, chosen, up, down = inputs("random", 61, 5)
    whole = reference.experts(x, weights, chosen, up, down)
    for rows in (slice(0, 1), slice(7, 30), slice(60, 61)):
        assert torch.equal(reference.experts(x[rows], weights[rows], chosen[rows], up, down), whole[rows])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_at_full_size_a_graph_can_hold_it(dtype: torch.dtype) -> None:
    """64 experts of 1024, 8 of them for each of 128 rows: nothing is asked of the device, and little is held."""
    kernels = Graphed(grouped=True)
    with torch.inference_mode():
        x, router = torch.empty(128, 2048, dtype=dtype, device=DEVICE), torch.empty(128, 64, dtype=dtype, device=DEVICE)
        up, down = (Stack(torch.empty(64, 2048, width, dtype=dtype, device=DEVICE)) for width in (2048, 1024))
        watch = CaptureWatch()
        with watch:
            out = kernels.experts(x, *kernels.route(router, 8), up, down)
    assert (out.shape, out.dtype) == (x.shape, dtype)
    assert watch.operations > 10
    pairs = 128 * (8 if dtype is torch.bfloat16 else 64)
    assert watch.peak < 8 * pairs * 2048 * dtype.itemsize
    with pytest.raises((HostRead, NotImplementedError)), watch:
        reference.experts(x, *kernels.route(router, 8), up, down)


def test_the_device_decides_whether_experts_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, has in (((9, 0), True), ((8, 0), False), ((12, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        assert choose(gpu).grouped is has
        assert choose(gpu, exact=True).grouped is False
    assert choose(torch.device("cpu")) is reference


def test_routing_is_a_softmax_over_the_largest() -> None:
    logits = torch.randn(9, EXPERTS, generator=torch.Generator().manual_seed(1))
    weights, chosen = reference.route(logits, 3)
    whole = torch.softmax(logits, dim=-1)
    for row in range(9):
        best = sorted(range(EXPERTS), key=lambda e: -float(logits[row, e]))[:3]
        assert chosen[row].tolist() == best
        assert torch.allclose(weights[row], whole[row, best] / whole[row, best].sum(), atol=1e-6)


HEADS, WIDTH = 3, 8


def tau_formula(qkv: Tensor, wq: Tensor, wv: Tensor, alpha: Tensor, positions: Tensor, gelu: str) -> Tensor:
    z = qkv.double()
    tanh = 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    g = tanh if gelu == "tanh" else 0.5 * z * (1 + torch.erf(z / math.sqrt(2)))
    place = 1 + (torch.sigmoid(alpha.double() * torch.log(positions.double() + 1)[:, None]) - 0.5)
    q, k, v = z.view(-1, 3, HEADS, WIDTH).unbind(1)
    q = q * (torch.tanh(g @ wq.double().T) + place)[..., None]
    v = v * (torch.tanh(g @ wv.double().T) + place)[..., None]
    return torch.stack((q, k, v), 1).view(qkv.shape)


@pytest.mark.parametrize("kernels", [reference, Graphed()], ids=["reference", "graphed"])
@pytest.mark.parametrize("gelu", ["erf", "tanh"])
def test_tau_is_the_formula(kernels: Any, gelu: str) -> None:
    g = torch.Generator().manual_seed(2)
    qkv = torch.randn(30, 3 * HEADS * WIDTH, generator=g)
    wq, wv = torch.randn(2, HEADS, qkv.shape[1], generator=g) / 5
    alpha, positions = torch.randn(HEADS, generator=g), torch.randint(0, 30_000, (30,), generator=g)
    levels = kernels.tau_levels(alpha, 30_000)
    assert levels[0].tolist() == [1.0] * HEADS
    out = kernels.tau(qkv, torch.cat((wq, wv)), levels[positions], gelu)
    assert close(out, tau_formula(qkv, wq, wv, alpha, positions, gelu), 5e-7)
    assert not close(out, tau_formula(qkv, wq, wv, alpha, positions, "erf" if gelu == "tanh" else "tanh"), 5e-6)
    keys = slice(HEADS * WIDTH, 2 * HEADS * WIDTH)
    assert torch.equal(out[:, keys], qkv[:, keys])


def test_tau_of_a_row_is_the_same_bits_in_any_company() -> None:
    g = torch.Generator().manual_seed(4)
    qkv, levels = torch.randn(16, 3 * HEADS * WIDTH, generator=g), torch.rand(16, HEADS, generator=g)
    weight = torch.randn(2 * HEADS, qkv.shape[1], generator=g)
    whole, order = reference.tau(qkv, weight, levels, "erf"), torch.randperm(16, generator=g)
    assert torch.equal(reference.tau(qkv[order], weight, levels[order], "erf"), whole[order])


def test_levels_are_made_wide_and_rounded_once() -> None:
    alpha = torch.tensor([0.37, -1.25], dtype=torch.bfloat16)
    wide = torch.sigmoid(alpha.double() * torch.log(torch.tensor(4001.0).double())) + 0.5
    assert torch.equal(reference.tau_levels(alpha, 4096)[4000], wide.bfloat16())


def test_gelu_erf() -> None:
    x = torch.linspace(-6, 6, 3001)
    truth = 0.5 * x.double() * (1 + torch.erf(x.double() / math.sqrt(2)))
    for kernels in (reference, Graphed()):
        assert float((kernels.gelu_erf(x).double() - truth).abs().max()) < 2e-6  # beside 5e-4 of the tanh form
        assert kernels.gelu_erf(x.bfloat16()).dtype is torch.bfloat16
    shifted = torch.cat((torch.zeros(3), x))
    assert torch.equal(reference.gelu_erf(shifted)[3:], reference.gelu_erf(x))
