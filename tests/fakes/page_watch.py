"""Who may read and write which page, judged from the steps a device is handed (I5).

The watch knows pages only by what steps say of them: a page becomes held when a prefill or a grant names it for the
first time and is free again when a step lists it in `freed`. Invariants: a fresh page was not held; a freed page is in
no living row's table; blocks (BOS + picture) are written once, by the step that computes them, and never by a row.
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
    """Tables of living rows, pages held, and picture blocks."""

    limits: DeviceLimits
    tables: dict[RowRef, list[int]] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    blocks: list[tuple[int, ...]] = field(default_factory=list)

    def freed(self, pages: tuple[int, ...]) -> None:
        """Pages came back: nobody alive may still have them."""
        for page in pages:
            for ref, table in self.tables.items():
                if page in table:
                    raise broken("I5", f"page {page} was freed while {ref} still reads it")
        self.held.difference_update(pages)
        self.blocks = [block for block in self.blocks if not set(block) & set(pages)]

    def start(self, prefill: Prefill) -> None:
        """A row begins: check its table against its block, and what is written against what is shared."""
        size, prefix = self.limits.page_size, self.limits.prefix
        full = prefix // size if prefill.position else 0
        if prefill.position not in (0, prefix):
            raise broken("I5", f"a prompt starts at {prefill.position}, neither 0 nor behind the picture ({prefix})")
        if prefill.picture is not None:
            self._take(prefill.prefix_pages)
            self.blocks.append(prefill.prefix_pages)
            if len(prefill.prefix_pages) != -(-prefix // size):
                raise broken("I5", f"a block of {prefix} positions got {len(prefill.prefix_pages)} pages")
        if prefill.position:
            self._check_block(prefill, full)
        elif prefill.picture is not None or prefill.tail is not None:
            raise broken("I5", "a sequence that starts at 0 has neither picture nor tail copy")
        self._take(prefill.pages[full:])
        self.tables[prefill.start.ref] = list(prefill.pages)
        self._check_room(prefill.start.ref, prefill.position + len(prefill.ids) - 1)

    def _check_block(self, prefill: Prefill, full: int) -> None:
        owners = [block for block in self.blocks if block[:full] == prefill.pages[:full]]
        partial = self.limits.prefix % self.limits.page_size != 0
        if partial and prefill.tail is not None:
            owners = [block for block in owners if block[-1] == prefill.tail[0]]
        if not owners:
            raise broken("I5", f"{prefill.start.ref} shares pages {prefill.pages[:full]} that are no living block's")
        if partial != (prefill.tail is not None):
            raise broken("I5", f"tail copy {prefill.tail} for a block whose last page is partial: {partial}")
        if prefill.tail is not None and prefill.tail[1] != prefill.pages[full]:
            raise broken("I5", f"the tail goes to page {prefill.tail[1]}, not to the row's own {prefill.pages[full]}")

    def grant(self, ref: RowRef, grant: PageGrant) -> None:
        """More pages for a living row."""
        table = self.tables[ref]
        if grant.first != len(table):
            raise broken("I5", f"a grant at {grant.first} for {ref}, whose table has {len(table)} pages")
        self._take(grant.pages)
        table.extend(grant.pages)

    def write(self, ref: RowRef, position: int) -> None:
        """A forward of this row writes at `position`."""
        self._check_room(ref, position)
        page = self.tables[ref][position // self.limits.page_size]
        if any(page in block for block in self.blocks):
            raise broken("I5", f"{ref} writes position {position} into page {page}, which is shared")
        if page not in self.held:
            raise broken("I5", f"{ref} writes into page {page}, which is free")

    def end(self, ref: RowRef) -> None:
        """The row's life is over."""
        self.tables.pop(ref, None)

    def _take(self, pages: tuple[int, ...]) -> None:
        for page in pages:
            if not 0 < page < self.limits.pages:
                raise broken("I5", f"page {page} is not one of 1..{self.limits.pages - 1}")
            if page in self.held:
                raise broken("I5", f"page {page} was leased twice")
            self.held.add(page)

    def _check_room(self, ref: RowRef, position: int) -> None:
        if position >= self.limits.max_context:
            raise broken("I5", f"{ref} writes position {position}, the context is {self.limits.max_context}")
        if position >= len(self.tables[ref]) * self.limits.page_size:
            raise broken("I5", f"{ref} has no page for its next position {position}")
