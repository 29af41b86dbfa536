"""Rows whose logits are adjusted in every way, drawn, for tests of the kernels that do it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from tests.kernels.drawn_rows import Scene, scene, tables_of
from torch import Tensor

from gapless.constrain.table import TokenClass, build_table
from gapless.device.adjust import BIAS, PROMPT, SAID, Adjuster
from gapless.device.packet import Asked, Count, Real
from gapless.device.rows import RowStore
from gapless.device.tables import DeviceTable
from gapless.device.tail import Batch
from gapless.kernels.rows import RowKernels
from gapless.records import MAX_BIASED


@dataclass
class Adjusted:
    """A step's logits before, and what its rows have said and wish."""

    of: Scene
    words: Tensor
    biases: Tensor
    seed: int

    def adjust(self, kernels: RowKernels | None, masked: bool) -> Tensor:
        """The logits after it, with kernels or by the plain lines."""
        batch = self.of.batch
        logits = batch.logits.clone()
        with torch.inference_mode():
            self._adjuster(kernels).adjust(batch.rows, batch.asked, logits, batch.masks if masked else None)
        return logits

    def count(self, kernels: RowKernels | None) -> Tensor:
        """The words after a token of each row."""
        adjuster = self._adjuster(kernels)
        with torch.inference_mode():
            adjuster.count(self.of.batch.rows, self.of.batch.asked)
        return adjuster.said.words

    def at(self, device: torch.device) -> Adjusted:
        """The same on another device, as far as adjusting goes."""
        of, store = self.of, RowStore(*self.of.store.pages.shape, device)
        for name in ("counts", "reals", "pages"):
            getattr(store, name).copy_(getattr(of.store, name))
        spec = dataclasses.replace(of.model.spec)
        batch = Batch(*(getattr(of.batch, name).to(device) for name in Batch.__slots__))
        table = DeviceTable(build_table(spec.rules), device)
        grammars = tables_of(self.seed, self.words.shape[1], table, device)
        there = Scene(of.model, table, store, batch, grammars)
        return Adjusted(there, self.words.to(device), self.biases.to(device), self.seed)

    def _adjuster(self, kernels: RowKernels | None) -> Adjuster:
        store = RowStore(*self.of.store.pages.shape, self.of.store.counts.device)
        for name in ("counts", "reals", "pages"):
            getattr(store, name).copy_(getattr(self.of.store, name))
        store.kernels = kernels
        adjuster = Adjuster(self.of.table, store, self.words.shape[1], 1, self.of.grammars)
        adjuster.said = dataclasses.replace(adjuster.said, words=self.words.clone(), biases=self.biases)
        return adjuster


def adjusted_scene(seed: int, vocab: int, rows: int, device: torch.device) -> Adjusted:
    """Of so many rows, two of them padding. Some rows ban all that their rule allows, some hold the end back."""
    of, g = scene(seed, vocab, rows, device), torch.Generator(device).manual_seed(seed + 99)

    def ints(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=g, device=device)

    def pick(values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)[ints(0, len(values), 2 * rows)]

    store, some = of.store, min(vocab // 2, MAX_BIASED)
    store.counts[:, Count.TOKEN] = ints(0, vocab, 2 * rows)
    store.counts[:, Count.ADJUSTED] = ints(0, 3, 2 * rows)
    store.counts[:, Count.LEAST], store.counts[:, Count.LEFT_NEXT] = ints(0, 9, 2 * rows), ints(3, 9, 2 * rows)
    store.reals[:, Real.REPETITION] = pick((1.0, 1.1, 1.7, 0.3))
    store.reals[:, Real.FREQUENCY] = pick((0.0, 0.1, 2.0, -1 / 3))
    store.reals[:, Real.PRESENCE] = pick((0.0, 0.7, -2.0, 1e-3))
    words = torch.where(ints(0, 4, 2 * rows, vocab) == 0, ints(0, 5, 2 * rows, vocab), 0)
    words[1::7, : vocab // 2] = SAID
    words |= torch.where(ints(0, 3, 2 * rows, vocab) == 0, PROMPT, 0)
    biases = torch.randn(2 * rows, MAX_BIASED + 1, generator=g, device=device) * 9
    biases[ints(0, 2, *biases.shape) == 0] = -torch.inf
    biases[store.counts[:, Count.ADJUSTED] < 2] = 1.25
    biases[:, 0] = 0.0
    rules, end = of.table.automata, of.table.end
    narrow = int(rules.masks.sum(1)[rules.mask].argmin())
    ending = int((rules.masks.sum(1)[rules.mask] + vocab * ~rules.ends[:, TokenClass.END]).argmin())
    for place, row in enumerate(of.batch.rows.tolist()[:-2]):
        ids = torch.randperm(vocab, generator=g, device=device)[:some]
        if place % 4 == 0:  # all that its rule or its mask allows is banned
            ids, biases[row, 1:10] = torch.arange(9, device=device), -torch.inf
            store.counts[row, Count.ADJUSTED], store.counts[row, Count.DONE] = 2, 0
            store.counts[row, Count.STATE], of.batch.masks[place, 9:] = narrow, False
            of.batch.asked[place] = Asked.SAMPLE
        if place % 4 == 1:  # what holds the end back is all that may be said, but for what is banned
            ids, biases[row, 1:10] = torch.tensor([i for i in range(9) if i != end], device=device), -torch.inf
            ids, biases[row, 9] = torch.cat([ids, ids.new_full((1,), end)]), 2.5
            store.counts[row, Count.ADJUSTED], store.counts[row, Count.DONE] = 1 + place // 4 % 2, 0
            store.counts[row, Count.STATE], store.counts[row, Count.LEAST] = ending, 99
            of.batch.masks[place], of.batch.asked[place] = torch.arange(vocab, device=device) == end, Asked.SAMPLE
            if place // 4 % 2 == 0:
                ids = ids[-1:]
                biases[row, 1] = 2.5
        if place % 4 == 2:  # all that its token table allows is banned, or all but one
            store.counts[row, Count.ADJUSTED], store.counts[row, Count.DONE] = 2, 0
            store.counts[row, Count.STATE], store.counts[row, Count.GRAMMAR] = 0, 1 + place // 4 % 3
            store.counts[row, Count.GRAMMAR_STATE], store.counts[row, Count.LEFT] = place // 4 % 2, 50
            own = of.grammars.masks(store.counts[row, None], torch.ones(1, vocab, dtype=torch.bool, device=device))
            ids = own[0].nonzero()[:MAX_BIASED, 0]
            ids, biases[row, 1:] = ids[place // 8 % 2 :], -torch.inf
            of.batch.asked[place] = Asked.SAMPLE
        words[row, ids] |= torch.arange(1, len(ids) + 1, device=device) << BIAS
    of.batch.masks[rows // 2, :] = False
    return Adjusted(of, words.int(), biases, seed)
