"""Cuts a prompt into parts for several steps, so that no step takes longer than it may.

In: a sequence's whole prefill, and what a step has been given so far. Out: the part that still fits. A picture's block
is never cut; its crops may be encoded over several steps before it, where the device can do that; text is cut anywhere.
What does not fit even into a step of its own goes there all the same. Pure arithmetic over the device's `Costs`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from gapless.costs import Costs
from gapless.records import Look, Picture, Prefill


@dataclass(frozen=True, slots=True)
class Stretch:
    """Positions `begin`..`end` - 1 of a prompt: a picture's block, or text. `crops`: how many of the picture's are to
    be encoded, none if what comes of that is there."""

    begin: int
    end: int
    picture: Picture | None = None
    crops: int = 0

    @property
    def count(self) -> int:
        """Positions."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Part:
    """What one step has of a prompt: positions up to `end`, a look at the picture behind them, or both. `ends`: nothing
    is left of the prompt."""

    prefill: Prefill | None
    look: Look | None
    end: int
    ends: bool


class Feed:
    """What is left of a prompt: `stretches` in their order, and `looked`, how many crops of the first one's picture
    were encoded. `prefix`: positions of a block with BOS; `front`: the prompt stands behind one."""

    def __init__(self, whole: Prefill, prefix: int, front: bool) -> None:
        self.whole = whole
        self.looked = 0
        self.begun = False
        """A part has been cut off that feeds anything."""
        self.stretches: deque[Stretch] = deque()
        at, last = whole.position, whole.position + len(whole.ids)
        self.first = prefix if front else 0
        """Where the prompt's own ids begin."""
        self._shown = 0
        if whole.picture is not None:
            self._picture(0, whole.position, whole.picture)
        for inset in whole.insets:
            begin = whole.position + inset.at
            self._text(at, begin)
            at = begin + prefix - 1
            self._picture(begin, at, inset.picture)
        self._text(at, last)
        self._shown = 0

    def _picture(self, begin: int, end: int, picture: Picture) -> None:
        place = self.whole.places[self._shown] if self.whole.places else None
        there = place is not None and place.there
        self._shown += 1
        self.stretches.append(Stretch(begin, end, picture, 0 if there else picture.count))

    def _text(self, begin: int, end: int) -> None:
        if begin < end:
            self.stretches.append(Stretch(begin, end))

    def part(self, begin: int, end: int, looked: int) -> Prefill:
        """The prefill of positions `begin`..`end` - 1, which begin and end where the block of no picture is cut."""
        whole = self.whole
        first = max(begin, whole.position) - whole.position
        last, front = end - whole.position, begin < whole.position
        begun, self.begun = self.begun, True
        insets = tuple(replace(inset, at=inset.at - first) for inset in whole.insets if first <= inset.at < last)
        before, self._shown = self._shown, self._shown + front + len(insets)
        return replace(
            whole,
            ids=whole.ids[first:last],
            values=whole.values[first:last],
            position=whole.position + first,
            picture=whole.picture if front else None,
            prefix_pages=whole.prefix_pages if front else (),
            tail=None if begun else whole.tail,
            insets=insets,
            adapter=None if begun else whole.adapter,
            places=whole.places[before : self._shown],
            looked=looked,
            grammar=None if begun else whole.grammar,
        )


@dataclass(slots=True)
class Budget:
    """What a step has been given, and how long it may take in seconds (None: as long as it likes)."""

    costs: Costs
    limit: float | None
    crops: int = 0
    pictures: int = 0
    tokens: int = 0
    behind: int = 0

    @property
    def empty(self) -> bool:
        """Nothing is in the step yet, so whatever comes next must go into it."""
        return not (self.crops or self.pictures or self.tokens)

    @property
    def room(self) -> bool:
        """Whether there is something that would fit."""
        return self.empty or self.fits(crops=1) or self.fits(tokens=1)

    @property
    def seconds(self) -> float:
        """What the step takes."""
        return self.costs.of(self.crops, self.pictures, self.tokens, self.behind)

    @property
    def over(self) -> bool:
        """It takes longer than it may."""
        return self.limit is not None and self.seconds > self.limit

    def fits(self, crops: int = 0, pictures: int = 0, tokens: int = 0, behind: int = 0) -> bool:
        """Whether the step still takes no longer than it may with all that."""
        if self.limit is None:
            return True
        all_of_it = self.crops + crops, self.pictures + pictures, self.tokens + tokens, self.behind + behind
        return self.costs.of(*all_of_it) <= self.limit

    def add(self, crops: int = 0, pictures: int = 0, tokens: int = 0, behind: int = 0) -> None:
        """All that goes into the step."""
        self.crops, self.pictures = self.crops + crops, self.pictures + pictures
        self.tokens, self.behind = self.tokens + tokens, self.behind + behind


def cut(feed: Feed, budget: Budget) -> Part | None:
    """As much of a prompt as fits, taken off `feed` and added to `budget`; at least something if the step is empty.
    None: nothing fits."""
    begin = end = feed.stretches[0].begin
    first, look = feed.looked, None
    while feed.stretches and look is None:
        stretch = feed.stretches[0]
        if stretch.picture is None:
            count = _text_that_fits(stretch, budget)
            if not count:
                break
            budget.add(tokens=count, behind=count * stretch.begin)
            end = stretch.begin + count
            _shorten(feed, stretch, end)
        elif _takes_block(feed, stretch, budget):
            end = stretch.end
        else:
            look = _look(feed, stretch, stretch.picture, budget)
            if look is None:
                break
    if end == begin and look is None:
        return None
    prefill = feed.part(begin, end, first) if end > begin else None
    return Part(prefill, look, end, not feed.stretches)


def _shorten(feed: Feed, stretch: Stretch, end: int) -> None:
    feed.stretches.popleft()
    if end < stretch.end:
        feed.stretches.appendleft(Stretch(end, stretch.end))


def _text_that_fits(stretch: Stretch, budget: Budget) -> int:
    """How many tokens of it."""
    low, high = 0, stretch.count
    while low < high:
        count = (low + high + 1) // 2
        if budget.fits(tokens=count, behind=count * stretch.begin):
            low = count
        else:
            high = count - 1
    return low or (min(stretch.count, budget.costs.least_tokens) if budget.empty else 0)


def _takes_block(feed: Feed, stretch: Stretch, budget: Budget) -> bool:
    """Take a whole picture, or what is left of it, if it fits or must go now."""
    left = stretch.crops - feed.looked
    behind = stretch.count * stretch.begin
    must = budget.empty and (not left or budget.costs.whole)
    if not must and not budget.fits(left, 1, stretch.count, behind):
        return False
    budget.add(left, 1, stretch.count, behind)
    feed.stretches.popleft()
    feed.looked = 0
    return True


def _look(feed: Feed, stretch: Stretch, picture: Picture, budget: Budget) -> Look | None:
    """Encode as many crops as fit of a picture that is fed later."""
    begin, left = feed.looked, stretch.crops - feed.looked
    new = 0 if begin else 1
    if budget.costs.whole:
        return None
    count = next((n for n in range(left, 0, -1) if budget.fits(crops=n, pictures=new)), 0)
    if not count and budget.empty:
        count = min(left, budget.costs.least_crops)
    if not count:
        return None
    budget.add(crops=count, pictures=new)
    feed.looked += count
    return Look(feed.whole.start.ref, picture, begin, feed.looked)
