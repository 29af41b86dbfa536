"""Sets of characters, and the UTF-8 byte sequences they are.

In: ranges of code points. Out: the same set in one form (ascending ranges that do not touch, without surrogates), and
`sequences`: short lists of byte ranges, each of which any byte of the first range followed by any of the second and so
on spells a character of the set, and all of them once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_LENGTHS = (0x7F, 0x7FF, 0xFFFF)
"""The last code points of one, two and three bytes."""

Sequence = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CharSet:
    """A set of characters. Make one with `of`, which puts the ranges in order."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, *ranges: tuple[int, int]) -> CharSet:
        """The union of inclusive ranges, in any order; surrogates are no characters and are left out."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(_without_surrogates(ranges)):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    @classmethod
    def among(cls, text: str) -> CharSet:
        """The characters of `text`."""
        return cls.of(*((ord(char), ord(char)) for char in text))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, code: int) -> bool:
        return any(first <= code <= last for first, last in self.ranges)

    def __or__(self, other: CharSet) -> CharSet:
        return CharSet.of(*self.ranges, *other.ranges)

    def __and__(self, other: CharSet) -> CharSet:
        pairs = ((max(a, c), min(b, d)) for a, b in self.ranges for c, d in other.ranges)
        return CharSet.of(*(pair for pair in pairs if pair[0] <= pair[1]))

    def __sub__(self, other: CharSet) -> CharSet:
        return self & ~other

    def __invert__(self) -> CharSet:
        gaps, begin = [], 0
        for first, last in self.ranges:
            if begin < first:
                gaps.append((begin, first - 1))
            begin = last + 1
        if begin <= LAST:
            gaps.append((begin, LAST))
        return CharSet.of(*gaps)

    def sequences(self) -> Iterator[Sequence]:
        """See the module."""
        for first, last in self.ranges:
            yield from _sequences(first, last)


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    low, high = _SURROGATES
    for first, last in ranges:
        if first < low:
            yield first, min(last, low - 1)
        if last > high:
            yield max(first, high + 1), last


def _sequences(first: int, last: int) -> Iterator[Sequence]:
    """Split where the number of bytes changes, then where continuation bytes would not run their full range."""
    for limit in _LENGTHS:
        if first <= limit < last:
            yield from _sequences(first, limit)
            yield from _sequences(limit + 1, last)
            return
    low, high = chr(first).encode(), chr(last).encode()
    for place in range(1, len(low)):
        full = (1 << 6 * place) - 1
        if first & ~full == last & ~full:
            break
        if first & full:
            yield from _sequences(first, first | full)
            yield from _sequences((first | full) + 1, last)
            return
        if last & full != full:
            yield from _sequences(first, (last & ~full) - 1)
            yield from _sequences(last & ~full, last)
            return
    yield tuple(zip(low, high, strict=True))


ANY = CharSet.of((0, LAST))
