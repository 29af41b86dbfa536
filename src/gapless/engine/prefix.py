"""Picture prefixes shared by live requests on the same picture.

An entry owns the pages of [BOS + picture block], computed once by the request that came first. Full pages are shared
as they are; the last, partly filled one is copied by each holder, so shared pages are never written. An entry can be
found from the launch of its step on and is gone with its last holder; `withdraw` hides one whose step failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gapless.engine.needs import Pages
from gapless.errors import InvariantBroken
from gapless.records import RowRef


@dataclass(slots=True, eq=False)
class PrefixEntry:
    """The pages of one picture's block, the row whose prefill computes it, and the rows that use it."""

    key: str
    pages: tuple[int, ...]
    maker: RowRef
    holders: set[RowRef] = field(default_factory=set)


class PrefixTable:
    """Live entries by picture digest. Holds one reference on every page of an entry."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._entries: dict[str, PrefixEntry] = {}
        self._withdrawn: list[PrefixEntry] = []

    def find(self, key: str) -> PrefixEntry | None:
        """Return the live entry for a picture, or None."""
        return self._entries.get(key)

    def publish(self, key: str, pages: tuple[int, ...], maker: RowRef) -> PrefixEntry:
        """Make an entry of freshly taken pages; the references now belong to the entry."""
        if key in self._entries:
            raise InvariantBroken(f"I5: the picture {key[:12]} is published twice")
        entry = self._entries[key] = PrefixEntry(key, pages, maker)
        return entry

    def withdraw(self, entry: PrefixEntry) -> None:
        """Let nobody find the entry any more; its holders keep it until they leave."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
            self._withdrawn.append(entry)

    def leave(self, entry: PrefixEntry, ref: RowRef) -> None:
        """A holder goes; the last one takes the entry with it."""
        entry.holders.remove(ref)
        if entry.holders:
            return
        self._pages.give_back(entry.pages)
        if entry in self._withdrawn:
            self._withdrawn.remove(entry)
        else:
            del self._entries[entry.key]

    def held(self) -> list[str]:
        """Keys of entries still there, for the audit."""
        return [e.key for e in (*self._entries.values(), *self._withdrawn)]
