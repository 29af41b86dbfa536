"""The packed record: one float64 line per row and step, the only thing that travels back from the device.

In: lines, as a tail writes them on the compute stream. Out: `Records` on the loop's thread, read from a landing buffer
column by column. Every field is exact in float64 (ids, flags and epochs are below 2**53, values and logprobs are
floats). Each line names its step, row and epoch, so that a stale, poisoned or foreign line is recognised (I4, I9).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from gapless.columns import NOBODY
from gapless.errors import InvariantBroken
from gapless.records import MAX_TOP_LOGPROBS, POISON, Records, RowRef, Rows, Token

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
_NOTHING_MORE = np.array([POISON, POISON, 0.0, NOBODY])
"""A line from VALUE_0 to its first alternative, if its token is an id and nothing else."""


class _Words(dict[int, Token | None]):
    """Tokens with nothing but an id, which are nearly all there are: each is made once."""

    def __missing__(self, token_id: int) -> Token:
        token = self[token_id] = Token(token_id)
        return token


_words = _Words({NOBODY: None})


class Reader:
    """Reads lines, of the same rows again and again. It keeps what their usual lines hold: each a word, and no flag."""

    def __init__(self) -> None:
        self._know(Rows())

    def _know(self, rows: Rows) -> None:
        self._rows, self._unflagged = rows, np.zeros(len(rows), dtype=np.int64)
        self._usual = np.zeros((len(rows), TOP + 1))
        self._usual[:, Field.ROW], self._usual[:, Field.EPOCH] = rows.numbers, rows.epochs
        self._usual[:, Field.VALUE_0 :] = _NOTHING_MORE

    def read(self, lines: Lines, step: int, rows: Rows) -> Records:
        """What `unpack_lines` says of them."""
        if rows is not self._rows:
            self._know(rows)
        begins, usual = lines[:, : TOP + 1].copy(), self._usual  # what has just come is in no cache: once is enough
        ids = begins[:, Field.TOKEN].astype(np.int64)
        usual[:, Field.STEP], usual[:, Field.TOKEN] = step, ids
        if np.count_nonzero(begins != usual):
            return unpack_lines(lines, step, rows)
        return Records(rows, self._unflagged, ids, [_words[token_id] for token_id in ids.tolist()])


def unpack_lines(lines: Lines, step: int, rows: Rows) -> Records:
    """Read lines that should be those of `rows` in `step`, in that order.

    Raises `InvariantBroken` if one is another's, or never landed. Everything that comes out is the reader's own.
    """
    meant = np.empty((len(rows), Field.FLAGS))
    meant[:, Field.STEP], meant[:, Field.ROW], meant[:, Field.EPOCH] = step, rows.numbers, rows.epochs
    wrong = lines[:, : Field.FLAGS] != meant
    if np.count_nonzero(wrong):
        _accuse(lines, step, rows, int(wrong.any(axis=1).argmax()))
    flags, ids = lines[:, Field.FLAGS : Field.VALUE_0].astype(np.int64).T
    tokens = [_words[token_id] for token_id in ids.tolist()]
    more = lines[:, Field.VALUE_0 : TOP + 1] != _NOTHING_MORE
    if np.count_nonzero(more):
        for i in np.flatnonzero(more.any(axis=1) & (ids != NOBODY)).tolist():
            tokens[i] = _token(lines[i])
    return Records(rows, flags, ids, tokens)


def _accuse(lines: Lines, step: int, rows: Rows, i: int) -> NoReturn:
    number, row, epoch = map(int, lines[i, : Field.FLAGS])
    if number != step:
        raise InvariantBroken(f"I4: {rows[i]}'s record of step {step} was read, but its buffer holds {number}")
    raise InvariantBroken(f"I9: step {step} brought a record of {RowRef(row, epoch)} where {rows[i]} was meant")


def _token(line: Lines) -> Token:
    number, first, second, logprob, best = line[Field.TOKEN : TOP + 1].tolist()
    values = () if first < 0 else (first,) if second < 0 else (first, second)
    top = () if best < 0 else _alternatives(line)
    return Token(int(number), values, logprob, top)


def _alternatives(line: Lines) -> tuple[tuple[int, float], ...]:
    ids, logprobs = line[TOP : TOP + MAX_TOP_LOGPROBS], line[TOP + MAX_TOP_LOGPROBS :]
    return tuple((int(i), float(p)) for i, p in zip(ids, logprobs, strict=True) if i >= 0)
