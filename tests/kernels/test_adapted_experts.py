"""Experts with adapters: against the formula in float64, bit for bit without, in any company, and fit for a graph."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from tests.fakes.capture_watch import DEVICE, CaptureWatch
from tests.kernels.test_expert_kernels import narrow
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gapless.kernels import reference
from gapless.kernels.base import ExpertAdapters
from gapless.kernels.graphed import Graphed
from gapless.kernels.stacks import Stack

EXPERTS, DIM, INNER, RANK, SLOTS = 7, 24, 16, 3, 4
SETS = {"reference": reference, "any rows": Graphed(), "fixed rows": Graphed(16), "grouped": Graphed(grouped=True)}


def bank(generator: torch.Generator, dtype: torch.dtype = torch.float32) -> tuple[tuple[Tensor, Tensor], ...]:
    """(a, b) of up and of down; slot 0 is zeros."""
    pairs = []
    for into, out in ((DIM, 2 * INNER), (INNER, DIM)):
        a = torch.randn(SLOTS, EXPERTS, RANK, into, generator=generator) / into**0.5
        b = torch.randn(SLOTS, EXPERTS, out, RANK, generator=generator) / RANK**0.5
        a[0], b[0] = 0, 0
        pairs.append((a.to(dtype), b.to(dtype)))
    return tuple(pairs)


def inputs(tokens: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[list[Any], ExpertAdapters]:
    """x, weights, chosen, up, down; and adapters, a slot for each token."""
    g = torch.Generator().manual_seed(seed)
    x, logits = torch.randn(tokens, DIM, generator=g), torch.randn(tokens, EXPERTS, generator=g)
    up = torch.randn(EXPERTS, 2 * INNER, DIM, generator=g) / DIM**0.5
    down = torch.randn(EXPERTS, DIM, INNER, generator=g) / INNER**0.5
    weights, chosen = reference.route(logits, 3)
    slots = torch.randint(0, SLOTS, (tokens,), generator=g)
    given = [x.to(dtype), weights.to(dtype), chosen, Stack(up.to(dtype)), Stack(down.to(dtype))]
    return given, ExpertAdapters(*bank(g, dtype), slots)


def in_slots(adapters: ExpertAdapters, *slots: int) -> ExpertAdapters:
    return ExpertAdapters(adapters.up, adapters.down, torch.tensor(slots))


def formula(given: list[Any], adapters: ExpertAdapters) -> Tensor:
    x, weights, chosen = given[0].double(), given[1].double(), given[2]
    up, down = (torch.stack([s.wide(e, torch.float32) for e in range(EXPERTS)]).double() for s in given[3:])
    (up_a, up_b), (down_a, down_b) = ([t.double() for t in pair] for pair in (adapters.up, adapters.down))
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t, s in enumerate(adapters.slots.expand(len(x)).tolist()):
        for p, e in zip(weights[t], chosen[t].tolist(), strict=True):
            z = (up[e] + up_b[s, e] @ up_a[s, e]) @ x[t]
            h = 0.5 * z[:INNER] * (1 + torch.erf(z[:INNER] / math.sqrt(2))) * (z[INNER:] + 1)
            out[t] += p * ((down[e] + down_b[s, e] @ down_a[s, e]) @ h)
    return out


def off(found: Tensor, right: Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("tokens", [1, 16, 45])
def test_it_is_the_formula_with_a_slot_each_and_with_one_for_all(name: str, tokens: int) -> None:
    dtype, most = (torch.bfloat16, 2**-6) if name == "grouped" else (torch.float32, 1e-6)
    given, adapters = inputs(tokens, tokens, dtype)
    for own in (adapters, in_slots(adapters, 2), in_slots(adapters, 0)):
        assert off(SETS[name].experts(*given, own), formula(given, own)) < most
    assert off(SETS[name].experts(*given), formula(given, in_slots(adapters, 2))) > 0.1, "adapters that change nothing"


@pytest.mark.parametrize("name", SETS)
def test_it_is_the_formula_over_fp8_too(name: str) -> None:
    dtype, most = (torch.bfloat16, 2**-6) if name == "grouped" else (torch.float32, 1e-6)
    given, adapters = inputs(16, 9, dtype)
    given[3:] = [narrow(stack) for stack in given[3:]]
    for own in (adapters, in_slots(adapters, 2)):
        assert off(SETS[name].experts(*given, own), formula(given, own)) < most


class Grouped(TorchDispatchMode):
    """Counts grouped products."""

    seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += func.overloadpacket.__name__ == "_grouped_mm"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("tokens", [1, 16, 45])
def test_without_adapter_a_token_is_the_same_bits_as_if_there_were_none(name: str, tokens: int) -> None:
    given, adapters = inputs(tokens, 11 * tokens, torch.bfloat16 if name == "grouped" else torch.float32)
    adapters.slots[::2] = 0
    plain = SETS[name].experts(*given)
    with Grouped() as calls:
        beside = SETS[name].experts(*given, adapters)
    assert calls.seen == 2 * (name == "grouped")
    alone = adapters.slots == 0
    assert torch.equal(beside[alone], plain[alone])
    assert torch.equal(SETS[name].experts(*given, in_slots(adapters, 0)), plain)
    for part in (*adapters.up, *adapters.down):
        part.zero_()
    assert torch.equal(SETS[name].experts(*given, adapters), plain)
    for part in (*adapters.up, *adapters.down):
        part[0] = math.nan  # what lies in slot 0 is never added
    for own in (adapters, in_slots(adapters, 0)):
        assert torch.equal(SETS[name].experts(*given, own), plain)


@pytest.mark.parametrize("name", ["reference", "fixed rows"])
@pytest.mark.parametrize("seed", range(4))
def test_a_token_with_an_adapter_is_the_same_bits_in_any_company(name: str, seed: int) -> None:
    """Sixteen rows, as a piece has them; other adapters and other tokens of the same experts do not show."""
    given, adapters = inputs(16, seed)
    whole = SETS[name].experts(*given, adapters)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(seed))
    moved = ExpertAdapters(adapters.up, adapters.down, adapters.slots[order])
    assert torch.equal(SETS[name].experts(*(t[order] for t in given[:3]), *given[3:], moved), whole[order])
    for row in range(16):
        company, others = inputs(16, seed + 100 + row)
        for part, own in zip(company[:3], given[:3], strict=True):
            part[15 - row] = own[row]
        others.slots[15 - row] = adapters.slots[row]
        beside = ExpertAdapters(adapters.up, adapters.down, others.slots)
        assert torch.equal(SETS[name].experts(*company[:3], *given[3:], beside)[15 - row], whole[row])


def test_the_references_bits_do_not_depend_on_how_many_there_are_nor_on_how_slots_are_told() -> None:
    given, adapters = inputs(61, 5)
    whole = reference.experts(*given, adapters)
    for rows in (slice(0, 1), slice(7, 30), slice(60, 61)):
        own = ExpertAdapters(adapters.up, adapters.down, adapters.slots[rows])
        assert torch.equal(reference.experts(*(t[rows] for t in given[:3]), *given[3:], own), whole[rows])
    every = in_slots(adapters, *[3] * 61)
    assert torch.equal(reference.experts(*given, in_slots(adapters, 3)), reference.experts(*given, every))


@pytest.mark.parametrize("name", SETS)
def test_what_nobody_chose_and_a_rows_nan_stay_where_they_are(name: str) -> None:
    given, adapters = inputs(20, 3, torch.bfloat16 if name == "grouped" else torch.float32)
    for slot, expert in product(range(1, SLOTS), range(EXPERTS)):
        if not ((given[2] == expert).any(dim=1) & (adapters.slots == slot)).any():
            adapters.up[0][slot, expert] = math.nan
    given[0][4] = math.nan
    for own in (adapters, in_slots(adapters, 0)):
        out = SETS[name].experts(*given, own)
        assert torch.isnan(out[4]).all() and torch.isfinite(out[:4]).all() and torch.isfinite(out[5:]).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("tokens", "one"), [(128, False), (730, True)])
def test_at_full_size_a_graph_can_hold_it(dtype: torch.dtype, tokens: int, one: bool) -> None:
    """64 experts of 1024, 8 of them for each row, 9 slots of rank 64: nothing is asked, and no bank is copied."""
    kernels = Graphed(grouped=True)

    def empty(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=of, device=DEVICE)

    with torch.inference_mode():
        width = 8 * 64 * 2048
        flat = empty(9, 4 * width)  # views that are not contiguous, as slots are
        a, b, c, d = (flat[:, i * width : (i + 1) * width] for i in range(4))
        adapters = ExpertAdapters(
            (a.view(9, 64, 8, 2048), b.view(9, 64, 2048, 8)),
            (c[:, : width // 2].view(9, 64, 8, 1024), d.view(9, 64, 2048, 8)),
            empty(1 if one else tokens, of=torch.int64),
        )
        x, router = empty(tokens, 2048), empty(tokens, 64)
        up, down = Stack(empty(64, 2048, 2048)), Stack(empty(64, 2048, 1024))
        watch = CaptureWatch()
        with watch:
            out = kernels.experts(x, *kernels.route(router, 8), up, down, adapters)
    assert (out.shape, out.dtype) == (x.shape, dtype)
    assert watch.operations > 20
    pairs = tokens * (8 if dtype is torch.bfloat16 else 64)
    assert watch.peak < 8 * pairs * 2048 * dtype.itemsize + 2 * 1024 * width // 64 * dtype.itemsize
