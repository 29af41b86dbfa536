"""Where running rows stand, as arrays by row number: what every tick asks of every row is asked of all of them at once.

In: a row's place when its life begins, the tokens that are committed, pages that are granted. Out: where the next token
goes, and where there will be no more of them or no room. While a row lives this is the only note of its place, and
`walker` reads it out again. All is told as positions, so that an ordinary token moves one number and nothing else.
`advance` is `constrain.table.Walker.advance` for many rows at once, but for the end, which the device judges. It does
not know requests, pages or steps.
"""

from __future__ import annotations

import numpy as np

from gapless.constrain.table import Table, Walker
from gapless.records import Ints, Mask, RowRef, Rows


class Places:
    """Int64 [rows] each, for others to read, but for `room`, which whoever grants pages writes.

    `position`: where the next token that is committed sits; `cap`: where none can sit any more, and 0 for a row that
    wants none; `room`: how many positions the row's pages hold. `leaving`: how many rows want none and still live.
    """

    def __init__(self, table: Table, rows: int) -> None:
        def counts() -> Ints:
            return np.zeros(rows, dtype=np.int64)

        self.position, self.cap, self.room = counts(), counts(), counts()
        self.leaving = 0
        self._talks = counts()  # the life in which each token is only one more of the same; 0: none
        self._state, self._until, self._left_next, self._objects_left = counts(), counts(), counts(), counts()
        self._table, self._classes = table, table.classes.astype(np.int64)
        stays = table.following == np.arange(len(table.following))[:, None]
        stays &= (table.stride == 0)[:, None] & ~table.counts & ~table.resets
        self._stays = stays  # [state, class]: such a token takes one from what is left and changes nothing else
        limited, resets = table.on_limit >= 0, table.resets.any(axis=1)
        self._later = (limited | resets).astype(np.int64)  # [state]: phases of `left_next` tokens that may follow
        self._forced = limited.astype(np.int64)  # [state]: and tokens between them

    def begin(self, row: int, walker: Walker, position: int, room: int) -> None:
        """A life of a row begins where `walker` stands. It says its first token at `position`."""
        self._state[row], self._until[row] = walker.state, position + walker.left
        self._left_next[row], self._objects_left[row] = walker.left_next, walker.objects_left
        self.position[row], self.room[row], self.cap[row] = position, room, position + walker.remaining()
        self._talks[row] = 0

    def leave(self, row: int) -> None:
        """The row wants no further token in this life; again is harmless."""
        self.leaving += self.cap[row] != 0
        self.cap[row] = self._talks[row] = 0

    def end(self, row: int) -> None:
        """The life of a row that left is over."""
        self.leaving -= 1

    def talk(self, ref: RowRef) -> None:
        """From now on, whatever this life of the row says without ending is only one more token of the same. It stays
        as it is for a row that wants no more."""
        if self.cap[ref.row]:
            self._talks[ref.row] = ref.epoch

    def talking(self, rows: Rows) -> Mask:
        """Bool [n]: where that is so."""
        talking: Mask = self._talks[rows.numbers] == rows.epochs
        return talking

    def walker(self, row: int) -> Walker:
        """Where a row stands now."""
        left = self._until[row] - self.position[row]
        columns = (self._state[row], left, self._left_next[row], self._objects_left[row])
        return Walker(self._table, *map(int, columns))

    def advance(self, rows: Ints, ids: Ints) -> None:
        """Rows int64 [n], distinct, move over one token each, `ids` int64 [n]."""
        cls, at, position = self._classes[ids], self._state[rows], self.position[rows] + 1
        self.position[rows] = position
        if np.count_nonzero(self._stays[at, cls] & (position < self._until[rows])) < len(rows):
            self._move(rows, at, cls, position)

    def _move(self, rows: Ints, at: Ints, cls: Ints, position: Ints) -> None:
        """Any tokens, of classes `cls` in states `at`, behind which rows stand at `position`."""
        t = self._table
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
