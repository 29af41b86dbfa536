"""Logits that are changed before a token is chosen: penalties, biases, bans, and an end that is held back.

In: what rows begin with, as `Notes` that come with their step; a batch's logits, which are changed in place; and what
its tail chose. Out: nothing else. Each row has a word for every id of the vocabulary, and a short list of biases; a
token that is chosen is counted here, behind the tail, so nothing of it ever has to come from the host: at any depth the
next step sees what this one said. The formulas are at `Sampling`; in float32, one operation after the other, so that
every device has the same bits.

Whoever has no adjusted row in a batch leaves this out (`TailKind.adjusted`). Rows that are done, waiting or closed, and
those without adjustment, keep their logits and count nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gapless.constrain.table import TokenClass
from gapless.device.grammars import DeviceGrammars
from gapless.device.packet import Asked, Count, Real, Words
from gapless.device.rows import RowStore
from gapless.device.tables import DeviceTable
from gapless.errors import InvariantBroken
from gapless.kernels.rows import Said
from gapless.records import MAX_BIASED, Adjustment, DeviceLimits, Step

SAID, PROMPT, BIAS = 0x7FFF, 0x8000, 16
"""A word: how often the id was said, which stops at `SAID`; whether the prompt has it; and from bit `BIAS` on which of
the row's biases is its, from 1, 0 for none."""
_NEVER = float("-inf")
_ROW, _BETWEEN, _LOW = 48, 28, 2**28 - 1
"""Where a note's row, id and word are; a bias's are as far apart as its 32 bits demand."""


class Notes(NamedTuple):
    """What adjusted rows begin with, int64: their numbers, their words, their biases; `lengths` of the three."""

    words: Words
    lengths: tuple[int, int, int]


def notes_of(step: Step) -> Notes | None:
    """Of a step's prefills; None where no row is adjusted, as nearly always."""
    starts = [(p.start.ref.row, p.start.adjustment) for p in step.prefills if p.start.adjustment is not None]
    if not starts:
        return None
    words = [note for row, adjustment in starts for note in _words(row, adjustment)]
    biases = [note for row, adjustment in starts for note in _biases(row, adjustment)]
    notes = np.array([*(row for row, _ in starts), *words, *biases], dtype=np.int64)
    return Notes(notes, (len(starts), len(words), len(biases)))


def note_room(limits: DeviceLimits, rows: int) -> int:
    """The most words that notes of a step with so many rows have."""
    return rows * (1 + limits.max_context + 2 * MAX_BIASED)


def _words(row: int, adjustment: Adjustment) -> list[int]:
    words = {id: min(count, SAID) for id, count in Counter(adjustment.said).items()}
    for id in adjustment.prompt:
        words[id] = words.get(id, 0) | PROMPT
    for number, (id, _) in enumerate(adjustment.biases, 1):
        words[id] = words.get(id, 0) | number << BIAS
    return [row << _ROW | id << _BETWEEN | word for id, word in words.items()]


def _biases(row: int, adjustment: Adjustment) -> list[int]:
    if len(adjustment.biases) > MAX_BIASED:
        raise InvariantBroken(f"row {row} has {len(adjustment.biases)} biases; there is room for {MAX_BIASED}")
    bits = np.array([bias for _, bias in adjustment.biases], dtype=np.float32).view(np.uint32)
    return [row << _ROW | number << 32 | bit for number, bit in enumerate(bits.tolist(), 1)]


class Adjuster:
    """Words and biases of all rows, at fixed addresses; only the compute stream touches them. `room`: of notes."""

    def __init__(
        self, table: DeviceTable, rows: RowStore, vocab: int, room: int, grammars: DeviceGrammars | None = None
    ) -> None:
        count, device = len(rows.counts), rows.counts.device
        self._table, self._rows, self._grammars = table, rows, grammars
        self._notes = torch.zeros(room, dtype=torch.int64, device=device)
        self.said = Said(
            words=torch.zeros((count, vocab), dtype=torch.int32, device=device),
            biases=torch.zeros((count, MAX_BIASED + 1), device=device),
            end=table.end,
        )

    def begin(self, notes: Tensor, lengths: tuple[int, int, int]) -> None:
        """Begin adjusted rows: what was there of earlier lives is gone. `notes` int64 on the host, or as `Notes`."""
        here = self._notes[: len(notes)]
        here.copy_(notes, non_blocking=True)
        rows, words, biases = torch.split(here, list(lengths))
        self.said.words.index_fill_(0, rows, 0)
        ids, word = words >> _BETWEEN & 2 ** (_ROW - _BETWEEN) - 1, words & _LOW
        self.said.words[words >> _ROW, ids] = word.to(torch.int32)
        bits = (biases & 2**32 - 1).to(torch.int32).view(torch.float32)
        self.said.biases[biases >> _ROW, biases >> 32 & 2**16 - 1] = bits

    def adjust(self, rows: Tensor, asked: Tensor, logits: Tensor, masks: Tensor | None) -> None:
        """Change the logits float32 [B, vocab] of rows that are to be sampled. `masks` bool [B, vocab]: those from the
        host, None for the rules' and the token tables'."""
        kernels, of = self._rows.kernels, self.said
        grammars = self._grammars if masks is None else None
        if kernels is not None:
            tables = None if grammars is None else grammars.all
            kernels.adjust(self._rows.all, of, self._table.automata, tables, rows, asked, logits, masks)
            return
        counts, reals = self._rows.counts[rows], self._rows.reals[rows].float()
        state, words = counts[:, Count.STATE], of.words[rows]
        said, bias = words & SAID, of.biases[rows].gather(1, (words >> BIAS).long())
        repetition, frequency, presence = (
            reals[:, column, None] for column in (Real.REPETITION, Real.FREQUENCY, Real.PRESENCE)
        )
        repeated = torch.where(logits < 0, logits * repetition, logits / repetition)
        new = torch.where(words & (SAID | PROMPT) != 0, repeated, logits)
        new = new - said.float() * frequency
        new = torch.where(said > 0, new - presence, new)
        early = counts[:, Count.LEFT_NEXT] - counts[:, Count.LEFT] < counts[:, Count.LEAST]
        held = (early & self._table.automata.ends[state, TokenClass.END])[:, None]
        banned = (bias == _NEVER) | (held & (torch.arange(logits.shape[1], device=logits.device) == of.end))
        allowed = self._table.masks(state) if masks is None else masks
        allowed = allowed if grammars is None else grammars.masks(counts, allowed)
        banned &= (allowed & ~banned).any(dim=1, keepdim=True)  # where nothing else is left, the rule is stronger
        new = new + torch.where(banned, _NEVER, torch.where(bias == _NEVER, 0.0, bias))
        live = (counts[:, Count.ADJUSTED] != 0) & (counts[:, Count.DONE] == 0) & (asked == Asked.SAMPLE)
        logits.copy_(torch.where(live[:, None], new, logits))

    def count(self, rows: Tensor, asked: Tensor) -> None:
        """Count what a tail has just chosen: where a row goes on, its token is there."""
        kernels, of = self._rows.kernels, self.said
        if kernels is not None:
            kernels.count(self._rows.all, of, self._table.automata, rows, asked)
            return
        counts = self._rows.counts[rows]
        goes = (counts[:, Count.ADJUSTED] != 0) & (counts[:, Count.DONE] == 0) & (asked == Asked.SAMPLE)
        token = torch.where(goes, counts[:, Count.TOKEN], 0)
        words = of.words[rows, token]
        more = goes & (self._table.automata.classes[token] == TokenClass.OTHER) & (words & SAID != SAID)
        of.words[rows, token] = words + more.int()
