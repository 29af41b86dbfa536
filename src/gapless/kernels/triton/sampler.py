"""Sampling in four launches, several programs a row: what `rows.py` does where rows have temperatures or want logprobs.

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

        return cls(
            floats=room(3 * chunks, torch.float32),
            ints=room(chunks + 2, torch.int32),
            longs=room((3 + tops) * chunks, torch.int64),
            bins=room(BINS, torch.int64),
            weights=room(vocab, torch.int64),
            listed=room(vocab, torch.int32),
        )


def full(of: Columns, marks: Marks, store: Rows, rules: Automata, end: Ends) -> None:
    """See `RowKernels.full`."""
    count, vocab = end.logits.shape
    chunk = min(CHUNK, triton.next_power_of_2(vocab))
    chunks, tops, masked = triton.cdiv(vocab, chunk), (of.width - of.alternatives) // 2, end.masks is not None
    up, bits = triton.next_power_of_2(chunks), SUM_BITS - (vocab - 1).bit_length()
    one, wide, few = 2.0**bits, (store.counts.shape[1], store.reals.shape[1]), max(16, PAIRS // up)
    has = Scratch.of(count, vocab, chunks, tops, end.logits.device)
    masks = rules.masks if end.masks is None else end.masks
    coord, size = (end.logits,) * 2 if end.values is None else (value.contiguous() for value in end.values)
    jit.survey[(count * chunks,)](
        end.rows, end.asked, end.logits, store.counts, masks, rules.mask, has.floats, has.ints, has.bins, wide[0],
        of.state, vocab, chunk, chunks, masked, marks.nothing, num_warps=WARPS,
    )  # fmt: skip
    jit.weigh[(count * chunks,)](
        end.rows, end.asked, end.logits, store.counts, store.reals, masks, rules.mask, has.floats, has.ints, has.longs,
        has.bins, has.weights, *wide, of.state, of.done, of.top_logprobs, of.temperature, of.top_p, vocab, bits, one,
        chunk, chunks, up, tops, masked, marks.sample, num_warps=WARPS,
    )  # fmt: skip
    jit.narrow[(count * chunks,)](
        end.rows, end.asked, store.counts, store.reals, has.floats, has.ints, has.longs, has.bins, has.weights,
        has.listed, *wide, of.done, of.top_logprobs, of.temperature, of.top_p, vocab, bits, chunk, chunks, up, tops,
        marks.sample, num_warps=WARPS,
    )  # fmt: skip
    jit.finish[(count,)](
        end.step, end.rows, end.asked, end.logits, end.lines, coord, size, store.counts, store.reals, has.floats,
        has.ints, has.longs, has.weights, has.listed, rules.classes, rules.following, rules.head, rules.ends,
        rules.counts, rules.resets, rules.on_limit, *wide, rules.following.shape[1], vocab, one, chunk, chunks, up,
        tops, triton.next_power_of_2(chunks * tops), SOME, few, triton.next_power_of_2(tops), end.values is not None,
        of.token, of.position, of.state, of.left, of.left_next, of.objects_left, of.done, of.epoch, of.seed,
        of.top_logprobs, of.value, of.temperature, of.top_p, of.alternatives, of.width, of.poison, marks.nothing,
        marks.sample, marks.coord, marks.size, marks.stop, marks.length, marks.nonfinite, marks.muted,
        num_warps=WARPS,
    )  # fmt: skip
