"""The graphed kernels against the reference, whatever else is in the pages, the tables and the batch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from tests.fakes.capture_watch import DEVICE, CaptureWatch
from torch import Tensor

from gapless.kernels import reference
from gapless.kernels.choose import choose
from gapless.kernels.graphed import PROMPT_AT_ONCE, ROWS_AT_ONCE, Graphed

HEADS, DIM, PAGE = 3, 16, 16
SETS = {"free": Graphed(), "exact": Graphed(16)}


@dataclass
class Scene:
    """Sequences of known lengths in shuffled pages; whatever is not theirs is NaN. Page 0 is the scrap page."""

    keys: Tensor
    values: Tensor
    tables: Tensor
    last: Tensor

    def attend(self, kernels: Graphed, q: Tensor, rows: Sequence[int], width: int | None = None) -> Tensor:
        index = torch.tensor(rows)
        at = kernels.paging(self.last[index], self.tables[index, :width], self.keys)
        return kernels.attend(q, self.keys, self.values, at)

    def truth(self, q: Tensor, rows: Sequence[int]) -> Tensor:
        index = torch.tensor(rows)
        at = reference.paging(self.last[index], self.tables[index], self.keys)
        return reference.attend(q, self.keys, self.values, at)


def scene(lengths: Sequence[int], page_size: int = PAGE, seed: int = 0, dtype: torch.dtype = torch.float32) -> Scene:
    g = torch.Generator().manual_seed(seed)
    needed = [-(-n // page_size) for n in lengths]
    pages = 1 + sum(needed) + 2
    cache = torch.full((2, pages + 1, HEADS, page_size, DIM), math.nan, dtype=dtype)
    cache[:, -1] = 0
    free = (torch.randperm(pages - 1, generator=g) + 1).tolist()
    tables = torch.zeros(len(lengths), max(needed) + 3, dtype=torch.int64)
    for row, n in enumerate(lengths):
        for column in range(needed[row]):
            tables[row, column] = free.pop()
        at = torch.arange(n)
        k, v = torch.randn(2, n, HEADS, DIM, generator=g).to(dtype)
        reference.write_kv(k, v, cache[0], cache[1], (tables[row, at // page_size], at % page_size))
    return Scene(cache[0], cache[1], tables, torch.tensor(lengths) - 1)


def queries(count: int, seed: int = 7) -> Tensor:
    return torch.randn(count, HEADS, DIM, generator=torch.Generator().manual_seed(seed))


def close(a: Tensor, b: Tensor, relative: float = 1e-5) -> bool:
    return bool((a.double() - b.double()).abs().max() <= relative * b.double().abs().max())


def test_the_device_decides() -> None:
    assert choose(torch.device("cpu")) is reference
    assert choose(torch.device("cpu"), exact=True) is reference
    free, exact = choose(torch.device("cuda", 1)), choose(torch.device("cuda"), exact=True)
    assert isinstance(free, Graphed)
    assert free.rows is None
    assert isinstance(exact, Graphed)
    assert exact.rows == reference.ROWS
    with pytest.raises(ValueError, match="rows is 0"):
        Graphed(0)


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("page_size", [16, 64, 128])
@pytest.mark.parametrize("seed", range(3))
def test_attention_is_the_references(kind: str, page_size: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    lengths = [1, page_size, page_size + 1, *torch.randint(1, 400, (9,), generator=g).tolist()]
    s, q = scene(lengths, page_size, seed), queries(12, seed)
    out = s.attend(SETS[kind], q, range(12))
    assert torch.isfinite(out).all()
    assert close(out, s.truth(q, range(12)))


@pytest.mark.parametrize("kind", SETS)
def test_a_table_may_be_as_narrow_as_its_longest_row(kind: str) -> None:
    s, q = scene([5, 48, 33, 300]), queries(4)
    rows, truth = [0, 1, 2], s.truth(q[:3], [0, 1, 2])
    for width in range(3, s.tables.shape[1] + 1):
        assert close(s.attend(SETS[kind], q[:3], rows, width), truth)
    assert close(s.attend(SETS[kind], q[:1], [0], 1), truth[:1])


@pytest.mark.parametrize("kind", SETS)
def test_done_rows_and_padding_see_themselves_on_the_scrap_page(kind: str) -> None:
    s = scene([50, 1, 120])
    s.tables[1] = 0
    tables = torch.cat((s.tables, torch.zeros(5, s.tables.shape[1], dtype=torch.int64)))
    positions = torch.cat((s.last, torch.zeros(5, dtype=torch.int64)))
    q, k, v = queries(8), queries(8, 1), queries(8, 2)
    k[1:], v[1:] = k[1], v[1]
    rows = SETS[kind]
    at = rows.paging(positions, tables, s.keys)
    reference.write_kv(k, v, s.keys, s.values, rows.cells(at))
    out = rows.attend(q, s.keys, s.values, at)
    assert close(out[[0, 2]], s.truth(q[[0, 2]], [0, 2]))
    for row in (1, 3, 4, 5, 6, 7):
        assert torch.allclose(out[row], v[1], atol=1e-6)


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("first", [0, 15, 16, 40])
def test_a_prompt_shares_one_table(kind: str, first: int) -> None:
    s, count = scene([first + 9, 77]), 9
    q, positions = queries(count), torch.arange(first, first + count)
    truth = reference.attend(q, s.keys, s.values, reference.paging(positions, s.tables[:1].expand(count, -1), s.keys))
    for tables in (s.tables[:1], s.tables[:1].expand(count, -1)):
        at = SETS[kind].paging(positions, tables, s.keys)
        assert [c.tolist() for c in SETS[kind].cells(at)] == [c.tolist() for c in _cells(positions, s.tables[0])]
        assert close(SETS[kind].attend(q, s.keys, s.values, at), truth)
    shared = reference.attend(q, s.keys, s.values, reference.paging(positions, s.tables[:1], s.keys))
    assert torch.equal(shared, truth)


def _cells(positions: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    return table[positions // PAGE], positions % PAGE


@pytest.mark.parametrize("kind", SETS)
def test_a_rows_own_nan_stays_with_that_row(kind: str) -> None:
    s = scene([50, 60])
    s.values[s.tables[0, 1], 0, 3] = math.nan
    s.keys[s.tables[0, 1], 1, 3] = math.nan
    out = s.attend(SETS[kind], queries(2), [0, 1])
    assert torch.isnan(out[0, :2]).all()
    assert torch.isfinite(out[0, 2]).all()
    assert torch.isfinite(out[1]).all()


def test_with_fixed_rows_a_row_is_the_same_bits_in_any_company() -> None:
    lengths = [5, 300, 31, 64, 129, 128, 1, 77, 200, 12, 191, 119, 193, 40, 61, 90]
    s, q = scene(lengths), queries(16)
    together = s.attend(SETS["exact"], q, range(16))
    order = torch.randperm(16, generator=torch.Generator().manual_seed(1)).tolist()
    assert torch.equal(s.attend(SETS["exact"], q[order], order), together[order])
    for row in range(16):
        assert torch.equal(s.attend(SETS["exact"], q[row : row + 1], [row])[0], together[row])


def test_half_types_are_summed_wide() -> None:
    s, q = scene([150, 9, 333], dtype=torch.bfloat16), queries(3).bfloat16()
    wide = Scene(s.keys.float(), s.values.float(), s.tables, s.last)
    out = s.attend(SETS["free"], q, range(3))
    assert out.dtype is torch.bfloat16
    assert close(out, wide.truth(q.float(), range(3)), 2**-7)


def test_rotation_is_the_references_to_the_last_bit() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(40, 6, 24, generator=torch.Generator().manual_seed(3)).to(dtype)
        positions = torch.arange(0, 2000, 50)
        turned = []
        for kernels in (reference, SETS["free"]):
            cos, sin = kernels.rope_tables(2048, 12, 10_000.0, torch.device("cpu"))
            turned.append(kernels.rope(x, cos[positions], sin[positions]))
        assert torch.equal(turned[0], turned[1])


def test_gelu_is_the_tanh_form() -> None:
    x = torch.linspace(-8, 8, 4001)
    assert close(SETS["free"].gelu_tanh(x), reference.gelu_tanh(x), 1e-6)


def test_pieces_cover_every_token_once() -> None:
    for kernels in (reference, *SETS.values()):
        for tokens in (1, 15, 16, 17, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, PROMPT_AT_ONCE + 1, 1500):
            for tables in (1, tokens):
                pieces = kernels.pieces(tokens, tables)
                assert [i for piece in pieces for i in range(tokens)[piece]] == list(range(tokens))
                assert all(range(tokens)[piece] for piece in pieces)
    assert len(SETS["free"].pieces(ROWS_AT_ONCE, ROWS_AT_ONCE)) == 1
    assert len(SETS["free"].pieces(PROMPT_AT_ONCE, 1)) == 1
    assert {len(range(1504)[p]) for p in SETS["exact"].pieces(1504, 1)} == {16}


def test_by_rows_takes_all_at_once_or_fixed_chunks() -> None:
    for kernels, expected in ((SETS["free"], [35]), (SETS["exact"], [16, 16, 16])):
        seen = []

        def double(x: Tensor, seen: list[int] = seen) -> Tensor:
            seen.append(x.shape[0])
            return x * 2

        x = torch.randn(35, 4)
        assert torch.equal(kernels.by_rows(double, x), x * 2)
        assert seen == expected


@pytest.mark.parametrize(("rows", "dtype"), [(64, torch.bfloat16), (1, torch.bfloat16), (16, torch.float32)])
def test_attention_at_full_size_stays_in_its_memory(rows: int, dtype: torch.dtype) -> None:
    """2048 positions, 32 heads of 64: keys and values are never held both."""
    with torch.inference_mode():
        keys, values = torch.empty(2, 9000, 32, 16, 64, dtype=dtype, device=DEVICE)
        positions = torch.empty(rows, dtype=torch.int64, device=DEVICE)
        tables = torch.empty(rows, 128, dtype=torch.int64, device=DEVICE)
        q = torch.empty(rows, 32, 64, dtype=dtype, device=DEVICE)
        watch = CaptureWatch()
        with watch:
            SETS["free"].attend(q, keys, values, SETS["free"].paging(positions, tables, keys))
    room = rows * 2048 * 32 * 64 * dtype.itemsize
    assert room <= watch.peak <= 1.25 * room
    assert watch.peak < 0.7e9
