"""Keys and values in FP8: rounding, scales, and attention over what is kept against float64."""

from __future__ import annotations

import math

import pytest
import torch
from tests.kernels.drawn_kept import draw_scales, kept, read

from gapless.kernels import kept as form
from gapless.kernels import reference
from gapless.kernels.graphed import Graphed
from gapless.kernels.stacks import FP8

EVERY = torch.arange(256, dtype=torch.uint8).view(FP8).float()
NUMBERS = EVERY[~EVERY.isnan()].unique()


def test_rounding_is_to_the_nearest_of_all_numbers_there_are() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 64, generator=g) * torch.randint(-14, 8, (3, 4, 64), generator=g).float().exp2()
    scales = torch.tensor([1.0, 0.125, 2.0, 2.0**-9])
    x = x * scales[:, None]
    x[0, :, 0], x[0, :, 1], x[0, :, 2] = 1e30, -math.inf, math.nan
    found = form.widened(form.narrowed(x, scales), scales)
    off = (x[..., None] - NUMBERS * scales[:, None, None]).abs()
    real = ~x.isnan()
    assert torch.equal((x - found).abs()[real & x.isfinite()], off.amin(-1)[real & x.isfinite()])
    assert torch.equal(found.isnan(), x.isnan()) and torch.equal(found[0, :, 1], -448 * scales)


def test_scales_are_the_least_powers_of_two_that_cut_nothing_off() -> None:
    bounds = torch.tensor([448.0, 449.0, 1.0, 3e-3, 896.0, 0.0, math.inf, math.nan])
    scales = form.scales_of(bounds)
    assert scales.tolist() == [1.0, 2.0, 2.0**-8, 2.0**-17, 2.0, 1.0, 1.0, 1.0]
    smallest = form.scales_of(torch.tensor([1e-40, 1e-30, 3e38]))  # one over a scale is a number, too
    assert smallest.tolist() == [2.0**-100, 2.0**-100, 2.0**100]


@pytest.mark.parametrize("kernels", [reference, Graphed(), Graphed(16)], ids=["reference", "free", "exact"])
@pytest.mark.parametrize("page", [16, 64])
def test_attention_sees_what_is_kept_and_nothing_else(kernels, page) -> None:
    g = torch.Generator().manual_seed(page)
    heads, wide, lengths = 4, 32, [1, 16, 65, 100]
    scales = draw_scales(1, heads, g)[0]
    columns = -(-128 // page)
    pages = len(lengths) * columns + 1
    keys, values = (torch.full((pages + 1, heads, page, wide), math.nan).to(FP8) for _ in range(2))
    form.as_stored(keys)[-1] = form.as_stored(values)[-1] = 0
    tables = (torch.randperm(pages - 1, generator=g) + 1).view(len(lengths), columns)
    positions = torch.tensor(lengths) - 1
    given = [torch.randn(2, n, heads, wide, generator=g) for n in lengths]
    for row, (k, v) in enumerate(given):
        at = torch.arange(len(k))
        kernels.write_kv(k, v, keys, values, (tables[row, at // page], at % page), scales)
    q = torch.randn(len(lengths), heads, wide, generator=g)
    out = kernels.attend(q, keys, values, kernels.paging(positions, tables, keys), scales)
    for row, pair in enumerate(given):
        k, v = (read(kept(x.transpose(0, 1)[None], by), by)[0].double() for x, by in zip(pair, scales, strict=True))
        at = torch.arange(lengths[row])
        there = kernels.read_kv(keys, values, (tables[row, at // page], at % page), scales)
        assert torch.equal(there[0].transpose(0, 1).double(), k) and torch.equal(there[1].transpose(0, 1).double(), v)
        weights = torch.softmax(torch.einsum("hd,htd->ht", q[row].double(), k) / math.sqrt(wide), dim=-1)
        assert torch.allclose(out[row].double(), torch.einsum("ht,htd->hd", weights, v), rtol=0, atol=1e-5)
