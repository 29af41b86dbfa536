"""The page ledger: integers with reference counts. It does not know what a page holds, nor who holds it.

Page 0 is the scrap page: never taken, never freed. A page is free exactly when its count is zero (I5).
"""

from __future__ import annotations

from collections import deque

from gapless.errors import InvariantBroken


class PagePool:
    """All pages of one KV cache. Taking is all or nothing; the page free the longest is taken first."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.total = pages - 1
        self._refs = [0] * pages
        self._free: deque[int] = deque(range(1, pages))
        self._freed: list[int] = []

    @property
    def free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...] | None:
        """Take `count` pages with one reference each, or None and nothing taken."""
        if count > len(self._free):
            return None
        pages = tuple(self._free.popleft() for _ in range(count))
        for page in pages:
            self._refs[page] = 1
        return pages

    def share(self, pages: tuple[int, ...]) -> None:
        """Add a reference to each; all must be held already."""
        for page in pages:
            if self._refs[page] == 0:
                raise InvariantBroken(f"I5: page {page} is shared while it is free")
            self._refs[page] += 1

    def give_back(self, pages: tuple[int, ...]) -> None:
        """Drop a reference from each; pages at zero are free again."""
        for page in pages:
            if self._refs[page] == 0:
                raise InvariantBroken(f"I5: page {page} is given back twice")
            self._refs[page] -= 1
            if self._refs[page] == 0:
                self._free.append(page)
                self._freed.append(page)

    def take_freed(self) -> tuple[int, ...]:
        """Return the pages that became free since the last call."""
        freed, self._freed = tuple(self._freed), []
        return freed

    def refs(self, page: int) -> int:
        """How many hold the page."""
        return self._refs[page]

    def held(self) -> list[int]:
        """Pages with references, for the audit."""
        return [page for page, count in enumerate(self._refs) if count]
