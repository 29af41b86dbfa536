"""The simulated device's memory and rows: the hash language in numpy over pages that remember who wrote what.

What flows in: page tables, positions, words. What flows out: hidden pairs. Invariants: every word is tagged with the
position it was written for, and a read whose tag is not the position read is a broken invariant (I5), whatever the
hash would say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from tests.fakes import hash_language as lang
from tests.fakes.hash_language import HashSpec, Hidden
from tests.fakes.page_watch import broken
from tests.fakes.ruled_walk import RuledWalk

from gapless.constrain.table import Walker
from gapless.constrain.tokens import TokenWalker
from gapless.records import Look, Prefill, RowStart, Token

UNWRITTEN = -1


class PagedMemory:
    """Two layers of words, uint64 [2, pages, page_size], and the position each was written for."""

    def __init__(self, spec: HashSpec, pages: int, page_size: int) -> None:
        self.spec = spec
        self.page_size = page_size
        self._words = np.full((2, pages, page_size), lang.STALE, dtype=np.uint64)
        self._tags = np.full((2, pages, page_size), UNWRITTEN, dtype=np.int64)
        self._pictures: dict[int, int] = {}  # words by slot on the host
        self._looked: list[np.ndarray] = []

    def look(self, look: Look) -> None:
        """Some crops of a picture, which is fed later."""
        if not look.begin:
            self._looked = []
        self._looked.append(look.picture.crops[look.begin : look.end].copy())

    def seen(self, prefill: Prefill) -> list[int]:
        """The words of a prefill's pictures: computed, and kept if there is a place for them, or kept before."""
        pictures = [inset.picture for inset in prefill.insets]
        pictures[:0] = [] if prefill.picture is None else [prefill.picture]
        words, looked = [], prefill.looked
        for picture, place in zip(pictures, prefill.places or [None] * len(pictures), strict=True):
            there = place is not None and place.there
            crops = np.concatenate([*(self._looked if looked else ()), picture.crops[looked:]])
            words.append(self._pictures[place.slot] if there else lang.picture_word(crops, picture.tiling))
            looked = 0
            if place is not None:
                self._pictures[place.slot] = words[-1]
        return words

    def poison(self, pages: Sequence[int]) -> None:
        """Nothing in these pages may be read before it is written again."""
        self._words[:, list(pages)] = lang.STALE
        self._tags[:, list(pages)] = UNWRITTEN

    def ruin(self, pages: Sequence[int], first: int = 0) -> None:
        """What was to be written here, from position `first` on, never was, but later steps read it all the same:
        everything is `STALE`."""
        self._words[:, list(pages)] = lang.STALE
        tags = first + np.arange(len(pages) * self.page_size)
        self._tags[:, list(pages)] = tags.reshape(len(pages), self.page_size)

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page, both layers."""
        self._words[:, target] = self._words[:, source]
        self._tags[:, target] = self._tags[:, source]

    def _write(self, layer: int, table: Sequence[int], position: int, word: int) -> None:
        page, place = table[position // self.page_size], position % self.page_size
        self._words[layer, page, place] = word
        self._tags[layer, page, place] = position

    def _total(self, layer: int, table: Sequence[int], last: int, salt: int) -> int:
        pages = list(table[: last // self.page_size + 1])
        tags = self._tags[layer, pages].reshape(-1)[: last + 1]
        places = np.arange(last + 1)
        if not np.array_equal(tags, places):
            wrong = int(np.flatnonzero(tags != places)[0])
            held = pages[wrong // self.page_size]
            raise broken("I5", f"position {wrong} is read from page {held}, which holds position {tags[wrong]} there")
        words = self._words[layer, pages].reshape(-1)[: last + 1]
        if (words == lang.STALE).any():
            return lang.STALE
        total = int((words * (2 * places.astype(np.uint64) + np.uint64(1))).sum(dtype=np.uint64))
        return lang.summed(total, salt)

    def forward(self, table: Sequence[int], position: int, word: int) -> Hidden:
        """Write one token's words at its position, then read everything up to it."""
        self._write(0, table, position, lang.layer_one(word, position))
        h1 = self._total(0, table, position, lang.SALT_H1)
        self._write(1, table, position, lang.layer_two(word, position, h1))
        return self._total(1, table, position, lang.SALT_H2), h1

    def write_block(self, table: Sequence[int], picture: int, adapter: int = 0) -> None:
        """BOS and picture, everything seeing everything."""
        words = [lang.word_of(self.spec, self.spec.rules.end), *lang.picture_words(self.spec, picture)]
        self._write_all(table, [word ^ adapter for word in words], 0)

    def write_inset(self, table: Sequence[int], picture: int, start: int, adapter: int = 0) -> None:
        """A picture behind what is there: everything in it sees all of it and all before it."""
        self._write_all(table, [word ^ adapter for word in lang.picture_words(self.spec, picture)], start)

    def _write_all(self, table: Sequence[int], words: Sequence[int], start: int) -> None:
        for position, word in enumerate(words, start):
            self._write(0, table, position, lang.layer_one(word, position))
        h1 = self._total(0, table, start + len(words) - 1, lang.SALT_H1)
        for position, word in enumerate(words, start):
            self._write(1, table, position, lang.layer_two(word, position, h1))


@dataclass
class SimRow:
    """One row's state on the simulated device. `position`: where its next token is written."""

    start: RowStart
    table: list[int]
    walker: Walker
    position: int
    last: Token | None = None
    done: bool = False
    hidden: Hidden = field(default=(0, 0))
    adapter: int = 0
    said: list[int] = field(default_factory=list)
    rule: TokenWalker | None = None

    @property
    def walk(self) -> RuledWalk:
        """Both its rules."""
        return RuledWalk(self.walker, self.rule)
