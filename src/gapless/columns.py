"""Rows and what they did in one step, column by column: what is done with all of them is done with arrays.

`Rows` go down with a `Step` and `Records` come back with an `Arrival`. Both are sequences too, for whoever looks at one
row after the other. Nothing here changes once it is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import overload

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NOBODY = -1
"""The id where there is no token."""


class Flags(IntFlag):
    """What the device judged about one row in one step. The end is judged here, once (I6)."""

    NONE = 0
    STOP = 1
    """The sequence ended by itself: this token is its end token, or completes its program."""
    LENGTH = 2
    """The sequence ended because a limit (tokens or objects) was reached with this token."""
    NONFINITE = 4
    """Logits held NaN or infinity: no token was sampled, the row is done."""
    MUTED = 8
    """The row was done before this step: it computed nothing and emits nothing."""


@dataclass(frozen=True, slots=True)
class Token:
    """One committed token. `values`: () for text, (c,) for a coordinate, (w, h) for a size, all in 0..1.

    `logprob` is the natural logarithm of the probability under the distribution that was sampled from with temperature
    and top-p left out (logits adjusted, mask applied); `top` lists (id, logprob) best first.
    """

    id: int
    values: tuple[float, ...] = ()
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RowRef:
    """A row and which life of it is meant (I9)."""

    row: int
    epoch: int


class Rows(tuple[RowRef, ...]):
    """The rows of a step, in order, and as columns.

    The columns are worked out once, so whoever launches the same rows again passes the same `Rows` on.
    """

    numbers: Ints
    """Int64 [n], distinct."""
    epochs: Ints
    """Int64 [n]."""

    def __new__(cls, refs: Iterable[RowRef] = ()) -> Rows:
        """Of any refs; `Rows` stay as they are."""
        if isinstance(refs, Rows):
            return refs
        self = super().__new__(cls, refs)
        self.numbers = np.array([ref.row for ref in self], dtype=np.int64)
        self.epochs = np.array([ref.epoch for ref in self], dtype=np.int64)
        return self


@dataclass(frozen=True, slots=True)
class RowRecord:
    """What one row did in one step. `token` is None when nothing was sampled (muted, non-finite)."""

    ref: RowRef
    flags: Flags
    token: Token | None


@dataclass(frozen=True, slots=True, eq=False)
class Records(Sequence[RowRecord]):
    """What some rows did in one step, column by column; read as a sequence, one `RowRecord` after the other.

    `flags` int64 [n] of `Flags`, `tokens` one for each row or None, `ids` int64 [n] theirs or NOBODY.
    """

    rows: Rows
    flags: Ints
    ids: Ints
    tokens: Sequence[Token | None]

    @classmethod
    def of(cls, records: Sequence[RowRecord]) -> Records:
        """The same from rows; columns stay as they are."""
        if isinstance(records, Records):
            return records
        tokens = [record.token for record in records]
        flags = np.array([record.flags for record in records], dtype=np.int64)
        ids = np.array([NOBODY if token is None else token.id for token in tokens], dtype=np.int64)
        return cls(Rows(record.ref for record in records), flags, ids, tokens)

    @property
    def quiet(self) -> bool:
        """Whether no flag is set."""
        return not np.count_nonzero(self.flags)

    def only(self, wanted: Mask) -> Records:
        """Those where `wanted`, bool [n], in the same order."""
        places = np.flatnonzero(wanted).tolist()
        rows, tokens = Rows(self.rows[i] for i in places), [self.tokens[i] for i in places]
        return Records(rows, self.flags[wanted], self.ids[wanted], tokens)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> RowRecord: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[RowRecord]: ...
    def __getitem__(self, at: int | slice) -> RowRecord | Sequence[RowRecord]:
        if isinstance(at, slice):
            return tuple(self)[at]
        return RowRecord(self.rows[at], Flags(int(self.flags[at])), self.tokens[at])

    def __iter__(self) -> Iterator[RowRecord]:
        for ref, flags, token in zip(self.rows, self.flags.tolist(), self.tokens, strict=True):
            yield RowRecord(ref, Flags(flags), token)
