"""The packed record: one float64 line per row and step, the only thing that travels back from the device.

In: tensors of what a step did, on the compute stream. Out: `RowRecord`s on the loop's thread, read from a landing
buffer. Every field is exact in float64 (ids, flags and epochs are below 2**53, values and logprobs are floats). Each
line names its step, row and epoch, so that a stale, poisoned or foreign line is recognised (I4, I9).
"""

from __future__ import annotations

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


def unpack_line(line: Lines, step: int, ref: RowRef) -> RowRecord:
    """Read one line that should be `ref`'s in `step`; raises `InvariantBroken` if it is another's, or never landed."""
    if int(line[Field.STEP]) != step:
        raise InvariantBroken(f"I4: {ref}'s record of step {step} was read, but its buffer holds {int(line[0])}")
    found = RowRef(int(line[Field.ROW]), int(line[Field.EPOCH]))
    if found != ref:
        raise InvariantBroken(f"I9: step {step} brought a record of {found} where {ref} was meant")
    flags, token = Flags(int(line[Field.FLAGS])), int(line[Field.TOKEN])
    if token < 0:
        return RowRecord(ref, flags, None)
    values = tuple(float(v) for v in line[Field.VALUE_0 : Field.VALUE_1 + 1] if v >= 0)
    return RowRecord(ref, flags, Token(token, values, float(line[Field.LOGPROB]), _alternatives(line)))


def _alternatives(line: Lines) -> tuple[tuple[int, float], ...]:
    ids, logprobs = line[TOP : TOP + MAX_TOP_LOGPROBS], line[TOP + MAX_TOP_LOGPROBS :]
    return tuple((int(i), float(p)) for i, p in zip(ids, logprobs, strict=True) if i >= 0)
