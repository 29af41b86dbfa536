"""Masks built on the host, after the commit they depend on.

The loop asks for the mask of a row's next token as soon as the last one is committed, and takes it when it is ready.
A source may build on another thread; it then calls `notify` of the loop's mailbox when a mask is done.
"""

from __future__ import annotations

from typing import Protocol

from gapless.constrain.table import Walker
from gapless.records import Mask, RowRef


class MaskSource(Protocol):
    """Builds masks for host-masked rows; at most one is wanted per row at a time."""

    def request(self, ref: RowRef, walker: Walker) -> None:
        """Begin building the mask for the place `walker` stands at now. Must read the walker before returning."""
        ...

    def take(self, ref: RowRef) -> Mask | None:
        """Hand over the finished mask, bool [vocab], and forget it; None while it is being built."""
        ...

    def forget(self, ref: RowRef) -> None:
        """The row ended; drop what was asked for it."""
        ...


class TableMasks:
    """Reads the mask of the walker's state from its table at once: the device's rules, applied on the host."""

    def __init__(self) -> None:
        self._ready: dict[RowRef, Mask] = {}

    def request(self, ref: RowRef, walker: Walker) -> None:
        """See `MaskSource`."""
        self._ready[ref] = walker.mask()

    def take(self, ref: RowRef) -> Mask | None:
        """See `MaskSource`."""
        return self._ready.pop(ref, None)

    def forget(self, ref: RowRef) -> None:
        """See `MaskSource`."""
        self._ready.pop(ref, None)
