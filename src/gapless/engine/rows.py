"""The row ledger: which device rows are leased, and which life each is in (I9). Row 0 is never leased."""

from __future__ import annotations

from collections import deque

from gapless.errors import InvariantBroken
from gapless.records import RowRef


class RowPool:
    """Rows 1..rows-1. A row that comes back begins its next life with a new epoch."""

    def __init__(self, rows: int) -> None:
        self._free: deque[int] = deque(range(1, rows))
        self._epochs = [0] * rows
        self._leased: set[RowRef] = set()

    @property
    def free(self) -> int:
        """Rows nobody holds."""
        return len(self._free)

    def lease(self) -> RowRef:
        """Take a row; there must be a free one."""
        row = self._free.popleft()
        self._epochs[row] += 1
        ref = RowRef(row, self._epochs[row])
        self._leased.add(ref)
        return ref

    def give_back(self, ref: RowRef) -> None:
        """End this life of the row."""
        if ref not in self._leased:
            raise InvariantBroken(f"I5: {ref} is given back but not leased")
        self._leased.remove(ref)
        self._free.append(ref.row)

    def held(self) -> list[RowRef]:
        """Leased rows, for the audit."""
        return sorted(self._leased, key=_row)


def _row(ref: RowRef) -> int:
    return ref.row
