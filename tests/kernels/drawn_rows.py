"""Stores of rows in the middle of their lives, with logits of every kind, for tests of what ends a step."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from tests.fakes.drawn_tables import drawn_table
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from torch import Tensor

from gapless.constrain.table import build_table
from gapless.device.grammars import DeviceGrammars, packed
from gapless.device.packet import Asked, Count, Real
from gapless.device.program import new_lines
from gapless.device.rows import RowStore
from gapless.device.tables import DeviceTable
from gapless.device.tail import Batch, Tail, TailKind
from gapless.kernels.rows import RowKernels
from gapless.records import DeviceLimits, GrammarLoad

TEMPERATURES = (0.0, 1e-6, 1e-2, 0.5, 1.0, 1.0, 3.0, 1e3)
TOP_PS = (1e-6, 0.1, 0.3, 0.9, 0.999, 1 - 1e-12, 1.0)


class Valued(HashModel):
    """Gives out the values that a test drew."""

    drawn: Tensor

    def coord_value(self, hidden: Tensor) -> Tensor:
        return self.drawn[: len(hidden), 0]

    def size_value(self, hidden: Tensor) -> Tensor:
        return self.drawn[: len(hidden), 1:].contiguous()


@dataclass
class Scene:
    """One step's end: everything that goes in."""

    model: Valued
    table: DeviceTable
    store: RowStore
    batch: Batch
    grammars: DeviceGrammars

    def end(self, kernels: RowKernels | None, kind: TailKind) -> tuple[Tensor, Tensor, Tensor]:
        """Lines, counts and reals after it, of copies: with kernels, or by the plain lines."""
        store = RowStore(*self.store.pages.shape, self.store.counts.device)
        for name in ("counts", "reals", "pages"):
            getattr(store, name).copy_(getattr(self.store, name))
        store.kernels = kernels
        batch = dataclasses.replace(self.batch, lines=self.batch.lines.clone())
        with torch.inference_mode():
            Tail(self.model, self.table, store, self.grammars).run(batch, kind)
        return batch.lines, store.counts, store.reals


def scene(seed: int, vocab: int, rows: int, device: torch.device) -> Scene:
    """A scene of so many rows, two of them padding; each row's logits, wishes and state are drawn."""
    g = torch.Generator(device).manual_seed(seed)

    def ints(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=g, device=device)

    def of(values: tuple[float, ...], count: int) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)[ints(0, len(values), count)]

    usual = HashSpec()
    spec = dataclasses.replace(usual, rules=dataclasses.replace(usual.rules, vocab=vocab))
    table, model = DeviceTable(build_table(spec.rules), device), Valued(spec, device=device)
    model.drawn = torch.rand(rows, 3, generator=g, device=device)
    model.drawn[3] = torch.nan
    store = RowStore(2 * rows, 3, device)
    store.counts.copy_(ints(0, 9, *store.counts.shape))
    states = torch.arange(len(table.automata.mask), device=device)
    wide = states[table.automata.masks.sum(1)[table.automata.mask] > 2]
    states = torch.cat([states, *[wide] * 8])  # most rules of most states leave one id
    store.counts[:, Count.STATE] = states[ints(0, len(states), 2 * rows)]
    store.counts[:, Count.LEFT] = ints(0, 3, 2 * rows)
    store.counts[:, Count.OBJECTS_LEFT] = ints(0, 3, 2 * rows)
    store.counts[:, Count.DONE] = (ints(0, 9, 2 * rows) == 0).long()
    store.counts[:, Count.SEED] = ints(-(2**62), 2**62, 2 * rows)
    store.counts[:, Count.TOP_LOGPROBS] = torch.tensor([-1, -1, 0, 3, 20], device=device)[ints(0, 5, 2 * rows)]
    store.counts[0, Count.DONE] = 1
    store.reals[:, Real.TEMPERATURE], store.reals[:, Real.TOP_P] = of(TEMPERATURES, 2 * rows), of(TOP_PS, 2 * rows)
    chosen = torch.randperm(2 * rows - 1, generator=g, device=device)[: rows - 2] + 1
    asked = torch.tensor([*[Asked.SAMPLE] * 10, Asked.CLOSE, Asked.NOTHING], device=device)[ints(0, 12, rows)]
    asked[-2:] = Asked.NOTHING
    batch = Batch(
        step=torch.tensor([1234], device=device),
        rows=torch.cat([chosen, chosen.new_zeros(2)]),
        asked=asked,
        logits=logits_of(vocab, rows, g),
        hidden=ints(0, 9, rows, 2),
        masks=torch.rand(rows, vocab, generator=g, device=device) < 0.7,
        lines=new_lines(rows, device).fill_(-7.0),
    )
    batch.masks[rows // 2] = False
    grammars = tables_of(seed, vocab, table, device)
    for row in range(1, 2 * rows):
        slot = int(ints(0, 5, 1)) % 4
        store.counts[row, Count.GRAMMAR] = slot
        store.counts[row, Count.GRAMMAR_STATE] = ints(0, max(1, int(grammars.all.spans[slot, 2])), 1)[0]
    store.counts[0, Count.GRAMMAR : Count.GRAMMAR_STATE + 1] = 0
    return Scene(model, table, store, batch, grammars)


def tables_of(seed: int, vocab: int, rules: DeviceTable, device: torch.device) -> DeviceGrammars:
    """Three token tables in their slots, not in the order of these."""
    limits = DeviceLimits(2, 2, 4, 8, 1, 1, vocab, grammars=3, grammar_numbers=4000)
    grammars, first = DeviceGrammars(limits, rules, device), 7
    for slot, (states, classes) in ((2, (9, 12)), (3, (40, 30)), (1, (2, 3))):
        table = drawn_table(100 * seed + slot, vocab, states, classes)
        load = GrammarLoad(table, first)
        grammars.load(slot, first, torch.from_numpy(packed(load)).to(device))
        first += table.numbers + 5
    return grammars


def logits_of(vocab: int, rows: int, g: torch.Generator) -> Tensor:
    """Logits float32 [rows, vocab]: broken ones, ties, flat and steep ones, and what is impossible, by turns."""
    logits = torch.randn(rows, vocab, generator=g, device=g.device) * 3
    tiny = torch.finfo(torch.float32).tiny
    for row in range(rows):
        match row % 12:
            case 0:
                logits[row].round_()
            case 1:
                logits[row] *= 1e-4
            case 2:
                logits[row] = 0.0
                logits[row, ::2] = -0.0
            case 3:
                logits[row, ::3] = -torch.inf
            case 4:
                logits[row, vocab // 2] += 30
            case 5:
                logits[row] *= 1e37
            case 6:
                logits[row, 5 * row % vocab] = (torch.nan, torch.inf)[row // 12 % 2]
            case 7:
                logits[row] *= 4 * tiny  # some are subnormal
            case 8:
                logits[row, 1:] = -torch.inf
            case 9 if row > 12:
                logits[row] = -torch.inf
            case 10:
                logits[row] = 7.25
    return logits
