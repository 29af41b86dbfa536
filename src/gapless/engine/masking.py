"""Masks of host-masked rows between the book, which knows where a row stands, and the sources that build them (I7)."""

from __future__ import annotations

from collections.abc import Iterable

from gapless.constrain.guided import GuidedMasks
from gapless.constrain.masks import MaskSource
from gapless.engine.blame import Blame
from gapless.engine.book import Book
from gapless.errors import InvariantBroken
from gapless.records import Mask, RowRef


class Masking:
    """Asks for a mask after each commit, hands over those that are ready. A source that raises fails its row alone.

    `guided` builds those of requests with a guide, `source` all others.
    """

    def __init__(self, source: MaskSource, guided: GuidedMasks | None, book: Book, blame: Blame) -> None:
        self._source, self._guided = source, guided
        self._book = book
        self._blame = blame

    def request(self, ref: RowRef) -> None:
        """The row's last token is committed: begin its next mask, if its masks are built on the host."""
        walker = self._book.host_walker(ref)
        if walker is None:
            return
        with self._blame.on([ref]):
            guided = self._book.guided(ref)
            if guided is None:
                self._source.request(ref, walker)
                return
            if self._guided is None:
                raise InvariantBroken(f"{ref} has a guide, but the engine was made without a source of guided masks")
            request, said = guided
            self._guided.request(ref, request, walker.table, said, walker.mask())

    def ready(self, refs: Iterable[RowRef]) -> dict[RowRef, Mask | None]:
        """Of the rows that wait, those that can be sampled now; None for a row that leaves and needs no mask."""
        masks: dict[RowRef, Mask | None] = {}
        for ref in refs:
            mask = None
            if not self._book.leaving(ref):
                with self._blame.on([ref]):
                    mask = self._take(ref)
            if mask is not None or self._book.leaving(ref):
                masks[ref] = mask
        return masks

    def _take(self, ref: RowRef) -> Mask | None:
        if self._guided is not None and self._guided.follows(ref):
            return self._guided.take(ref)
        return self._source.take(ref)

    def forget(self, ref: RowRef) -> None:
        """This life of the row is over."""
        self._source.forget(ref)
        if self._guided is not None:
            self._guided.forget(ref)
