"""Masks of host-masked rows between the book, which knows where a row stands, and the source that builds them (I7)."""

from __future__ import annotations

from collections.abc import Iterable

from gapless.constrain.masks import MaskSource
from gapless.engine.blame import Blame
from gapless.engine.book import Book
from gapless.records import Mask, RowRef


class Masking:
    """Asks for a mask after each commit, hands over those that are ready. A source that raises fails its row alone."""

    def __init__(self, source: MaskSource, book: Book, blame: Blame) -> None:
        self._source = source
        self._book = book
        self._blame = blame

    def request(self, ref: RowRef) -> None:
        """The row's last token is committed: begin its next mask, if its masks are built on the host."""
        walker = self._book.host_walker(ref)
        if walker is not None:
            with self._blame.on([ref]):
                self._source.request(ref, walker)

    def ready(self, refs: Iterable[RowRef]) -> dict[RowRef, Mask | None]:
        """Of the rows that wait, those that can be sampled now; None for a row that leaves and needs no mask."""
        masks: dict[RowRef, Mask | None] = {}
        for ref in refs:
            mask = None
            if not self._book.leaving(ref):
                with self._blame.on([ref]):
                    mask = self._source.take(ref)
            if mask is not None or self._book.leaving(ref):
                masks[ref] = mask
        return masks

    def forget(self, ref: RowRef) -> None:
        """This life of the row is over."""
        self._source.forget(ref)
