"""Sampling in four launches, several programs a row: what `rows.py` does where rows have temperatures or want logprobs;
and in two of them, where none does but token tables rule some.

In and out as `kernels.rows.RowKernels`. Grids and scratch follow from shapes alone. The scratch of a launch is fresh
memory, and nothing in it outlives the four kernels, of which the first empties what the others add to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from gapless.kernels.rows import Automata, Columns, Ends, Marks, Rows
from gapless.kernels.triton import sampler_jit as jit

CHUNK = 2048
"""Ids that a program looks at."""
BINS = 1024
"""Of weights, as in the kernels."""
SUM_BITS = 62
"""A row's weights sum to less than 2 to this."""
SOME = 1024
"""Entries of a list that are looked at together."""
PAIRS = 8192
"""Pairs of an entry and a part of the row that are looked at together."""
WARPS = 8


@dataclass(frozen=True, slots=True)
class Scratch:
    """What the kernels tell one another, see `sampler_jit`."""

    floats: Tensor
    ints: Tensor
    longs: Tensor
    bins: Tensor
    weights: Tensor
    listed: Tensor

    @classmethod
    def of(cls, rows: int, vocab: int, chunks: int, tops: int, device: torch.device) -> Scratch:
        """For so many rows; nothing in it is set."""

        def room(width: int, dtype: torch.dtype) -> Tensor:
            return torch.empty((rows, width), dtype=dtype, device=device)

        floats, ints = cls.of_survey(rows, chunks, device)
        return cls(
            floats=floats,
            ints=ints,
            longs=room((3 + tops) * chunks, torch.int64),
            bins=room(BINS, torch.int64),
            weights=room(vocab, torch.int64),
            listed=room(vocab, torch.int32),
        )

    @staticmethod
    def of_survey(rows: int, chunks: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Floats and ints alone."""
        floats = torch.empty((rows, 3 * chunks), dtype=torch.float32, device=device)
        return floats, torch.empty((rows, chunks + 2), dtype=torch.int32, device=device)


def full(of: Columns, marks: Marks, store: Rows, rules: Automata, end: Ends) -> None:
    """See `RowKernels.full`."""
    job = _Job.of_end(of, marks, store, rules, end)
    has = Scratch.of(len(end.rows), job.vocab, job.chunks, job.tops, end.logits.device)
    _survey(job, has.floats, has.ints, has.bins)
    jit.weigh[(len(end.rows) * job.chunks,)](
        end.rows, end.asked, end.logits, store.counts, store.reals, *job.masks, *job.grammars, has.floats, has.ints,
        has.longs, has.bins, has.weights, *job.wide, of.state, of.left, of.done, of.top_logprobs, of.temperature,
        of.top_p, job.vocab, job.bits, job.one, job.chunk, job.chunks, job.up, job.tops, end.masks is not None,
        *job.ruled, marks.sample, num_warps=WARPS,
    )  # fmt: skip
    jit.narrow[(len(end.rows) * job.chunks,)](
        end.rows, end.asked, store.counts, store.reals, has.floats, has.ints, has.longs, has.bins, has.weights,
        has.listed, *job.wide, of.done, of.top_logprobs, of.temperature, of.top_p, job.vocab, job.bits, job.chunk,
        job.chunks, job.up, job.tops, marks.sample, num_warps=WARPS,
    )  # fmt: skip
    _finish(job, has.floats, has.ints, (has.longs, has.weights, has.listed))


def likeliest(of: Columns, marks: Marks, store: Rows, rules: Automata, end: Ends) -> None:
    """See `RowKernels.likeliest`."""
    job = _Job.of_end(of, marks, store, rules, end)
    floats, ints = Scratch.of_survey(len(end.rows), job.chunks, end.logits.device)
    _survey(job, floats, ints, None)
    _finish(job, floats, ints, None)


@dataclass(frozen=True, slots=True)
class _Job:
    """What all launches of one end have in common. `wide`: columns of a row's integers and reals; `ruled`: whether
    rows may have token tables, and where they note which."""

    of: Columns
    marks: Marks
    store: Rows
    rules: Automata
    end: Ends
    vocab: int
    chunk: int
    chunks: int
    masks: tuple[Tensor, Tensor]
    grammars: tuple[Tensor | None, ...]

    @classmethod
    def of_end(cls, of: Columns, marks: Marks, store: Rows, rules: Automata, end: Ends) -> _Job:
        vocab, own = end.logits.shape[1], end.grammars
        chunk = min(CHUNK, triton.next_power_of_2(vocab))
        masks = (rules.masks if end.masks is None else end.masks), rules.mask
        tables = (None,) * 4 if own is None else (own.classes, own.numbers, own.spans, own.answers)
        return cls(of, marks, store, rules, end, vocab, chunk, triton.cdiv(vocab, chunk), masks, tables)

    @property
    def up(self) -> int:
        return int(triton.next_power_of_2(self.chunks))

    @property
    def bits(self) -> int:
        return SUM_BITS - (self.vocab - 1).bit_length()

    @property
    def one(self) -> float:
        return 2.0**self.bits

    @property
    def tops(self) -> int:
        return (self.of.width - self.of.alternatives) // 2

    @property
    def wide(self) -> tuple[int, int]:
        return self.store.counts.shape[1], self.store.reals.shape[1]

    @property
    def ruled(self) -> tuple[bool, int, int]:
        return self.end.grammars is not None, self.of.grammar, self.of.grammar_state


def _survey(job: _Job, floats: Tensor, ints: Tensor, bins: Tensor | None) -> None:
    """`bins` None: nobody draws."""
    of, end = job.of, job.end
    jit.survey[(len(end.rows) * job.chunks,)](
        end.rows, end.asked, end.logits, job.store.counts, *job.masks, *job.grammars, floats, ints, bins, job.wide[0],
        of.state, of.left, job.vocab, job.chunk, job.chunks, end.masks is not None, *job.ruled, bins is not None,
        job.marks.nothing, num_warps=WARPS,
    )  # fmt: skip


def _finish(job: _Job, floats: Tensor, ints: Tensor, drawn: tuple[Tensor, Tensor, Tensor] | None) -> None:
    """`drawn`: longs, weights, listed; None: nobody draws."""
    of, marks, end, rules, store = job.of, job.marks, job.end, job.rules, job.store
    coord, size = (end.logits,) * 2 if end.values is None else (value.contiguous() for value in end.values)
    longs, weights, listed = (None,) * 3 if drawn is None else drawn
    jit.finish[(len(end.rows),)](
        end.step, end.rows, end.asked, end.logits, end.lines, coord, size, store.counts, store.reals, floats, ints,
        longs, weights, listed, rules.classes, rules.following, rules.head, rules.ends, rules.counts, rules.resets,
        rules.on_limit, *job.grammars, *job.wide, rules.following.shape[1], job.vocab, job.one, job.chunk, job.chunks,
        job.up, job.tops, triton.next_power_of_2(job.chunks * job.tops), SOME, max(16, PAIRS // job.up),
        triton.next_power_of_2(job.tops), end.values is not None, drawn is not None, *job.ruled, of.token, of.position,
        of.state, of.left, of.left_next, of.objects_left, of.done, of.epoch, of.seed, of.top_logprobs, of.value,
        of.temperature, of.top_p, of.alternatives, of.width, of.poison, marks.nothing, marks.sample, marks.coord,
        marks.size, marks.stop, marks.length, marks.nonfinite, marks.muted, num_warps=WARPS,
    )  # fmt: skip
