"""The prefix cache: what was computed for one request and is there for the next that begins alike.

A tree of entries in one KV cache. Its roots are the spaces, an adapter's key with a picture's digest: the entry of a
picture's space is the block, BOS and picture; that of the space without picture holds nothing. Every entry further on
is one whole page, found under the items that stand in it. So what an entry holds is told by its path alone, and paths
are compared item by item, never by a hash. A cache belongs to one engine, that is to one model and its crop settings.

What flows in: items, and pages that others have taken. What flows out: paths, root first, and pages. Invariants:
whoever holds an entry holds all before it; an entry that nobody holds is kept until its pages are wanted, the one left
the longest ago goes first, blocks of pinned pictures after all others, and none before what follows on it; entries are
never written (a block's partly filled last page is copied); one that was withdrawn is found by nobody, nor what follows
on it, and stays until its last holder leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gapless.engine.needs import Pages
from gapless.errors import InvariantBroken
from gapless.observe.counters import Counters
from gapless.records import Adapter, Picture, Prompt, RowRef, Token

Item = int | tuple[int, tuple[float, ...]] | str | None
"""What stands at a position: an id, an id with values, the digest of the picture that begins there, or None where that
picture goes on."""
Space = tuple[str, str]
"""An adapter's key and a picture's digest; each is empty where there is none."""


@dataclass(slots=True, eq=False)
class PrefixEntry:
    """Positions up to `end`, of which those behind `parent` are here, in `pages`. `key`: what stands there, the space
    for a root; `maker`: the life of a row whose steps compute them; `leases`: how many sequences hold it."""

    key: tuple[Item, ...]
    parent: PrefixEntry | None
    end: int
    pages: tuple[int, ...]
    maker: RowRef
    leases: int = 0
    withdrawn: bool = False
    children: dict[tuple[Item, ...], PrefixEntry] = field(default_factory=dict)

    def subtree(self) -> Iterator[PrefixEntry]:
        """It and all that follows on it."""
        left = [self]
        while left:
            entry = left.pop()
            yield entry
            left.extend(entry.children.values())


class PrefixCache:
    """All entries, and all pages that could be had: those that are free, and those of entries that nobody holds.

    `keep` False: an entry goes with its last holder, and blocks alone are shared.
    """

    def __init__(self, pages: Pages, counters: Counters, *, keep: bool) -> None:
        self._pages = pages
        self._counters = counters
        self._keep = keep
        self._roots: dict[tuple[Item, ...], PrefixEntry] = {}  # by space
        self._idle: dict[PrefixEntry, None] = {}  # left the longest ago first, and so what follows before what it is on
        self._idle_pinned: dict[PrefixEntry, None] = {}  # blocks of pinned pictures, likewise
        self._pins: dict[str, int] = {}  # by picture
        self._leaving: set[PrefixEntry] = set()
        self.cached = 0
        """Pages of entries that nobody holds."""

    # -- pages ------------------------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Pages nobody holds, those of entries included."""
        return self._pages.free + self.cached

    def take(self, count: int) -> tuple[int, ...] | None:
        """Take `count` pages, of entries that nobody holds if need be; or None and nothing is taken or lost."""
        if count > self.free:
            return None
        while count > self._pages.free:
            self._evict()
        return self._pages.take(count)

    def take_freed(self) -> tuple[int, ...]:
        """Return the pages that became free since the last call."""
        return self._pages.take_freed()

    def _evict(self) -> None:
        entry = next(iter(self._idle or self._idle_pinned))
        if entry.children:
            raise InvariantBroken(f"I5: pages {entry.pages} are evicted before what follows on them")
        self._rest_no_more(entry)
        self._hide(entry)
        self._pages.give_back(entry.pages)
        self._counters.prefix_evictions += bool(entry.pages)

    # -- leases -----------------------------------------------------------------------------------------------------

    def find(self, space: Space, items: Sequence[Item]) -> list[PrefixEntry]:
        """The longest path that holds a beginning of `items`: not the last one, and no picture in part."""
        root = self._roots.get(space)
        if root is None:
            return []
        path, last = [root], root.end + len(items) - 1
        while (stop := self._next(path[-1])) <= last:
            child = path[-1].children.get(_part(items, root, path[-1].end, stop))
            if child is None:
                break
            path.append(child)
        while items[path[-1].end - root.end] is None:  # a picture is computed whole
            path.pop()
        return path

    def hold(self, path: Iterable[PrefixEntry]) -> None:
        """Lease entries for a sequence."""
        for entry in path:
            if not entry.leases:
                self._rest_no_more(entry)
            entry.leases += 1

    def leave(self, path: Sequence[PrefixEntry]) -> None:
        """A sequence goes; entries that nobody holds any more are kept, or go with it."""
        for entry in reversed(path):
            if not entry.leases:
                raise InvariantBroken(f"I5: the entry with pages {entry.pages} is left, but nobody holds it")
            entry.leases -= 1
            if entry.leases:
                continue
            if self._keep and not entry.withdrawn and (entry.pages or entry.children):
                self._resting(entry)[entry] = None
                self.cached += len(entry.pages)
                continue
            if entry.withdrawn:
                self._leaving.remove(entry)
            else:
                self._hide(entry)
            self._pages.give_back(entry.pages)

    def publish(self, space: Space, end: int, pages: tuple[int, ...], maker: RowRef) -> PrefixEntry:
        """Make the first entry of a space, up to `end`, and hold it; references on `pages` now belong to it."""
        if space in self._roots:
            raise InvariantBroken(f"I5: the space {space} is published twice")
        root = self._roots[space] = PrefixEntry(space, None, end, pages, maker, leases=1)
        return root

    def extend(
        self, path: list[PrefixEntry], items: Sequence[Item], table: Sequence[int], maker: RowRef, *, through: bool
    ) -> None:
        """Enter a sequence's whole pages behind its path, as far as its `items` go, and hold them.

        Where somebody else's entry stands already, go on behind that one if `through`, or leave it at that.
        """
        root = path[0]
        while self._keep and not path[-1].withdrawn and (stop := self._next(path[-1])) <= root.end + len(items):
            last = path[-1]
            key = _part(items, root, last.end, stop)
            entry = last.children.get(key)
            if entry is None:
                page = table[stop // self._pages.page_size - 1]
                self._pages.share((page,))
                entry = last.children[key] = PrefixEntry(key, last, stop, (page,), maker, leases=1)
            elif through:
                self.hold((entry,))
            else:
                break
            path.append(entry)

    def _next(self, entry: PrefixEntry) -> int:
        """Where the page ends in which the position behind an entry lies."""
        size = self._pages.page_size
        return (entry.end // size + 1) * size

    def _rest_no_more(self, entry: PrefixEntry) -> None:
        del self._resting(entry)[entry]
        self.cached -= len(entry.pages)

    def _resting(self, entry: PrefixEntry) -> dict[PrefixEntry, None]:
        """Where it stands in line when nobody holds it."""
        return self._idle_pinned if entry.parent is None and entry.key[1] in self._pins else self._idle

    def _hide(self, entry: PrefixEntry) -> None:
        siblings = self._roots if entry.parent is None else entry.parent.children
        del siblings[entry.key]

    # -- pins -------------------------------------------------------------------------------------------------------

    def pin(self, picture: str, more: int) -> None:
        """So many more handles want a picture's blocks, whatever the adapter, to be kept as long as possible."""
        roots = [root for root in self._roots.values() if root.key[1] == picture and not root.leases]
        lines = [self._resting(root) for root in roots]
        count = self._pins.pop(picture, 0) + more
        if count < 0:
            raise InvariantBroken(f"I5: the picture {picture} has {count} pins")
        if count:
            self._pins[picture] = count
        for root, line in zip(roots, lines, strict=True):
            if self._resting(root) is not line:
                del line[root]
                self._resting(root)[root] = None

    # -- faults -----------------------------------------------------------------------------------------------------

    def withdraw(self, entries: Iterable[PrefixEntry]) -> None:
        """Let nobody find these entries any more, nor what follows on them; holders keep them until they leave."""
        for first in entries:
            if first.withdrawn:
                continue
            self._hide(first)
            for entry in first.subtree():
                entry.withdrawn = True
                if entry.leases:
                    self._leaving.add(entry)
                else:
                    self._rest_no_more(entry)
                    self._pages.give_back(entry.pages)

    # -- audit ------------------------------------------------------------------------------------------------------

    def entries(self) -> list[PrefixEntry]:
        """Those that can be found."""
        return [entry for root in self._roots.values() for entry in root.subtree()]

    def held(self) -> list[tuple[int, ...]]:
        """Pages by entry that are leased, for the audit."""
        return [entry.pages for entry in (*self.entries(), *self._leaving) if entry.leases]

    def kept(self) -> list[int]:
        """Pages of entries that nobody holds, for the audit: one reference each."""
        return [page for entry in (*self._idle, *self._idle_pinned) for page in entry.pages]


def space_of(prompt: Prompt, adapter: Adapter | None) -> Space:
    """An adapter changes what is computed for the same picture, and for the same ids."""
    return ("" if adapter is None else adapter.key, "" if prompt.picture is None else prompt.picture.digest)


def items_of(prompt: Prompt, length: int) -> list[Item]:
    """What stands at each position of a prompt behind its picture; its insets take `length` positions each."""
    items = [_item(token, values) for token, values in zip(prompt.ids, prompt.values, strict=True)]
    for inset in prompt.insets:
        items[inset.at : inset.at + length] = _shown(inset.picture, length)
    return items


def items_said(tokens: Sequence[Token]) -> list[Item]:
    """What stands where committed tokens are fed."""
    return [_item(token.id, token.values) for token in tokens]


def _item(token: int, values: tuple[float, ...]) -> Item:
    return (token, values) if values else token


def _shown(picture: Picture, length: int) -> list[Item]:
    return [picture.digest, *(None,) * (length - 1)]


def _part(items: Sequence[Item], root: PrefixEntry, start: int, stop: int) -> tuple[Item, ...]:
    return tuple(items[start - root.end : stop - root.end])
