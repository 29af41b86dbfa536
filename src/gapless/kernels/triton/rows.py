"""Rows in two kernels: one program a row feeds a step, one chooses the likeliest token and moves the row on. Where rows
draw or want logprobs there are more, see `sampler`.

In and out as `kernels.rows.RowKernels`. Every choice among logits is exact, so results are the same as the plain lines'
to the bit; of equal logits the smallest id wins. A row of which nothing is asked is not written: padding may repeat.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from gapless.kernels.rows import Automata, Columns, Ends, Grammars, Marks, Rows, Said
from gapless.kernels.triton import adjust_jit, rows_jit, sampler

BLOCK = 8192
"""Logits a program looks at together."""
PART = 2048
"""Logits that one program changes."""


class TritonRows:
    """The kernels for one layout of rows and lines."""

    def __init__(self, columns: Columns, marks: Marks) -> None:
        self._columns = columns
        self._marks = marks

    def feed(self, store: Rows, rows: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See `RowKernels.feed`."""
        count, of = len(rows), self._columns
        ids, positions = (torch.empty(count, dtype=torch.int64, device=rows.device) for _ in range(2))
        values = torch.empty(count, 2, dtype=torch.float32, device=rows.device)
        tables = torch.empty(count, columns, dtype=torch.int64, device=rows.device)
        rows_jit.feed[(count,)](
            rows, store.counts, store.reals, store.pages, ids, values, positions, tables, columns,
            store.pages.shape[1], store.counts.shape[1], store.reals.shape[1], of.token, of.position, of.done,
            of.value, of.poison, 128, num_warps=1,
        )  # fmt: skip
        return ids, values, positions, tables

    def adapters(self, store: Rows, rows: Tensor) -> Tensor:
        """See `RowKernels.adapters`."""
        return self._told(store, rows, self._columns.adapter, None, torch.int64)

    def wishes(self, store: Rows, rows: Tensor, may: Tensor) -> Tensor:
        """See `RowKernels.wishes`."""
        return self._told(store, rows, self._columns.state, may, torch.int32)

    def _told(self, store: Rows, rows: Tensor, column: int, table: Tensor | None, dtype: torch.dtype) -> Tensor:
        """A column of each row, or what a table says of it; 0 for rows that are done."""
        out = torch.empty(len(rows), dtype=dtype, device=rows.device)
        rows_jit.told_of[(len(rows),)](
            rows, store.counts, table, out, store.counts.shape[1], column, self._columns.done, table is not None,
            num_warps=1,
        )  # fmt: skip
        return out

    def adjust(
        self,
        store: Rows,
        said: Said,
        rules: Automata,
        grammars: Grammars | None,
        rows: Tensor,
        asked: Tensor,
        logits: Tensor,
        masks: Tensor | None,
    ) -> None:
        """See `RowKernels.adjust`."""
        own = grammars
        tables = (None,) * 4 if own is None else (own.classes, own.numbers, own.spans, own.answers)
        of, marks, (count, vocab) = self._columns, self._marks, logits.shape
        part = min(PART, triton.next_power_of_2(vocab))
        parts = triton.cdiv(vocab, part)
        adjust_jit.adjust[(count * parts,)](
            rows, asked, logits, store.counts, store.reals, said.words, said.biases,
            rules.masks if masks is None else masks, rules.mask, rules.ends, *tables, said.end, store.counts.shape[1],
            store.reals.shape[1], said.biases.shape[1], rules.ends.shape[1], vocab, part, parts, masks is not None,
            of.state, of.left, of.left_next, of.done, of.adjusted, of.least, of.repetition, of.frequency, of.presence,
            own is not None, of.grammar, of.grammar_state, marks.sample, marks.ending, num_warps=8,
            enable_fp_fusion=False,
        )  # fmt: skip

    def count(self, store: Rows, said: Said, rules: Automata, rows: Tensor, asked: Tensor) -> None:
        """See `RowKernels.count`."""
        of, marks = self._columns, self._marks
        adjust_jit.count[(len(rows),)](
            rows, asked, store.counts, said.words, rules.classes, store.counts.shape[1], said.words.shape[1], of.token,
            of.done, of.adjusted, marks.sample, marks.other, num_warps=1,
        )  # fmt: skip

    def greedy(self, store: Rows, rules: Automata, end: Ends) -> None:
        """See `RowKernels.greedy`."""
        of, marks, vocab = self._columns, self._marks, end.logits.shape[1]
        coord, size = (end.logits,) * 2 if end.values is None else (value.contiguous() for value in end.values)
        rows_jit.greedy[(len(end.rows),)](
            end.step, end.rows, end.asked, end.logits, end.lines, coord, size, store.counts, store.reals,
            rules.masks, rules.mask, rules.classes, rules.following, rules.head, rules.ends, rules.counts,
            rules.resets, rules.on_limit, store.counts.shape[1], store.reals.shape[1], rules.following.shape[1],
            vocab, min(BLOCK, triton.next_power_of_2(vocab)), end.values is not None, of.token, of.position, of.state,
            of.left, of.left_next, of.objects_left, of.done, of.epoch, of.value, of.alternatives, of.width, of.poison,
            marks.nothing, marks.sample, marks.coord, marks.size, marks.stop, marks.length, marks.nonfinite,
            marks.muted, num_warps=16,
        )  # fmt: skip

    def likeliest(self, store: Rows, rules: Automata, end: Ends) -> None:
        """See `RowKernels.likeliest`."""
        sampler.likeliest(self._columns, self._marks, store, rules, end)

    def full(self, store: Rows, rules: Automata, end: Ends) -> None:
        """See `RowKernels.full`."""
        sampler.full(self._columns, self._marks, store, rules, end)
