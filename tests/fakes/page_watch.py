"""Who may read and write which page, judged from the steps a device is handed (I5).

The watch knows pages only by what steps say of them: a page becomes held when a prefill or a grant names it for the
first time and is free again when a step lists it in `freed`. Invariants: a fresh page was not held; a freed page is in
no living row's table; a page is written from its first place on, each place once, and none once it was shared; what is
shared has been written whole, and blocks (BOS + picture) by the step that computes them alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gapless.errors import InvariantBroken
from gapless.records import DeviceLimits, PageGrant, Prefill, RowRef


def broken(invariant: str, what: str) -> InvariantBroken:
    """An error that names its invariant first."""
    return InvariantBroken(f"{invariant}: {what}")


@dataclass
class PageWatch:
    """Tables of living rows, how far each held page is written, picture blocks, and pages that were shared."""

    limits: DeviceLimits
    tables: dict[RowRef, list[int]] = field(default_factory=dict)
    filled: dict[int, int] = field(default_factory=dict)
    blocks: list[tuple[int, ...]] = field(default_factory=list)
    shared: set[int] = field(default_factory=set)

    def freed(self, pages: tuple[int, ...]) -> None:
        """Pages came back: nobody alive may still have them."""
        for page in pages:
            for ref, table in self.tables.items():
                if page in table:
                    raise broken("I5", f"page {page} was freed while {ref} still reads it")
            self.filled.pop(page, None)
        self.shared.difference_update(pages)
        self.blocks = [block for block in self.blocks if not set(block) & set(pages)]

    def start(self, prefill: Prefill) -> None:
        """A row begins: check its table against what is there, and what is written against what is shared."""
        size, prefix, ref = self.limits.page_size, self.limits.prefix, prefill.start.ref
        full, partial = divmod(prefill.position, size)
        if partial and prefill.position != prefix:
            raise broken("I5", f"a prompt starts at {prefill.position}, in the middle of a page of {size}")
        if prefill.picture is not None:
            self._block(prefill)
        if bool(partial) != (prefill.tail is not None):
            raise broken("I5", f"tail copy {prefill.tail} for a block whose last page is partial: {bool(partial)}")
        for page in prefill.pages[:full]:
            if self.filled.get(page) != size:
                raise broken("I5", f"{ref} shares page {page}, of which {self.filled.get(page)} places are written")
        if prefill.tail is not None:
            self._check_tail(prefill, full)
        self._take(prefill.pages[full:])
        if partial:
            self.filled[prefill.pages[full]] = partial
        self.shared.update(prefill.pages[:full])
        self.tables[ref] = list(prefill.pages)
        for position in range(prefill.position, prefill.position + len(prefill.ids)):
            self.write(ref, position)

    def more(self, prefill: Prefill) -> None:
        """A further part of a row's prompt: it goes on in the same table."""
        ref = prefill.start.ref
        if prefill.picture is not None or prefill.tail is not None or prefill.adapter is not None:
            raise broken("I5", f"{ref} goes on with its prompt, but with what only begins one")
        if list(prefill.pages) != self.tables[ref]:
            raise broken("I5", f"{ref} goes on with its prompt in other pages than it began")
        for position in range(prefill.position, prefill.position + len(prefill.ids)):
            self.write(ref, position)

    def _block(self, prefill: Prefill) -> None:
        prefix, size, pages = self.limits.prefix, self.limits.page_size, prefill.prefix_pages
        if prefill.position != prefix:
            raise broken("I5", f"a block of {prefix} is computed, but the prompt starts at {prefill.position}")
        if len(pages) != -(-prefix // size):
            raise broken("I5", f"a block of {prefix} positions got {len(pages)} pages")
        self._take(pages)
        self.blocks.append(pages)
        self.shared.update(pages)
        for i, page in enumerate(pages):
            self.filled[page] = min(size, prefix - i * size)

    def _check_tail(self, prefill: Prefill, full: int) -> None:
        assert prefill.tail is not None
        source, target = prefill.tail
        if not any((*prefill.pages[:full], source) == block for block in self.blocks):
            raise broken("I5", f"pages {prefill.pages[:full]} and {source}, shared and copied, are no living block's")
        if target != prefill.pages[full]:
            raise broken("I5", f"the tail goes to page {target}, not to the row's own {prefill.pages[full]}")

    def grant(self, ref: RowRef, grant: PageGrant) -> None:
        """More pages for a living row."""
        table = self.tables[ref]
        if grant.first != len(table):
            raise broken("I5", f"a grant at {grant.first} for {ref}, whose table has {len(table)} pages")
        self._take(grant.pages)
        table.extend(grant.pages)

    def write(self, ref: RowRef, position: int) -> None:
        """A forward of this row writes at `position`."""
        if position >= self.limits.max_context:
            raise broken("I5", f"{ref} writes position {position}, the context is {self.limits.max_context}")
        if position >= len(self.tables[ref]) * self.limits.page_size:
            raise broken("I5", f"{ref} has no page for its next position {position}")
        index, place = divmod(position, self.limits.page_size)
        page = self.tables[ref][index]
        if page in self.shared:
            raise broken("I5", f"{ref} writes position {position} into page {page}, which is shared")
        if page not in self.filled:
            raise broken("I5", f"{ref} writes into page {page}, which is free")
        if place < self.filled[page]:
            raise broken("I5", f"{ref} writes position {position} into page {page} for the second time")
        self.filled[page] = place + 1

    def unwritten(self, ref: RowRef, position: int) -> None:
        """The step that was to write at `position` was refused."""
        index, place = divmod(position, self.limits.page_size)
        self.filled[self.tables[ref][index]] = place

    def end(self, ref: RowRef) -> None:
        """The row's life is over."""
        self.tables.pop(ref, None)

    def _take(self, pages: tuple[int, ...]) -> None:
        for page in pages:
            if not 0 < page < self.limits.pages:
                raise broken("I5", f"page {page} is not one of 1..{self.limits.pages - 1}")
            if page in self.filled:
                raise broken("I5", f"page {page} was leased twice")
            self.filled[page] = 0
