"""What the parts of the engine need of one another, so that they need not import each other: small protocols."""

from __future__ import annotations

from typing import Protocol

from gapless.records import Ints, Mask


class Room(Protocol):
    """What the planner needs of whoever gives pages out."""

    @property
    def free(self) -> int:
        """Pages that can be taken."""
        ...

    def take(self, count: int) -> tuple[int, ...] | None:
        """Take `count` pages with one reference each, or None and nothing taken."""
        ...

    def take_freed(self) -> tuple[int, ...]:
        """Return the pages that became free since the last call and are free still or again taken."""
        ...


class Pages(Room, Protocol):
    """What admission and the prefix cache need of the page ledger."""

    @property
    def page_size(self) -> int:
        """Positions a page holds."""
        ...

    def share(self, pages: tuple[int, ...]) -> None:
        """Add a reference to each."""
        ...

    def give_back(self, pages: tuple[int, ...]) -> None:
        """Drop a reference from each; pages at zero are free again."""
        ...


class InFlight(Protocol):
    """What the planner needs of the pipeline."""

    def free_slot(self) -> int | None:
        """Return a slot no step holds, or None."""
        ...

    def refs_of(self, numbers: Ints) -> Ints:
        """How many launched steps contain each row (parked ones count): numbers int64 [n] -> int64 [n]."""
        ...

    def carries(self, numbers: Ints) -> Mask:
        """Bool [n]: which of these rows, numbers int64 [n], may ride on one more step: those on fewer than `depth`, and
        of which no launched forward still waits for a host mask."""
        ...
