"""The packed record: one float64 line per row and step, the only thing that travels back from the device.

In: tensors of what a step did, on the compute stream. Out: `RowRecord`s on the loop's thread, read from a landing
buffer. Every field is exact in float64 (ids, flags and epochs are below 2**53, values and logprobs are floats). Each
line names its step, row and epoch, so that a stale, poisoned or foreign line is recognised (I4, I9).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gapless.device.sampler import Draws
from gapless.errors import InvariantBroken
from gapless.records import MAX_TOP_LOGPROBS, Flags, RowRecord, RowRef, Token

Lines = npt.NDArray[np.float64]


class Field(IntEnum):
    """Columns of a line; after them come 20 ids and 20 logprobs of alternatives (id -1: none). Token -1: none."""

    STEP = 0
    ROW = 1
    EPOCH = 2
    FLAGS = 3
    TOKEN = 4
    VALUE_0 = 5
    VALUE_1 = 6
    LOGPROB = 7


TOP = len(Field)
WIDTH = TOP + 2 * MAX_TOP_LOGPROBS


def pack_lines(where: Tensor, token: Tensor, values: Tensor, draws: Draws) -> Tensor:
    """Lines float64 [B, WIDTH] from `where` int64 [B, 4] (step, row, epoch, flags), `token` int64 [B], `values`
    float64 [B, 2] and the draws."""
    reals = [values, draws.logprob[:, None], draws.top_ids.double(), draws.top_logprobs]
    return torch.cat([where.double(), token.double()[:, None], *reals], dim=1)


_FLAGS = [Flags(i) for i in range(2 * Flags.MUTED)]


def unpack_lines(lines: Lines, step: int, refs: Sequence[RowRef]) -> tuple[RowRecord, ...]:
    """Read lines that should be `refs`' in `step`, in that order.

    Raises `InvariantBroken` if one is another's, or never landed. Everything that comes out is the reader's own.
    """
    heads = lines[:, : TOP + 1].tolist()
    return tuple([_unpack(head, lines[i], step, ref) for i, (head, ref) in enumerate(zip(heads, refs, strict=True))])


def _unpack(head: list[float], line: Lines, step: int, ref: RowRef) -> RowRecord:
    number, row, epoch, flags, token, first, second, logprob, best = head
    if number != step:
        raise InvariantBroken(f"I4: {ref}'s record of step {step} was read, but its buffer holds {int(number)}")
    if row != ref.row or epoch != ref.epoch:
        found = RowRef(int(row), int(epoch))
        raise InvariantBroken(f"I9: step {step} brought a record of {found} where {ref} was meant")
    if token < 0:
        return RowRecord(ref, _FLAGS[int(flags)], None)
    values = () if first < 0 else (first,) if second < 0 else (first, second)
    top = () if best < 0 else _alternatives(line)
    return RowRecord(ref, _FLAGS[int(flags)], Token(int(token), values, logprob, top))


def _alternatives(line: Lines) -> tuple[tuple[int, float], ...]:
    ids, logprobs = line[TOP : TOP + MAX_TOP_LOGPROBS], line[TOP + MAX_TOP_LOGPROBS :]
    return tuple((int(i), float(p)) for i, p in zip(ids, logprobs, strict=True) if i >= 0)
