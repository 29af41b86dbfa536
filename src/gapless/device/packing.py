"""Prompts side by side in one matrix: which tokens of which sequences go through the model together, in words.

In: prefills, as they come in a step. Out: `Pack`s of at most so many tokens and runs (`kernels.prompts.Runs`), each
written as int64 words that travel in one piece, and on the device the same words by name. A picture's block is never
cut, since its tokens see one another; text may be. What a token sees is in an earlier pack, or in its own in a page
that nothing is copied into.

A pack is as large as the next of a few sizes (`token_buckets`), so that each may be a CUDA graph; tokens that fill it
up belong to no run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gapless.device.packet import Words
from gapless.kernels.prompts import RUN, Runs
from gapless.records import POISON, Prefill

Reals = npt.NDArray[np.float32]
Places = npt.NDArray[np.int32]
MOST_TOKENS = 4096
"""Of a pack: what a GPU needs to be busy, and no more, since memory for as many is held all the time."""
MOST_RUNS = 16
STEPS = ((64, 16), (1024, 64), (2048, 128), (MOST_TOKENS, 256))
"""Up to so many tokens, sizes of packs are this far apart."""


def token_buckets(most: int) -> tuple[int, ...]:
    """Sizes of packs of up to `most` tokens, ascending; the last one is the first that holds as many."""
    sizes, size = [], 0
    while size < most:
        size += next(step for upto, step in STEPS if size < upto)
        sizes.append(size)
    return tuple(sizes)


@dataclass(frozen=True, slots=True)
class Piece:
    """Positions `begin`..`end` - 1 of the sequence of a prefill, which is number `place` of its step."""

    place: int
    prefill: Prefill
    begin: int
    end: int

    @property
    def count(self) -> int:
        """Tokens."""
        return self.end - self.begin

    @property
    def ends(self) -> bool:
        """Whether the prompt ends with it."""
        return self.end == self.prefill.position + len(self.prefill.ids)


def blocks_of(prefill: Prefill, prefix: int) -> list[tuple[int, int]]:
    """Where pictures are computed, in positions, in the order of `pictures_of`. The first one includes BOS."""
    front = [(0, prefix)] if prefill.picture is not None else []
    insets = (prefill.position + inset.at for inset in prefill.insets)
    return front + [(at, at + prefix - 1) for at in insets]


def pieces_of(place: int, prefill: Prefill, prefix: int, most: int) -> list[Piece]:
    """A prefill in as few pieces of up to `most` tokens, no less than a block, as it takes."""
    blocks, last = blocks_of(prefill, prefix), prefill.position + len(prefill.ids)
    begin, found = 0 if prefill.picture is not None else prefill.position, []
    while begin < last:
        end = min(begin + most, last)
        end = next((at for at, to in blocks if begin < at < end < to), end)
        found.append(Piece(place, prefill, begin, end))
        begin = end
    return found


def packed(pieces: Iterable[Piece], most: int, runs: int) -> list[list[Piece]]:
    """Pieces in their order, as many together as fit. Whoever stands behind a page into which another prompt copies a
    block's last positions is in a later pack, as that is done when a pack is through."""
    packs: list[list[Piece]] = []
    copied: set[int] = set()
    left = 0
    for piece in pieces:
        if piece.count > left or len(packs[-1]) == runs or not copied.isdisjoint(piece.prefill.pages):
            packs.append([])
            copied.clear()
            left = most
        packs[-1].append(piece)
        copied.update(() if piece.prefill.tail is None else piece.prefill.tail[1:])
        left -= piece.count
    return packs


@dataclass(frozen=True, slots=True)
class PackLayout:
    """Where the words of a pack of `tokens` lie. `runs`: for how many there is room; `tile`: tokens of a tile."""

    tokens: int
    runs: int
    tile: int

    @property
    def tiles(self) -> int:
        """For how many there is room: every run may have one that is not full."""
        return self.tokens // self.tile + self.runs

    @property
    def sizes(self) -> list[int]:
        """Words of ids, values, runs of tokens and what they see, runs, their last tokens, tiles."""
        return [self.tokens, self.tokens, self.tokens, RUN * self.runs // 2, self.runs, self.tiles]

    @property
    def words(self) -> int:
        """Of all."""
        return sum(self.sizes)

    def write(self, pieces: Sequence[Piece], prefix: int, bos: int, words: Words) -> None:
        """Fill `words` int64 [self.words]."""
        ids, values, tokens, runs, last, tiles = np.split(words, np.cumsum(self.sizes)[:-1])
        of, sees = tokens.view(np.int32).reshape(2, self.tokens)
        held, cut = values.view(np.float32).reshape(-1, 2), tiles.view(np.int32).reshape(-1, 2)
        ids[:], held[:], of[:], sees[:], runs[:], last[:], cut[:] = 0, POISON, -1, 0, 0, 0, (-1, 0)
        first = tile = 0
        for number, (piece, run) in enumerate(zip(pieces, runs.view(np.int32).reshape(-1, RUN), strict=False)):
            rows = slice(first, first + piece.count)
            run[:] = (first, piece.count, piece.begin, *_tail(piece.prefill), piece.prefill.start.ref.row)
            of[rows] = number
            _write_tokens(piece, prefix, bos, ids[rows], held[rows], sees[rows])
            last[number] = first + piece.count - 1
            offsets = range(0, piece.count, self.tile)
            cut[tile : tile + len(offsets)] = [(number, offset) for offset in offsets]
            first, tile = first + piece.count, tile + len(offsets)


def _tail(prefill: Prefill) -> tuple[int, int]:
    """Before which position a page is read elsewhere, and where."""
    return (0, 0) if prefill.tail is None else (prefill.position, prefill.tail[0])


def _write_tokens(piece: Piece, prefix: int, bos: int, ids: Words, values: Reals, sees: Places) -> None:
    """The ids, values and sights of a piece; a picture's own ids do not matter."""
    prefill, begin, end = piece.prefill, piece.begin, piece.end
    skipped = max(begin, prefill.position) - prefill.position  # of the prompt, in earlier pieces
    front = max(0, prefill.position - begin)  # of the picture's block, in this one
    sees[:] = np.arange(begin + 1, end + 1)
    for at, to in blocks_of(prefill, prefix):
        if begin <= at < end:
            sees[at - begin : to - begin] = to
    ids[:front] = bos
    ids[front:] = prefill.ids[skipped : end - prefill.position]
    if any(prefill.values):
        for i, value in enumerate(prefill.values[skipped : end - prefill.position]):
            values[front + i, : len(value)] = value


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack on the device: `ids` int64 [T], `values` float32 [T, 2], and its runs."""

    ids: Tensor
    values: Tensor
    runs: Runs

    @classmethod
    def of(cls, layout: PackLayout, words: Tensor, tables: Tensor) -> Pack:
        """Name the parts of a pack's words; `tables` are all rows' page tables."""
        ids, values, tokens, runs, last, tiles = torch.split(words[: layout.words], layout.sizes)
        of, sees = tokens.view(torch.int32).view(2, -1)
        described = runs.view(torch.int32).view(-1, RUN)
        told = Runs(described, of, sees, tiles.view(torch.int32).view(-1, 2), last, tables)
        return cls(ids, values.view(torch.float32).view(-1, 2), told)


def shown(pieces: Sequence[Piece], prefix: int) -> list[tuple[int, int, int]]:
    """(place, which of its pictures, row in the pack) for each picture that a pack computes; BOS is no part of it."""
    found, first = [], 0
    for piece in pieces:
        for number, (at, to) in enumerate(blocks_of(piece.prefill, prefix)):
            if piece.begin <= at < piece.end:
                found.append((piece.place, number, first + at - piece.begin + (to - at == prefix)))
        first += piece.count
    return found


def landings(pieces: Sequence[Piece]) -> list[tuple[int, int, int]]:
    """(place, run, how many) of prompts that end in a pack: as long as places and runs go side by side, at once."""
    found: list[tuple[int, int, int]] = []
    for run, piece in enumerate(pieces):
        if not piece.ends:
            continue
        if found and (piece.place, run) == (found[-1][0] + found[-1][2], found[-1][1] + found[-1][2]):
            found[-1] = (*found[-1][:2], found[-1][2] + 1)
        else:
            found.append((piece.place, run, 1))
    return found
