"""What a step computes, over memory that stays: begin rows, extend tables, forward, tail, park.

In: the words in the inbox, and what earlier parts left in the shared buffers. Out: `hidden`, `logits` and `lines`.
`extend`, `forward`, `tail` and `parked_tail` depend on no tensor's content and take no host lists, so each may be
captured as a CUDA graph; whoever calls decides on which stream or thread, in launch order (I1), under
`torch.inference_mode`.

There is one set of shared buffers: each forward overwrites the previous one's logits, so rows that wait for a host mask
are parked first. Prompts are fed one sequence at a time, or, where the model has that, side by side (`packs`). That a
token's result depends neither on its company nor on whether it was prefilled or decoded is the model's promise
(`models.base`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from gapless.constrain.table import Table
from gapless.device.adjust import Adjuster, note_room
from gapless.device.grammars import DeviceGrammars
from gapless.device.packet import PAD_ROW, Count, Inbox, Layout
from gapless.device.packing import Piece, landings
from gapless.device.packs import Packs
from gapless.device.pictures import CropBatch, Shown
from gapless.device.prompt import Prompt
from gapless.device.record import WIDTH
from gapless.device.rows import Feed, RowStore
from gapless.device.tables import DeviceTable
from gapless.device.tail import KINDS, MASKED, RULED, Batch, Feeds, Tail, TailKind
from gapless.errors import InvariantBroken
from gapless.models.base import Model, RowAdapters
from gapless.records import POISON, DeviceLimits, Prefill

Adapted = tuple[()] | tuple[RowAdapters]
"""A model's last argument: left out where nobody has an adapter."""

HOST_BLOCK = 2**28
"""Bytes of host memory that are asked for at once."""
PROMPT_SCORES = 2**21
"""Ids times positions of their page table that are fed at once: for 32 heads it bounds scores to 256 MiB."""


class Allocate(Protocol):
    """Gives host memory."""

    def __call__(self, shape: tuple[int, ...], *, dtype: torch.dtype) -> Tensor:
        """Of any content."""
        ...


class Program:
    """Owns the rows, the cache and the shared buffers of one device.

    `inbox` is written before each step. `batch` holds the step's rows, `parked` one row in a lane: its `step`, `rows`
    and `asked` are filled from `lane_words` int64 [3]. `pictures` is None where the model has no tower for several.
    `plain`: see `CudaDeviceConfig`.
    """

    def __init__(
        self, model: Model, table: Table, limits: DeviceLimits, layout: Layout, *, plain: bool = False
    ) -> None:
        device = model.device
        self.model = model
        self.cache = model.new_cache(limits.pages, limits.page_size)
        self.rows = RowStore(limits.rows, layout.max_pages, device, plain=plain)
        self.table = DeviceTable(table, device)
        self.grammars = DeviceGrammars(limits, self.table, device)
        self.inbox = Inbox(layout, device)
        self.adapters = model.new_adapters(limits.adapters + 1, limits.adapter_rank) if limits.adapters else None
        self.packs = Packs.of(model, limits, self.rows.pages)
        self.pictures = None if model.tower is None else CropBatch(model, model.tower)
        grammars, room = self.grammars if limits.grammars else None, note_room(limits, layout.rows)
        self.adjuster = Adjuster(self.table, self.rows, model.vocab, room, grammars)
        self._tail = Tail(model, self.table, self.rows, self.grammars)
        self.kinds = (*KINDS, *(RULED if limits.grammars else ()), MASKED)
        """Of tails, that may be asked for."""
        sample = model.embed(torch.zeros(1, dtype=torch.int64, device=device), torch.full((1, 2), -1.0, device=device))
        dim, lanes = sample.shape[1], limits.rows * limits.depth

        def batch(count: int, step: Tensor, rows: Tensor, asked: Tensor) -> Batch:
            logits = torch.zeros((count, model.vocab), device=device)
            masks = torch.ones((count, model.vocab), dtype=torch.bool, device=device)
            return Batch(step, rows, asked, logits, sample.new_zeros((count, dim)), masks, new_lines(count, device))

        self.batch = batch(layout.rows, self.inbox.step, self.inbox.rows, self.inbox.asked)
        self.lane_words = torch.zeros(3, dtype=torch.int64, device=device)
        self.parked = batch(1, *torch.split(self.lane_words, 1))
        self.parked_logits = torch.zeros((lanes, model.vocab), device=device)
        self.parked_hidden = sample.new_zeros((lanes, dim))

    def begin(self) -> None:
        """Begin the rows whose starts lie in the inbox."""
        self.rows.begin(self.inbox)

    def note(self, notes: Tensor, lengths: tuple[int, int, int]) -> None:
        """Begin those of them that are adjusted, see `Adjuster.begin`."""
        self.adjuster.begin(notes, lengths)

    def extend(self) -> None:
        """Extend page tables by the grants in the inbox."""
        self.rows.extend(self.inbox)

    def load_adapter(self, prefill: Prefill) -> None:
        """Put the adapter that a prefill brings, if it brings one, into its slot; no row in flight has that slot."""
        if prefill.adapter is not None:
            if self.adapters is None:
                raise InvariantBroken(f"row {prefill.start.ref.row} brings an adapter, but the device has no slots")
            self.adapters.load(prefill.start.adapter, prefill.adapter.weights)

    def load_grammar(self, prefill: Prefill, packed: Tensor) -> None:
        """Put the token table that a prefill brings, as `grammars.packed` makes it, into its slot; no row in flight has
        that slot."""
        assert prefill.grammar is not None
        self.grammars.load(prefill.start.grammar, prefill.grammar.first, packed)

    def forward(self, count: int, columns: int, feeds: Feeds) -> None:
        """Feed the first `count` rows of the inbox with their last tokens -> hidden and logits. The inbox's step is the
        next one from now on: the same rows are fed again without a word from the host.

        `columns`: how much of the page tables is passed on; every row's own page must be in it.
        """
        self.inbox.step += 1
        rows = self.inbox.rows[:count]
        feed = self.rows.feed(rows, columns)
        adapted = self._adapted(self.rows.adapters(rows)) if feeds.adapted else ()
        self.batch.hidden[:count] = self._forward(feed, adapted, feeds.spatial)
        self.head(count)

    def any_width(self, count: int, feeds: Feeds) -> bool:
        """Whether `forward` takes the same time whatever `columns` is."""
        return self.model.any_width(count, self.cache, self.adapters if feeds.adapted else None)

    def head(self, count: int) -> None:
        """Hidden -> logits, of the first `count` rows."""
        self.batch.logits[:count] = self.model.logits(self.batch.hidden[:count])

    def encode(self, crops: Tensor, tiling: tuple[int, int]) -> Tensor:
        """One picture's crops, or pixels, uint8 on the device -> its embeddings [prefix - 1, dim]."""
        return self.model.encode_picture(crops, tiling)

    def host_pictures(self, limits: DeviceLimits, allocate: Allocate) -> list[Tensor]:
        """Host memory for embeddings of pictures, [prefix - 1, dim] each, as many as `limits` say. In blocks: who locks
        pages rounds what is asked for up to powers of two."""
        shape, dtype = (limits.prefix - 1, *self.batch.hidden.shape[1:]), self.batch.hidden.dtype
        most = max(1, HOST_BLOCK // max(1, limits.picture_bytes))
        counts = [min(most, limits.host_pictures - first) for first in range(0, limits.host_pictures, most)]
        return [slot for count in counts for slot in allocate((count, *shape), dtype=dtype)]

    def encode_crops(self, count: int) -> None:
        """Encode as many crops as are in `pictures`."""
        assert self.pictures is not None
        self.pictures.encode(count)

    def embed(self, shown: Iterable[Shown], encode: Callable[[int], None], read: Callable[[], None]) -> list[Tensor]:
        """Embeddings of the pictures that are wanted now, in their order: together where the model can do that. See
        `CropBatch.of`. Raises `InvariantBroken` for one that is encoded in parts though the model takes whole ones
        alone."""
        if self.pictures is not None:
            return self.pictures.of(shown, encode, read)
        done = []
        for one in shown:
            if one.pixels is None or not one.whole:
                raise InvariantBroken("a picture is to be encoded in parts, but the model encodes whole ones alone")
            done.append(self.encode(one.pixels, one.tiling))
            read()
        return done

    def prompt(self, place: int, prefill: Prefill, prompt: Prompt, pictures: Sequence[Tensor], columns: int) -> None:
        """Compute a sequence's picture block if it has one to compute, then feed its ids and insets -> hidden at
        `place`. `pictures`: embeddings of `pictures_of(prefill)`; `columns`: see `forward`."""
        row, insets = prefill.start.ref.row, list(pictures)
        table, own = self.rows.pages[row, :columns], self._own_adapter(prefill)
        if prefill.picture is not None:
            self.model.prefill_prefix(insets.pop(0), self.cache, prompt.prefix_pages, *own)
        if prefill.tail is not None:
            self.cache.copy_page(*prefill.tail)
        fed = 0
        for inset, picture in zip(prefill.insets, insets, strict=True):
            if fed < inset.at:
                self._text(prompt, slice(fed, inset.at), table, own)
            self.model.prefill_inset(picture, prefill.position + inset.at, self.cache, table, *own)
            fed = inset.at + len(picture)
        if fed < len(prefill.ids):  # a part of a prompt may end with a picture
            self.batch.hidden[place] = self._text(prompt, slice(fed, None), table, own)

    def together(self, tokens: int) -> None:
        """Feed the pack of that size that is in `packs`."""
        assert self.packs is not None
        self.packs.forward(tokens, self.cache)

    def empty_pack(self, tokens: int) -> None:
        """Put a pack of that size into `packs` in which there is nobody."""
        assert self.packs is not None
        self.packs.feed_nothing(tokens)

    def keep(self, pieces: Sequence[Piece]) -> None:
        """Hidden states of prompts that end in the last pack -> hidden at their places."""
        assert self.packs is not None
        for place, run, count in landings(pieces):
            self.batch.hidden[place : place + count] = self.packs.hidden[run : run + count]

    def widest_prompt(self) -> None:
        """Feed the padding row as much at once as any prompt is, over the widest page table and through an adapter if
        there are slots: to see what it takes."""
        self.padding_prompt(self.most_text)

    @property
    def most_text(self) -> int:
        """How many ids of one prompt are fed at once over the widest page table."""
        return min(self._at_once(self.rows.pages[PAD_ROW]), self.model.max_context)

    def padding_prompt(self, count: int) -> None:
        """The same with `count` ids."""
        table, device = self.rows.pages[PAD_ROW], self.model.device
        ids = torch.zeros(count, dtype=torch.int64, device=device)
        positions, values = torch.arange(count, device=device), torch.full((count, 2), float(POISON), device=device)
        own = () if self.adapters is None else self._adapted(self.rows.counts[PAD_ROW, Count.ADAPTER, None])
        self._text(Prompt(ids, positions, values, ids[:0]), slice(0, None), table, own)

    def _at_once(self, table: Tensor) -> int:
        """How many ids are fed at once over a page table [n]."""
        return max(1, PROMPT_SCORES // (table.shape[0] * self.cache.page_size))

    def _own_adapter(self, prefill: Prefill) -> Adapted:
        """The adapter of a sequence, if it has one, as the model is given it for all its tokens."""
        if not prefill.start.adapter:
            return ()
        return self._adapted(self.rows.counts[prefill.start.ref.row, Count.ADAPTER, None])

    def _adapted(self, slots: Tensor) -> Adapted:
        assert self.adapters is not None
        return (RowAdapters(self.adapters, slots),)

    def _text(self, prompt: Prompt, part: slice, table: Tensor, own: Adapted) -> Tensor:
        """Feed a part of a prompt's ids, not empty -> hidden of the last one [dim]."""
        whole = (t[part] for t in (prompt.ids, prompt.values, prompt.positions))
        fed = zip(*(torch.split(t, self._at_once(table)) for t in whole), strict=True)
        return [self._forward(Feed(ids, vs, at, table[None]), own)[-1] for ids, vs, at in fed][-1]

    def adjust(self, count: int, masked: bool) -> None:
        """Change the logits of the first `count` rows of the inbox as they wish, if they are to be sampled now."""
        self._adjust(self.batch, count, masked)

    def _adjust(self, batch: Batch, count: int, masked: bool) -> None:
        rows, asked, logits, masks = (part[:count] for part in (batch.rows, batch.asked, batch.logits, batch.masks))
        self.adjuster.adjust(rows, asked, logits, masks if masked else None)

    def tail(self, lines: Tensor, kind: TailKind) -> None:
        """Do what is asked of the first rows of the inbox, as many as `lines` [B, WIDTH], where their records go; their
        logits are adjusted."""
        self._tail.run(self.batch.first(lines), kind)

    def count(self, count: int) -> None:
        """Count what the tail of so many rows chose."""
        self.adjuster.count(self.batch.rows[:count], self.batch.asked[:count])

    def end(self, lines: Tensor, kind: TailKind) -> None:
        """A tail with all that its kind wants done before and behind it."""
        if kind.adjusted:
            self.adjust(len(lines), kind.masked)
        self.tail(lines, kind)
        if kind.adjusted:
            self.count(len(lines))

    def parked_tail(self, adjusted: bool) -> None:
        """Do what is asked of the row in the lane that was fetched, and that it is adjusted if it wishes."""
        if adjusted:
            self._adjust(self.parked, 1, masked=True)
        self._tail.run(self.parked, MASKED)
        if adjusted:
            self.adjuster.count(self.parked.rows, self.parked.asked)

    def park(self, place: int, lane: int) -> None:
        """Set the logits and hidden state of the row at `place` of the last forward aside in a lane."""
        self.parked_logits[lane] = self.batch.logits[place]
        self.parked_hidden[lane] = self.batch.hidden[place]

    def fetch(self, lane: int) -> None:
        """Bring a lane's logits and hidden state to where `parked_tail` reads them."""
        self.parked.logits[0] = self.parked_logits[lane]
        self.parked.hidden[0] = self.parked_hidden[lane]

    def _forward(self, feed: Feed, adapted: Adapted, spatial: bool = True) -> Tensor:
        """One model call of T tokens -> hidden [T, dim]. `spatial`: some may carry values."""
        x = self.model.embed(feed.ids, feed.values if spatial else None)
        return self.model.forward(x, feed.positions, feed.tables, self.cache, *adapted)


def new_lines(count: int, device: torch.device) -> Tensor:
    """Lines for `count` rows, float64 [count, WIDTH], all POISON."""
    return torch.full((count, WIDTH), float(POISON), dtype=torch.float64, device=device)
