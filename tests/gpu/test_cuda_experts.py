"""Triton's experts on a GPU: against float32, over poisoned memory, the same bits every time, inside a graph."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from gapless.kernels import reference
from gapless.kernels.base import ExpertAdapters
from gapless.kernels.choose import choose
from gapless.kernels.graphed import Graphed
from gapless.kernels.stacks import FP8, Stack

if not torch.cuda.is_available():  # then Triton, where it is installed, is not to be imported either
    pytest.skip("needs a GPU", allow_module_level=True)
pytest.importorskip("triton")
from gapless.kernels.triton import experts
from gapless.kernels.triton.offer import TritonKernels

pytestmark = pytest.mark.gpu

FULL, GLINT, ODD = (64, 8, 2048, 1024), (8, 2, 128, 64), (7, 3, 96, 48)
"""Experts, those a token takes, width, inner width."""


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """What is allocated without being filled holds NaN, or the largest number there is; and products are float32's."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    with torch.inference_mode():
        assert math.isnan(float(torch.empty(3, device="cuda")[0]))
        assert int(torch.empty(3, dtype=torch.int32, device="cuda")[0]) == 2**31 - 1
        yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.matmul.allow_tf32 = before


@cache
def stacks(sizes: tuple[int, ...], kind: torch.dtype, seed: int = 0) -> tuple[Stack, Stack]:
    """Up and down in a half type or in FP8."""
    count, _, width, inner = sizes
    g = torch.Generator("cuda").manual_seed(seed)
    made = []
    for shape in ((count, 2 * inner, width), (count, width, inner)):
        values = torch.randn(shape, generator=g, device="cuda") / shape[2] ** 0.5
        scales = values.abs().amax(-1) / 448
        made.append(Stack((values / scales[..., None]).to(FP8), scales) if kind is FP8 else Stack(values.to(kind)))
    return made[0], made[1]


def tokens_of(sizes: tuple[int, ...], count: int, dtype: torch.dtype, case: str, seed: int) -> list[Tensor]:
    """x, weights, chosen."""
    of, share, width, _ = sizes
    g = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(count, width, generator=g, device="cuda").to(dtype)
    logits = torch.randn(count, of, generator=g, device="cuda")
    if case == "few":
        logits[:, share + 1 :] = -math.inf
    weights, chosen = reference.route(logits, share)
    if case == "all to one":
        chosen = torch.full_like(chosen, of - 1)
    return [x, weights.to(dtype), chosen]


def truth(given: list[Tensor], up: Stack, down: Stack) -> Tensor:
    x, weights, chosen = given
    wide = (Stack(torch.stack([s.wide(e, torch.float32).float() for e in range(s.count)])) for s in (up, down))
    return reference.experts(x.float(), weights.float(), chosen, *wide)


def off(found: Tensor, right: Tensor) -> float:
    return float((found.float() - right).norm() / right.norm())


def test_the_gpu_gets_them() -> None:
    assert isinstance(choose(torch.device("cuda")), TritonKernels)
    assert type(choose(torch.device("cuda"), exact=True)) is Graphed


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [(FULL, torch.bfloat16), (GLINT, torch.float16), (ODD, torch.bfloat16)],
    ids=["full", "small", "odd"],
)
@pytest.mark.parametrize("narrow", [False, True], ids=["half", "fp8"])
@pytest.mark.parametrize("case", ["random", "all to one", "few"])
def test_they_are_the_reference_in_float32(
    sizes: tuple[int, ...], dtype: torch.dtype, narrow: bool, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fresh numbers for every length; nothing else computed it; NaN in experts that nobody chose stays there."""
    kind = FP8 if narrow else dtype
    ran: list[int] = []

    def counted(self: experts.Pairs, x: Tensor, stack: Stack, own: Any = experts.Pairs.product) -> Tensor:
        ran.append(len(x))
        return own(self, x, stack)

    monkeypatch.setattr(experts.Pairs, "product", counted)
    kernels, (up, down) = TritonKernels(), stacks(sizes, kind)
    for count in (1, 3, 8, 24, 64, 130, 740):
        given = tokens_of(sizes, count, dtype, case, seed=count)
        right = truth(given, up, down)
        spoilt = [Stack(s.values.clone(), None if s.scales is None else s.scales.clone()) for s in (up, down)]
        for unheard in set(range(up.count)) - set(given[2].flatten().tolist()):
            for stack in spoilt:
                (stack.values if stack.scales is None else stack.scales)[unheard] = math.nan
        ran.clear()
        out = kernels.experts(*given, *spoilt)
        assert ran[-1] == count * sizes[1]
        assert out.dtype is dtype and off(out, right) < 1e-2
        del spoilt


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 96])
def test_every_byte_is_widened_exactly(dtype: torch.dtype, count: int) -> None:
    """A token of a single one hears a column; half types hold every number of FP8, the smallest ones too."""
    finite = [byte for byte in range(256) if byte & 0x7F != 0x7F]
    columns = torch.tensor(finite * 8, dtype=torch.uint8, device="cuda").view(1, -1, 16).mT.contiguous()
    width = columns.shape[2] - columns.shape[2] % 16
    stack = Stack(columns[..., :width].contiguous().view(FP8), torch.ones(columns.shape[:2], device="cuda"))
    x = torch.eye(width, device="cuda", dtype=dtype)[:count]
    chosen = torch.zeros(count, 1, dtype=torch.int64, device="cuda")
    out = experts.Pairs.of(chosen, stack).product(x, stack)
    assert torch.equal(out.float(), stack.values[0].float().mT[:count])


@pytest.mark.parametrize("narrow", [False, True], ids=["half", "fp8"])
@pytest.mark.parametrize("count", [1, 8, 64, 740])
def test_a_hundred_launches_give_the_same_bits(narrow: bool, count: int) -> None:
    kind = FP8 if narrow else torch.bfloat16
    kernels, (up, down) = TritonKernels(), stacks(FULL, kind)
    given = tokens_of(FULL, count, torch.bfloat16, "random", 5)
    first = kernels.experts(*given, up, down)
    same = torch.ones((), dtype=torch.bool, device="cuda")
    for _ in range(100):
        same &= (kernels.experts(*given, up, down) == first).all()
    assert bool(same)


@pytest.mark.parametrize("narrow", [False, True], ids=["half", "fp8"])
@pytest.mark.parametrize("count", [8, 64, 128])
def test_a_token_is_the_same_bits_in_any_company_of_as_many(narrow: bool, count: int) -> None:
    kind = FP8 if narrow else torch.bfloat16
    kernels, (up, down) = TritonKernels(), stacks(FULL, kind)
    given = tokens_of(FULL, count, torch.bfloat16, "random", 6)
    whole = kernels.experts(*given, up, down)
    for seed in range(8):
        beside = tokens_of(FULL, count, torch.bfloat16, "few" if seed % 2 else "random", 100 + seed)
        for part, own in zip(beside, given, strict=True):
            part[count - 1 - seed] = own[seed]
        beside[0][count - 2 - seed] = math.nan  # another token, which shares experts
        assert torch.equal(kernels.experts(*beside, up, down)[count - 1 - seed], whole[seed])


@pytest.mark.parametrize("narrow", [False, True], ids=["half", "fp8"])
@pytest.mark.parametrize("count", [1, 24, 730])
def test_a_graph_holds_them_and_reads_who_is_chosen_then(narrow: bool, count: int) -> None:
    kind = FP8 if narrow else torch.bfloat16
    kernels, (up, down) = TritonKernels(), stacks(FULL, kind)
    held = tokens_of(FULL, count, torch.bfloat16, "random", 7)
    kernels.experts(*held, up, down)  # compiled before a capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernels.experts(*held, up, down)
    for seed, case in enumerate(("random", "few", "all to one", "random")):
        given = tokens_of(FULL, count, torch.bfloat16, case, 50 + seed)
        for part, own in zip(held, given, strict=True):
            part.copy_(own)
        out.fill_(math.nan)
        graph.replay()
        assert torch.equal(out, kernels.experts(*given, up, down))


@pytest.mark.parametrize("narrow", [False, True], ids=["half", "fp8"])
@pytest.mark.parametrize("count", [5, 64])
def test_adapters_are_added_to_what_they_say(narrow: bool, count: int) -> None:
    kind = FP8 if narrow else torch.bfloat16
    kernels, (up, down) = TritonKernels(), stacks(ODD, kind)
    of, _, width, inner = ODD
    g = torch.Generator("cuda").manual_seed(1)
    pairs = []
    for into, outer in ((width, 2 * inner), (inner, width)):
        a = torch.randn(3, of, 4, into, generator=g, device="cuda") / into**0.5
        b = torch.randn(3, of, outer, 4, generator=g, device="cuda") / 2
        a[0], b[0] = 0, 0
        pairs.append((a.bfloat16(), b.bfloat16()))
    slots = torch.randint(0, 3, (count,), generator=g, device="cuda")
    given = tokens_of(ODD, count, torch.bfloat16, "random", 8)
    out = kernels.experts(*given, up, down, ExpertAdapters(pairs[0], pairs[1], slots))
    wide = [Stack(torch.stack([s.wide(e, torch.float32).float() for e in range(of)])) for s in (up, down)]
    alone = ExpertAdapters(*((a.float(), b.float()) for a, b in pairs), slots)
    right = reference.experts(given[0].float(), given[1].float(), given[2], *wide, alone)
    assert off(out, right) < 1e-2
    assert off(kernels.experts(*given, up, down), right) > 5e-2


def test_what_they_do_not_take_is_computed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (5, 2, 40, 24)
    for dtype, kind in ((torch.float32, torch.float32), (torch.bfloat16, FP8)):
        up, down = stacks(sizes, kind)
        given = tokens_of(sizes, 9, dtype, "random", 3)
        assert not experts.fits(given[0], up, down)
        assert off(TritonKernels().experts(*given, up, down), truth(given, up, down)) < 1e-2
