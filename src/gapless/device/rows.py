"""The row store: everything the device knows about running sequences, one row each, and their page tables.

In: `RowStart`s and `PageGrant`s, packed on the loop's thread into `Changes` (own memory, I10) and applied in stream
order; and what a step sampled. Out: what a forward is fed with. Rows advance themselves, the host is not asked (I1).

Row 0 is the padding row: always done, never advanced, a valid token. Page 0 is the scrap page: it fills the unused
entries of every page table. A done row is fed as a valid token at position 0 with a table of scrap pages: it attends
to itself alone and writes where nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gapless.device.sampler import signed
from gapless.errors import InvariantBroken
from gapless.records import POISON, RowRef, Step

PAD_ROW = 0
SCRAP_PAGE = 0


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
    HOST_MASKED = 8
    DONE = 9
    EPOCH = 10


class Real(IntEnum):
    """Columns of a row's reals. A value that a token does not carry is POISON."""

    VALUE_0 = 0
    VALUE_1 = 1
    TEMPERATURE = 2
    TOP_P = 3


@dataclass(frozen=True, slots=True)
class Changes:
    """What one step changes before its forward; numpy arrays that nobody else holds.

    `rows` int64 [n] begin with `counts` int64 [n, 11], `reals` float64 [n, 4] and page tables `tables` int64
    [n, max_pages]; `grants` int64 [m, 3] are (row, table index, page).
    """

    rows: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    reals: npt.NDArray[np.float64]
    tables: npt.NDArray[np.int64]
    grants: npt.NDArray[np.int64]


def pack_changes(step: Step, max_pages: int) -> Changes:
    """Pack a step's row starts and page grants. Raises `InvariantBroken` if a page table would overflow."""
    n = len(step.prefills)
    counts, reals = np.zeros((n, len(Count)), dtype=np.int64), np.zeros((n, len(Real)), dtype=np.float64)
    tables = np.full((n, max_pages), SCRAP_PAGE, dtype=np.int64)
    for i, prefill in enumerate(step.prefills):
        start = prefill.start
        _check_pages(start.ref.row, len(prefill.pages), max_pages)
        last = prefill.position + len(prefill.ids) - 1
        counts[i] = (
            *(POISON, last, start.state, start.left, start.left_next, start.objects_left, signed(start.seed)),
            *(start.top_logprobs, start.host_masked, False, start.ref.epoch),
        )
        reals[i] = (POISON, POISON, start.temperature, start.top_p)
        tables[i, : len(prefill.pages)] = prefill.pages
    grants: list[tuple[int, int, int]] = []
    for grant in step.grants:
        _check_pages(grant.row, grant.first + len(grant.pages), max_pages)
        grants.extend((grant.row, grant.first + j, page) for j, page in enumerate(grant.pages))
    rows = np.array([p.start.ref.row for p in step.prefills], dtype=np.int64)
    return Changes(rows, counts, reals, tables, np.array(grants, dtype=np.int64).reshape(-1, 3))


def _check_pages(row: int, pages: int, max_pages: int) -> None:
    if pages > max_pages:
        raise InvariantBroken(f"row {row} is granted {pages} pages, but its page table holds {max_pages}")


@dataclass(frozen=True, slots=True)
class Feed:
    """What a forward takes for B rows: `ids` int64 [B], `values` float32 [B, 2], `positions` int64 [B], `tables`
    int64 [B, max_pages]."""

    ids: Tensor
    values: Tensor
    positions: Tensor
    tables: Tensor


class RowStore:
    """Tensors of all rows; only the compute stream touches them."""

    def __init__(self, rows: int, max_pages: int, device: torch.device) -> None:
        self.counts = torch.zeros((rows, len(Count)), dtype=torch.int64, device=device)
        self.reals = torch.zeros((rows, len(Real)), dtype=torch.float64, device=device)
        self.reals[:, : Real.VALUE_1 + 1] = POISON
        self.reals[:, Real.TOP_P] = 1.0
        self.pages = torch.full((rows, max_pages), SCRAP_PAGE, dtype=torch.int64, device=device)
        self.counts[:, Count.DONE] = 1

    def apply(self, changes: Changes) -> None:
        """Begin rows and extend page tables."""
        device = self.counts.device
        if len(changes.rows):
            rows = torch.from_numpy(changes.rows).to(device)
            self.counts[rows] = torch.from_numpy(changes.counts).to(device)
            self.reals[rows] = torch.from_numpy(changes.reals).to(device)
            self.pages[rows] = torch.from_numpy(changes.tables).to(device)
        if len(changes.grants):
            row, index, page = torch.from_numpy(changes.grants).to(device).unbind(1)
            self.pages[row, index] = page

    def forget(self, ref: RowRef) -> None:
        """End this life of a row: it is done and its table holds scrap pages. Nothing if a later life began."""
        mine = self.counts[ref.row, Count.EPOCH] == ref.epoch
        self.counts[ref.row, Count.DONE] |= mine
        self.pages[ref.row] *= ~mine

    def finish(self, refs: Sequence[RowRef]) -> None:
        """Mark rows done in these lives: whatever step they ride on next mutes them."""
        for ref in refs:
            self.counts[ref.row, Count.DONE] |= self.counts[ref.row, Count.EPOCH] == ref.epoch

    def column(self, column: Count, rows: Tensor) -> Tensor:
        """Int64 [B], one integer of each row."""
        return self.counts[rows, column]

    def real(self, column: Real, rows: Tensor) -> Tensor:
        """Float64 [B], one real of each row."""
        return self.reals[rows, column]

    def done(self, rows: Tensor) -> Tensor:
        """Bool [B], which rows are done."""
        return self.counts[rows, Count.DONE] != 0

    def feed(self, rows: Tensor) -> Feed:
        """Rows int64 [B] (padding rows may repeat) -> what the next forward is fed with."""
        counts, done = self.counts[rows], self.done(rows)
        values = self.reals[rows, : Real.VALUE_1 + 1].float()
        return Feed(
            ids=torch.where(done, 0, counts[:, Count.TOKEN]),
            values=torch.where(done[:, None], float(POISON), values),
            positions=torch.where(done, 0, counts[:, Count.POSITION]),
            tables=torch.where(done[:, None], SCRAP_PAGE, self.pages[rows]),
        )

    def hand_over(self, rows: Tensor) -> None:
        """Poison the token cells a forward has read, so that one fed twice shows. Padding keeps its valid token."""
        self.counts[rows, Count.TOKEN] = torch.where(rows == PAD_ROW, 0, POISON)

    def advance(self, rows: Tensor, moves: Tensor, counts: dict[Count, Tensor], values: Tensor) -> None:
        """Write new integers (int64 [B] each) and values (float64 [B, 2]) of the rows where `moves` (bool [B]).

        Rows of a batch are distinct, but for the padding row, which never moves. The position moves by one.
        """
        fresh = self.counts[rows]
        for column, new in counts.items():
            fresh[:, column] = new
        fresh[:, Count.POSITION] += 1
        self.counts[rows] = torch.where(moves[:, None], fresh, self.counts[rows])
        both = slice(Real.VALUE_0, Real.VALUE_1 + 1)
        self.reals[rows, both] = torch.where(moves[:, None], values, self.reals[rows, both])

    def end(self, rows: Tensor, ends: Tensor) -> None:
        """Set the done flag of the rows where `ends` (bool [B])."""
        self.counts[rows, Count.DONE] |= ends.long()
