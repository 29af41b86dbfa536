"""Where running rows stand, as arrays by row number: what every tick asks of every row is asked of all of them at once.

In: a row's place when its life begins, the tokens that are committed, pages that are granted. Out: where the next token
goes, and where there will be no more of them or no room. While a row lives this is the only note of its place, and
`walker` reads it out again. All is told as positions, so that an ordinary token moves one number and nothing else;
and what was found of some rows holds for the same rows until anything else `changes`.
`advance` is `constrain.table.Walker.advance` for many rows at once, but for the end, which the device judges. It does
not know requests, pages or steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.constrain.table import Table, Walker
from gapless.records import Ints, Mask, RowRef, Rows

_FAR = 2**62
"""Further than any place."""


@dataclass(slots=True)
class _Same:
    """What `advance` found of `rows` when there had been so many `changes`: where their states begin in `_stays`, and
    how many `steps` none comes to a limit. They are `ahead` of what is noted as their position."""

    rows: Ints | None = None
    at: Ints | int = 0
    changes: int = 0
    steps: int = 0
    ahead: int = 0


class Places:
    """Int64 [rows] each, for others to read, but for `room`, which whoever grants pages writes.

    `position`: where the next token that is committed sits; `cap`: where none can sit any more, and 0 for a row that
    wants none; `room`: how many positions the row's pages hold. `leaving`: how many rows want none and still live.
    `changes` counts what is not an ordinary token: lives that begin, leave, or talk, and tokens that move more.
    """

    def __init__(self, table: Table, rows: int) -> None:
        def counts() -> Ints:
            return np.zeros(rows, dtype=np.int64)

        self._position, self.cap, self.room = counts(), counts(), counts()
        self.leaving = self.changes = 0
        self._talks = counts()  # the life in which each token is only one more of the same; 0: none
        self._state, self._until, self._left_next, self._objects_left = counts(), counts(), counts(), counts()
        self._table, self._classes = table, table.classes.astype(np.min_scalar_type(table.head.shape[1]))
        stays = table.following == np.arange(len(table.following))[:, None]
        stays &= (table.stride == 0)[:, None] & ~table.counts & ~table.resets
        self._stays = stays  # [state, class]: such a token takes one from what is left and changes nothing else
        limited, resets = table.on_limit >= 0, table.resets.any(axis=1)
        self._later = (limited | resets).astype(np.int64)  # [state]: phases of `left_next` tokens that may follow
        self._forced = limited.astype(np.int64)  # [state]: and tokens between them
        self._moving = _Same()
        self._talkers: tuple[Rows, int] = (Rows(), 0)  # they all talk, as of that change

    @property
    def position(self) -> Ints:
        """See the class."""
        same = self._moving
        if same.ahead:
            self._position[same.rows] += same.ahead
            same.steps, same.ahead = same.steps - same.ahead, 0
        return self._position

    def begin(self, row: int, walker: Walker, position: int, room: int) -> None:
        """A life of a row begins where `walker` stands. It says its first token at `position`."""
        self._state[row], self._until[row] = walker.state, position + walker.left
        self._left_next[row], self._objects_left[row] = walker.left_next, walker.objects_left
        self.position[row], self.room[row], self.cap[row] = position, room, position + walker.remaining()
        self._talks[row] = 0
        self.changes += 1

    def leave(self, row: int) -> None:
        """The row wants no further token in this life; again is harmless."""
        self.leaving += self.cap[row] != 0
        self.cap[row] = self._talks[row] = 0
        self.changes += 1

    def end(self, row: int) -> None:
        """The life of a row that left is over."""
        self.leaving -= 1

    def talk(self, ref: RowRef) -> None:
        """From now on, whatever this life of the row says without ending is only one more token of the same. It stays
        as it is for a row that wants no more."""
        if self.cap[ref.row]:
            self._talks[ref.row] = ref.epoch
            self.changes += 1

    def talking(self, rows: Rows) -> Mask:
        """Bool [n]: where that is so."""
        talking: Mask = self._talks[rows.numbers] == rows.epochs
        return talking

    def all_talk(self, rows: Rows) -> bool:
        """Whether that is so everywhere."""
        if rows is not self._talkers[0] or self.changes != self._talkers[1]:
            if np.count_nonzero(self.talking(rows)) < len(rows):
                return False
            self._talkers = rows, self.changes
        return True

    def walker(self, row: int) -> Walker:
        """Where a row stands now."""
        left = self._until[row] - self.position[row]
        columns = (self._state[row], left, self._left_next[row], self._objects_left[row])
        return Walker(self._table, *map(int, columns))

    def advance(self, rows: Ints, ids: Ints) -> None:
        """Rows int64 [n], distinct, move over one token each, `ids` int64 [n]."""
        same, cls = self._moving, self._classes[ids]
        if rows is not same.rows or self.changes != same.changes:
            left = self._until[rows] - self.position[rows]
            at = self._state[rows] * self._stays.shape[1]
            same = self._moving = _Same(rows, at, self.changes, int(left.min(initial=_FAR)) - 1)
        if same.ahead < same.steps and np.count_nonzero(self._stays.take(same.at + cls)) == len(rows):
            same.ahead += 1
        else:
            self.position[rows] += 1
            self._move(rows, cls, self._position[rows])

    def _move(self, rows: Ints, cls: Ints, position: Ints) -> None:
        """Any tokens, of classes `cls`, behind which rows stand at `position`."""
        self.changes += 1
        t, at = self._table, self._state[rows]
        counts, resets, limit = t.counts[at, cls], t.resets[at, cls], t.on_limit[at]
        objects, later = self._objects_left[rows] - counts, self._left_next[rows]
        left = np.where(resets, later, self._until[rows] - position)
        ended = t.ends[at, cls] | (counts & (objects <= 0))
        diverted = (left <= 0) & (limit >= 0) & ~resets & ~ended
        left = np.where(diverted, 1, left)
        state = np.where(diverted, limit, t.following[at, cls])
        self._state[rows], self._until[rows], self._objects_left[rows] = state, position + left, objects
        stride = t.stride[state]
        in_objects = np.minimum(left, t.offset[state] + stride * (objects - 1))
        in_text = left + self._later[state] * later + self._forced[state]
        wanted = self.cap[rows] != 0
        self.cap[rows] = np.where(wanted, position + np.where(stride > 0, in_objects, in_text), 0)
