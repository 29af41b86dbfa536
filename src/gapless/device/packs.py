"""Prompts of a step, several in one pass of the model, where the model has that.

In: prefills, words of packs as they arrive from the host, embeddings of pictures. Out: hidden states of the runs' last
tokens. `forward` depends on no tensor's content and takes no host lists, so each size of a pack may be captured as a
CUDA graph; what feeds it goes to memory that stays. Prefills with adapters go elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gapless.device.packet import PAD_ROW, Words
from gapless.device.packing import (
    MOST_RUNS,
    MOST_TOKENS,
    Pack,
    PackLayout,
    Piece,
    packed,
    pieces_of,
    shown,
    token_buckets,
)
from gapless.models.base import KVCache, Model, Prompts
from gapless.records import DeviceLimits, Prefill, RowRef, RowStart


class Packs:
    """Owns the words of a pack on the device. `buckets`: sizes of packs, ascending. `tables`: all rows' page tables."""

    def __init__(self, model: Model, prompts: Prompts, buckets: tuple[int, ...], tables: Tensor) -> None:
        self.buckets = buckets
        self._model = model
        self._prompts = prompts
        self._layouts = {tokens: PackLayout(tokens, MOST_RUNS, prompts.tile) for tokens in buckets}
        self._words = torch.zeros(self._layouts[buckets[-1]].words, dtype=torch.int64, device=model.device)
        self._packs = {tokens: Pack.of(layout, self._words, tables) for tokens, layout in self._layouts.items()}
        self.hidden = prompts.x.new_zeros((MOST_RUNS, *prompts.x.shape[1:]))

    @classmethod
    def of(cls, model: Model, limits: DeviceLimits, tables: Tensor) -> Packs | None:
        """None where the model has nothing for several prompts at once."""
        buckets = token_buckets(min(MOST_TOKENS, (limits.rows - 1) * limits.max_context))
        if buckets[-1] < model.prefix:
            return None
        prompts = model.new_prompts(limits.page_size, buckets[-1], MOST_RUNS)
        return None if prompts is None else cls(model, prompts, buckets, tables)

    def takes(self, prefill: Prefill) -> bool:
        """Whether a prefill goes this way."""
        return not prefill.start.adapter

    def plan(self, prefills: Sequence[tuple[int, Prefill]]) -> list[list[Piece]]:
        """Prefills with their places in a step -> packs, to be fed one after the other."""
        most, prefix = self.buckets[-1], self._model.prefix
        pieces = (piece for place, prefill in prefills for piece in pieces_of(place, prefill, prefix, most))
        return packed(pieces, most, MOST_RUNS)

    def bucket(self, pieces: Sequence[Piece]) -> int:
        """The size of a pack."""
        tokens = sum(piece.count for piece in pieces)
        return next(bucket for bucket in self.buckets if tokens <= bucket)

    def write(self, pieces: Sequence[Piece], words: Words) -> int:
        """Write a pack's words to the front of `words`; returns how many there are."""
        layout = self._layouts[self.bucket(pieces)]
        layout.write(pieces, self._model.prefix, self._prompts.bos, words[: layout.words])
        return layout.words

    def feed(self, pieces: Sequence[Piece], words: Tensor, pictures: Mapping[int, Sequence[Tensor]]) -> None:
        """Bring a pack's words and embeddings to where `forward` reads them. `pictures`: of each place of the step."""
        self._words[: len(words)].copy_(words, non_blocking=True)
        tokens = self.bucket(pieces)
        pack, x = self._packs[tokens], self._prompts.x
        valued = any(any(piece.prefill.values) for piece in pieces)
        x[:tokens] = self._model.embed(pack.ids, pack.values if valued else None)
        for place, number, at in shown(pieces, self._model.prefix):
            picture = pictures[place][number]
            x[at : at + len(picture)] = picture

    def feed_nothing(self, tokens: int) -> None:
        """As `feed`, of a pack of that size in which there is nobody."""
        pack = self._packs[tokens]
        self._words.zero_()
        pack.runs.of.fill_(-1)
        pack.runs.tiles[:, 0] = -1
        self._prompts.x.zero_()

    def feed_padding(self, tokens: int, most: int, before: int = 0) -> Callable[[], None]:
        """As `feed`, of a pack of that size full of the padding row's tokens, in runs of up to `most` that begin at
        position `before`: to see what it takes. Returns what does it once more."""
        count = min(tokens, most - before)
        start = RowStart(RowRef(PAD_ROW, 0), 0, 0, 0, 0, 0.0, 1.0, 0, -1, False)
        prefill = Prefill(start, (0,) * count, ((),) * count, before, ())
        ends = [*range(count, tokens, count), tokens]
        pieces = [Piece(0, prefill, before, before + end - i * count) for i, end in enumerate(ends)]
        words = np.zeros(self._layouts[tokens].words, dtype=np.int64)
        self.write(pieces, words)
        again = partial(self.feed, pieces, torch.from_numpy(words), {})
        again()
        return again

    def forward(self, tokens: int, cache: KVCache) -> None:
        """One pass of a pack of that size -> `hidden`, by runs."""
        self.hidden.copy_(self._prompts.forward(tokens, self._packs[tokens].runs, cache))
