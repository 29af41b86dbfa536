"""Paged attention: right against plain softmax, and bitwise blind to everything that is not the row's own."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from gapless.kernels import reference as kernels

HEADS, DIM = 2, 16


@dataclass
class Scene:
    """Rows of known keys and values, put into pages of one size at shuffled places."""

    q: Tensor
    keys: Tensor
    values: Tensor
    positions: Tensor
    tables: Tensor
    truth: list[tuple[Tensor, Tensor]]

    def attend(self, rows: list[int], width: int | None = None) -> Tensor:
        index = torch.tensor(rows)
        at = kernels.paging(self.positions[index], self.tables[index, :width], self.keys)
        return kernels.attend(self.q[index], self.keys, self.values, at)


def scene(lengths: list[int], page_size: int = 16, seed: int = 0, spare_pages: int = 8) -> Scene:
    """Pages nobody wrote, tails of pages and the scrap page hold NaN; spare table entries point at the scrap page."""
    g = torch.Generator().manual_seed(seed)
    truth = [(torch.randn(n, HEADS, DIM, generator=g), torch.randn(n, HEADS, DIM, generator=g)) for n in lengths]
    q = torch.randn(len(lengths), HEADS, DIM, generator=g)
    needed = [-(-n // page_size) for n in lengths]
    width = max(needed) + spare_pages
    pages = 1 + sum(needed) + 3
    cache = torch.full((2, pages + 1, HEADS, page_size, DIM), math.nan)
    cache[:, -1] = 0
    free = (torch.randperm(pages - 1, generator=g) + 1).tolist()
    tables = torch.zeros(len(lengths), width, dtype=torch.int64)
    for row, (k, v) in enumerate(truth):
        for column in range(needed[row]):
            tables[row, column] = free.pop()
        cells = torch.arange(lengths[row])
        at = (tables[row, cells // page_size], cells % page_size)
        kernels.write_kv(k, v, cache[0], cache[1], at)
    return Scene(q, cache[0], cache[1], torch.tensor(lengths) - 1, tables, truth)


@pytest.mark.parametrize("page_size", [16, 64, 128])
def test_attention_is_softmax_over_the_rows_own_positions(page_size: int) -> None:
    s = scene([1, 16, 17, 64, 65, 200], page_size)
    out = s.attend([0, 1, 2, 3, 4, 5])
    assert torch.isfinite(out).all()
    for row, (k, v) in enumerate(s.truth):
        for h in range(HEADS):
            weights = torch.softmax(k[:, h].double() @ s.q[row, h].double() / math.sqrt(DIM), dim=0)
            assert torch.allclose(out[row, h].double(), weights @ v[:, h].double(), atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_a_row_does_not_feel_its_neighbours(seed: int) -> None:
    lengths = [5, 300, 31, 64, 129, 128, 1, 77, 2000, 12, 191, 1192, 193, 40, 618, 90]
    s = scene(lengths, seed=seed)
    together = s.attend(list(range(16)))
    order = torch.randperm(16, generator=torch.Generator().manual_seed(seed)).tolist()
    assert torch.equal(s.attend(order), together[order])
    for row in range(16):
        assert torch.equal(s.attend([row])[0], together[row])
        needed = lengths[row] // 16 + 1
        assert torch.equal(s.attend([row], width=needed)[0], together[row])


def test_page_sizes_give_the_same_bits() -> None:
    lengths = [5, 300, 64, 129]
    outs = [scene(lengths, page_size, seed=9).attend([0, 1, 2, 3]) for page_size in (16, 32, 64, 128)]
    for out in outs[1:]:
        assert torch.equal(out, outs[0])


def test_a_token_inside_a_prompt_does_not_see_what_follows() -> None:
    s = scene([100])
    at = kernels.paging(torch.tensor([40]), s.tables, s.keys)
    inside = kernels.attend(s.q, s.keys, s.values, at)
    k, v = (part[:41] for part in s.truth[0])
    for h in range(HEADS):
        weights = torch.softmax(k[:, h].double() @ s.q[0, h].double() / math.sqrt(DIM), dim=0)
        assert torch.allclose(inside[0, h].double(), weights @ v[:, h].double(), atol=1e-6)


def test_a_rows_own_nan_stays_with_that_row() -> None:
    s = scene([50, 60])
    s.values[s.tables[0, 1], 0, 3] = math.nan
    out = s.attend([0, 1])
    assert torch.isnan(out[0, 0]).all()
    assert torch.isfinite(out[0, 1]).all()
    assert torch.isfinite(out[1]).all()


def test_attention_keeps_the_cache_dtype_and_sums_in_float32() -> None:
    s = scene([150])
    keys, values = s.keys.bfloat16(), s.values.bfloat16()
    at = kernels.paging(s.positions, s.tables, keys)
    out = kernels.attend(s.q.bfloat16(), keys, values, at)
    exact = Scene(s.q.bfloat16().float(), keys.float(), values.float(), s.positions, s.tables, s.truth).attend([0])
    assert out.dtype is torch.bfloat16
    assert torch.equal(out, exact.bfloat16())
