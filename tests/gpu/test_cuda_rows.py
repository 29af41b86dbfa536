"""Rows on a GPU: the kernels that feed a step and end it do what the plain lines do, to the bit."""

from __future__ import annotations

import pytest
import torch
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel

from gapless.constrain.table import build_table
from gapless.device.packet import Asked, Count
from gapless.device.program import new_lines
from gapless.device.rows import RowStore
from gapless.device.tables import DeviceTable
from gapless.device.tail import Batch, Tail, TailKind

pytestmark = pytest.mark.gpu

ROWS, PAGES, COLUMNS = 40, 70, 37


class Valued(HashModel):
    """Gives out the values that a test drew."""

    def coord_value(self, hidden):
        return self.drawn[: len(hidden), 0]

    def size_value(self, hidden):
        return self.drawn[: len(hidden), 1:].contiguous()


def drawn(seed):
    """A store in the middle of its life, an automaton, and a step's inputs."""
    cuda, g = torch.device("cuda"), torch.Generator("cuda").manual_seed(seed)
    spec = HashSpec()
    table = DeviceTable(build_table(spec.rules), cuda)
    model = Valued(spec, device=cuda)
    model.drawn = torch.rand(ROWS, 3, generator=g, device=cuda)
    model.drawn[5] = torch.nan
    states = len(table.automata.mask)

    def ints(low, high, *shape):
        return torch.randint(low, high, shape, generator=g, device=cuda)

    store = RowStore(ROWS, PAGES, cuda)
    store.counts.copy_(ints(0, 9, *store.counts.shape))
    store.counts[:, Count.STATE] = ints(0, states, ROWS)
    store.counts[:, Count.LEFT] = ints(0, 3, ROWS)
    store.counts[:, Count.OBJECTS_LEFT] = ints(0, 3, ROWS)
    store.counts[:, Count.DONE] = (ints(0, 9, ROWS) == 0).long()
    store.counts[0, Count.DONE] = 1
    store.reals[:, :2] = torch.rand(ROWS, 2, generator=g, device=cuda, dtype=torch.float64)
    store.pages.copy_(ints(0, 99, ROWS, PAGES))
    rows = torch.cat(
        [torch.randperm(ROWS - 1, generator=g, device=cuda)[:21] + 1, torch.zeros(3, dtype=torch.int64, device=cuda)]
    )
    kinds = [Asked.SAMPLE, Asked.SAMPLE, Asked.SAMPLE, Asked.CLOSE, Asked.NOTHING]
    asked = torch.tensor(kinds, device=cuda)[ints(0, 5, 24)]
    asked[-3:] = Asked.NOTHING
    vocab = model.vocab
    logits = torch.randn(24, vocab, generator=g, device=cuda).mul_(4).round_()  # many ties
    logits[2, 7], logits[3, 1] = torch.nan, torch.inf
    logits[4] = -torch.inf
    logits[6, ::2] = -torch.inf
    return model, table, store, rows, asked, logits


def copied(store):
    other = RowStore(ROWS, PAGES, store.counts.device)
    for name in ("counts", "reals", "pages"):
        getattr(other, name).copy_(getattr(store, name))
    other.kernels = None
    return other


@pytest.mark.parametrize("seed", range(6))
def test_feeding(seed):
    _, _, store, rows, _, _ = drawn(seed)
    assert store.kernels is not None, "the kernels are not there"
    mine, plain = store.feed(rows, COLUMNS), copied(store).feed(rows, COLUMNS)
    for name in ("ids", "values", "positions", "tables"):
        assert torch.equal(getattr(mine, name), getattr(plain, name)), name
        assert getattr(mine, name).dtype == getattr(plain, name).dtype


@pytest.mark.parametrize("kind", [TailKind(), TailKind(spatial=True)], ids=lambda kind: kind.name)
@pytest.mark.parametrize("seed", range(12))
def test_ending(seed, kind):
    model, table, store, rows, asked, logits = drawn(seed)
    step = torch.tensor([1234], device="cuda")
    hidden = torch.zeros(len(rows), 2, dtype=torch.int64, device="cuda")
    masks = torch.ones_like(logits, dtype=torch.bool)
    stores, lines = (store, copied(store)), [new_lines(len(rows), store.counts.device).fill_(-7.0) for _ in range(2)]
    with torch.inference_mode():
        for of, own in zip(stores, lines, strict=True):
            Tail(model, table, of).run(Batch(step, rows, asked, logits, hidden, masks, own), kind)
    torch.testing.assert_close(lines[0], lines[1], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(stores[0].counts, stores[1].counts, rtol=0, atol=0)
    torch.testing.assert_close(stores[0].reals, stores[1].reals, rtol=0, atol=0, equal_nan=True)
    assert int((lines[0][:, 4] >= 0).sum()) >= 2, "hardly a row moved"


@pytest.mark.parametrize("seed", range(3))
def test_what_rows_have_and_may_need(seed):
    _, table, store, rows, _, _ = drawn(seed)
    plain = copied(store)
    assert torch.equal(store.adapters(rows), plain.adapters(rows))
    wanted = store.kernels.wishes(store.all, rows, table.may)
    right = torch.where(plain.done(rows), 0, table.may[plain.counts[rows, Count.STATE]])
    assert torch.equal(wanted, right) and wanted.dtype is torch.int32
