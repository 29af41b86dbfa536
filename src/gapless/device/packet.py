"""What travels to the device with a step: one array of int64 words, in three parts of fixed places.

Head: the number of the step (before a forward, which counts it on, that of the one before), its rows and what is
asked of each. Grants: pages that extend page tables. Starts: what rows
begin with (reals as the words of their float64 bits). Unused entries name the padding row and what it holds anyway, so
whoever applies a part writes all of it, with shapes that never change. A step that changes nothing sends its head
alone.

In: a `Step`, on the loop's thread, written into memory that belongs to one step in flight (I10). Out: the same words
on the device, in which `Inbox` names the parts as tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gapless.device.sampler import signed
from gapless.errors import InvariantBroken
from gapless.records import POISON, Ints, Mask, Prefill, RowRef, Step, StepKind

Words = npt.NDArray[np.int64]

PAD_ROW = 0
SCRAP_PAGE = 0


class Asked(IntEnum):
    """What a tail does with a row of its step."""

    NOTHING = 0
    SAMPLE = 1
    CLOSE = 2


class Count(IntEnum):
    """Columns of a row's integers."""

    TOKEN = 0
    POSITION = 1
    """Where the last token sits: its K/V is written there by the next forward."""
    STATE = 2
    LEFT = 3
    LEFT_NEXT = 4
    OBJECTS_LEFT = 5
    SEED = 6
    TOP_LOGPROBS = 7
    DONE = 8
    EPOCH = 9
    ADAPTER = 10
    """Slot of the adapter, 0 for none."""
    ADJUSTED = 11
    """Whether its logits are changed, see `device.adjust`: 0 no, 1 yes, 2 and some ids are banned."""
    LEAST = 12
    """Tokens an answer has at least."""
    GRAMMAR = 13
    """Slot of the token table, 0 for none."""
    GRAMMAR_STATE = 14


class Real(IntEnum):
    """Columns of a row's reals. A value that a token does not carry is POISON."""

    VALUE_0 = 0
    VALUE_1 = 1
    TEMPERATURE = 2
    TOP_P = 3
    REPETITION = 4
    FREQUENCY = 5
    PRESENCE = 6


COUNTS, REALS = len(Count), len(Real)
_GRANT = 3


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts lie. `rows`: the most rows of a step; `grants`: the most pages granted by one; `max_pages`: the
    entries of a page table."""

    rows: int
    grants: int
    max_pages: int

    @property
    def head(self) -> int:
        """Words of the head: step number, `rows` rows, `rows` demands."""
        return 1 + 2 * self.rows

    @property
    def granted(self) -> int:
        """Words of head and grants."""
        return self.head + _GRANT * self.grants

    @property
    def words(self) -> int:
        """Words of all three parts."""
        return self.granted + self.rows * (1 + COUNTS + REALS + self.max_pages)


class Packet:
    """Names the parts of one step's words on the host and fills them. `words` int64 [layout.words] is the caller's."""

    def __init__(self, layout: Layout, words: Words) -> None:
        rows = layout.rows
        self.layout = layout
        self.words = words
        self.grants = words[layout.head : layout.granted].reshape(_GRANT, -1)
        at = layout.granted
        self.start_rows = words[at : at + rows]
        at += rows
        self.counts = words[at : at + rows * COUNTS].reshape(rows, COUNTS)
        at += rows * COUNTS
        self.reals = words[at : at + rows * REALS].view(np.float64).reshape(rows, REALS)
        at += rows * REALS
        self.tables = words[at:].reshape(rows, layout.max_pages)
        words[:] = 0

    def fill(self, step: Step) -> int:
        """Write a step that is launched; returns how many leading words matter. Raises `InvariantBroken` for one that
        does not fit."""
        self._head(step)
        granted = self._grant(step) if step.grants or step.prefills else 0
        if step.prefills:
            self._start(step.prefills)
            return self.layout.words
        return self.layout.granted if granted else self.layout.head

    def _head(self, step: Step) -> None:
        asked = np.where(waiting_of(step), Asked.NOTHING, Asked.SAMPLE)
        write_head(self.layout, self.words, step, asked)
        self.words[0] -= step.kind is StepKind.DECODE

    def _grant(self, step: Step) -> int:
        entries: list[tuple[int, int, int]] = []
        for grant in step.grants:
            _check_pages(grant.row, grant.first + len(grant.pages), self.layout.max_pages)
            entries += [(grant.row, index, page) for index, page in enumerate(grant.pages, grant.first)]
        if len(entries) > self.layout.grants:
            raise InvariantBroken(f"step {step.id} grants more than the {self.layout.grants} pages it may")
        self.grants[:] = 0  # the padding row's first entry holds the scrap page
        if entries:
            self.grants[:, : len(entries)] = np.array(entries).T
        return len(entries)

    def _start(self, prefills: tuple[Prefill, ...]) -> None:
        self.start_rows[:] = PAD_ROW
        self.counts[:] = PADDING_COUNTS
        self.reals[:] = PADDING_REALS
        self.tables[:] = SCRAP_PAGE
        for i, prefill in enumerate(prefills):
            start, adjusted = prefill.start, prefill.start.adjustment
            _check_pages(start.ref.row, len(prefill.pages), self.layout.max_pages)
            last = prefill.position + len(prefill.ids) - 1
            self.start_rows[i] = start.ref.row
            self.counts[i] = (
                *(POISON, last, start.state, start.left, start.left_next, start.objects_left, signed(start.seed)),
                *(start.top_logprobs, False, start.ref.epoch, start.adapter),
                *((0, 0) if adjusted is None else (1 + adjusted.bans, adjusted.least)),
                *(start.grammar, start.grammar_state),
            )
            penalties = (1.0, 0.0, 0.0)
            if adjusted is not None:
                penalties = (adjusted.repetition, adjusted.frequency, adjusted.presence)
            self.reals[i] = (POISON, POISON, start.temperature, start.top_p, *penalties)
            self.tables[i, : len(prefill.pages)] = prefill.pages


def waiting_of(step: Step) -> Mask:
    """Bool [n]: which rows of a step are not sampled right behind the forward: they wait for a host mask, or for the
    rest of their prompt."""
    if not step.unsampled and not step.fed:
        return np.zeros(len(step.rows), dtype=np.bool_)
    return np.isin(step.rows.numbers, [*step.unsampled, *step.fed])


def ready_of(step: Step) -> Ints:
    """Numbers of the rows that are sampled right behind the forward, int64 [n]."""
    return step.rows.numbers[~waiting_of(step)] if step.unsampled or step.fed else step.rows.numbers


def write_head(layout: Layout, words: Words, step: Step, asked: npt.ArrayLike) -> None:
    """Write whose rows a step's are and what is asked of each, int64 [n], into `words` int64 [>= layout.head]. Raises
    `InvariantBroken` if they are too many."""
    count, rows = len(step.rows), layout.rows
    if count > rows:
        raise InvariantBroken(f"step {step.id} has {count} rows, but the device was built for {rows}")
    words[0] = step.id
    words[1 : 1 + count] = step.rows.numbers
    words[1 + count : 1 + rows] = PAD_ROW
    words[1 + rows : 1 + rows + count] = asked
    words[1 + rows + count : layout.head] = Asked.NOTHING


def demand(ref: RowRef, masks: Mapping[RowRef, Mask | None]) -> Asked:
    """What a call of `finalize` asks of a row: its mask says it, None closes the row."""
    if ref not in masks:
        return Asked.NOTHING
    return Asked.CLOSE if masks[ref] is None else Asked.SAMPLE


def rows_of(step: Step) -> tuple[RowRef, ...]:
    """Whose prompts a prefill step computes: the one that is looked at only comes last."""
    rows = tuple(prefill.start.ref for prefill in step.prefills)
    return rows if step.look is None or step.look.ref in rows[-1:] else (*rows, step.look.ref)


def check_step(step: Step) -> None:
    """Raises `InvariantBroken` for a step that cannot be launched."""
    if step.kind is StepKind.PARKED:
        raise InvariantBroken(f"step {step.id} is a parked row's: it has no forward; finalize it instead")
    if step.kind is StepKind.PREFILL and step.rows != rows_of(step):
        raise InvariantBroken(f"step {step.id} prefills other rows than it names")
    for prefill in step.prefills:
        if not prefill.ids and prefill.start.ref.row not in step.fed:
            row = prefill.start.ref.row
            raise InvariantBroken(f"row {row} is prefilled with no ids, so nothing foretells its token")


def _check_pages(row: int, pages: int, max_pages: int) -> None:
    if pages > max_pages:
        raise InvariantBroken(f"row {row} is granted {pages} pages, but its page table holds {max_pages}")


PADDING_COUNTS = np.array([int(column is Count.DONE) for column in Count], dtype=np.int64)
"""The padding row's integers: done, a valid token, its logprobs not wanted by anyone who asks nothing."""
PADDING_REALS = np.array([POISON, POISON, 0.0, 1.0, 1.0, 0.0, 0.0])


class Inbox:
    """The words on the device, `words` int64 [layout.words], with its parts as tensors that share its memory."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        rows = layout.rows
        self.words = torch.zeros(layout.words, dtype=torch.int64, device=device)
        self.step, self.rows, self.asked = torch.split(self.words[: layout.head], [1, rows, rows])
        self.grants: Tensor = self.words[layout.head : layout.granted].view(_GRANT, -1)
        parts = [rows, rows * COUNTS, rows * REALS, rows * layout.max_pages]
        start_rows, counts, reals, tables = torch.split(self.words[layout.granted :], parts)
        self.start_rows, self.counts = start_rows, counts.view(rows, COUNTS)
        self.reals = reals.view(torch.float64).view(rows, REALS)
        self.tables = tables.view(rows, layout.max_pages)
