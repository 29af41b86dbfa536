"""Who wants to see how far a long start is: told what comes next, and how much of how much is done."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Somebody who watches. `done` and `total` are in the unit that `doing` names."""

    def show(self, doing: str, done: int, total: int) -> None:
        """`done` of `total` parts are over; `doing` begins."""
        ...
