"""The row store: everything the device knows about running sequences, one row each, and their page tables.

In: row starts and page grants, as they lie in the `Inbox`, in stream order; and what a step sampled. Out: what a
forward is fed with. Rows advance themselves, the host is not asked (I1). Nothing here depends on a tensor's content,
so the same lines run inside a CUDA graph.

Row 0 is the padding row: always done, never advanced, a valid token. Page 0 is the scrap page: it fills the unused
entries of every page table. A done row is fed as a valid token at position 0 with a table of scrap pages: it attends
to itself alone and writes where nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gapless.device.packet import COUNTS, PAD_ROW, REALS, SCRAP_PAGE, Count, Inbox, Real
from gapless.device.quick_rows import quick_rows
from gapless.kernels.rows import Rows
from gapless.records import POISON, RowRef


@dataclass(frozen=True, slots=True)
class Feed:
    """What a forward takes for B rows: `ids` int64 [B], `values` float32 [B, 2], `positions` int64 [B], `tables`
    int64 [B, n], or [1, n] when all tokens are one sequence's."""

    ids: Tensor
    values: Tensor
    positions: Tensor
    tables: Tensor


class RowStore:
    """Tensors of all rows; only the compute stream touches them. `plain`: through torch alone."""

    def __init__(self, rows: int, max_pages: int, device: torch.device, *, plain: bool = False) -> None:
        self.counts = torch.zeros((rows, COUNTS), dtype=torch.int64, device=device)
        self.reals = torch.zeros((rows, REALS), dtype=torch.float64, device=device)
        self.reals[:, : Real.VALUE_1 + 1] = POISON
        self.reals[:, Real.TOP_P] = self.reals[:, Real.REPETITION] = 1.0
        self.pages = torch.full((rows, max_pages), SCRAP_PAGE, dtype=torch.int64, device=device)
        self.counts[:, Count.DONE] = 1
        self.kernels = None if plain else quick_rows(device)

    @property
    def all(self) -> Rows:
        """The tensors, as kernels take them."""
        return Rows(self.counts, self.reals, self.pages)

    def begin(self, inbox: Inbox) -> None:
        """Begin the rows whose starts lie in the inbox; entries that are not used rewrite the padding row."""
        self.counts[inbox.start_rows] = inbox.counts
        self.reals[inbox.start_rows] = inbox.reals
        self.pages[inbox.start_rows] = inbox.tables

    def extend(self, inbox: Inbox) -> None:
        """Extend page tables by the grants in the inbox; entries that are not used rewrite the padding row."""
        row, index, page = inbox.grants
        self.pages[row, index] = page

    def forget(self, ref: RowRef) -> None:
        """End this life of a row: it is done and its table holds scrap pages. Nothing if a later life began."""
        mine = self.counts[ref.row, Count.EPOCH] == ref.epoch
        self.counts[ref.row, Count.DONE] |= mine
        self.pages[ref.row] *= ~mine

    def finish(self, refs: Sequence[RowRef]) -> None:
        """Mark rows done in these lives: whatever step they ride on next mutes them.

        A life that never began, because its prefill failed before, ends the one before it: that one's pages are gone.
        """
        for ref in refs:
            self.counts[ref.row, Count.DONE] |= self.counts[ref.row, Count.EPOCH] <= ref.epoch

    def done(self, rows: Tensor) -> Tensor:
        """Bool [B], which rows are done."""
        return self.counts[rows, Count.DONE] != 0

    def feed(self, rows: Tensor, columns: int) -> Feed:
        """Rows int64 [B] (padding rows may repeat) -> what the next forward is fed with; `columns` of the tables."""
        if self.kernels is not None:
            return Feed(*self.kernels.feed(self.all, rows, columns))
        counts, done = self.counts[rows], self.done(rows)
        values = self.reals[rows, : Real.VALUE_1 + 1].float()
        return Feed(
            ids=torch.where(done, 0, counts[:, Count.TOKEN]),
            values=torch.where(done[:, None], float(POISON), values),
            positions=torch.where(done, 0, counts[:, Count.POSITION]),
            tables=torch.where(done[:, None], SCRAP_PAGE, self.pages[rows, :columns]),
        )

    def adapters(self, rows: Tensor) -> Tensor:
        """Rows int64 [B] -> the slots of their adapters, 0 for rows that are done."""
        if self.kernels is not None:
            return self.kernels.adapters(self.all, rows)
        return torch.where(self.done(rows), 0, self.counts[rows, Count.ADAPTER])

    @torch.inference_mode()
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
