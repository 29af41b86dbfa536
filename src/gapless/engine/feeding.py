"""Which parts of which prompts go into the next prefill step: what is left of the one that is cut, then those in line.

In: what the device says its parts cost, how long a step may take, requests that admission lets in. Out: parts, in the
order in which they are computed. While nobody decodes, nobody is held up, and prompts go whole.

Invariants: one prompt at most is cut at a time, it comes last in its step, and nobody is let in before the rest of it
is launched; so whatever a later request finds of it in the prefix cache was launched before. One that ended, or makes
room, is dropped before anything else is planned.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gapless.costs import Costs
from gapless.engine.admission import Admitted
from gapless.engine.cutting import Budget, Feed, Part, cut
from gapless.engine.places import Places
from gapless.engine.prefix import Item
from gapless.engine.sequence import Roster, Running
from gapless.observe.counters import Counters
from gapless.records import DeviceLimits, Ints

_log = logging.getLogger("gapless.engine")


class Admits(Protocol):
    """What is needed of admission."""

    def __len__(self) -> int:
        """How many are in line."""
        ...

    def admit(self, now: float, *, first: bool) -> Admitted | None:
        """Give a row and pages to the next request in line."""
        ...

    def launches(self, seq: Running, items: tuple[Item, ...], kept: int) -> None:
        """So much of its prompt is launched by now, with so many more of its slots on the host."""
        ...

    def abandon(self, seq: Running) -> None:
        """The rest of its prompt is never launched."""
        ...


@dataclass(frozen=True, slots=True)
class Cutting:
    """How long a step may take, in seconds, on a device with these costs."""

    costs: Costs
    limit: float


class Feeder:
    """See the module. `most`: prompts in one step; `cutting` None: all go whole."""

    def __init__(
        self,
        limits: DeviceLimits,
        admission: Admits,
        roster: Roster,
        places: Places,
        most: int,
        cutting: Cutting | None,
        counters: Counters,
    ) -> None:
        self._limits = limits
        self._admission = admission
        self._roster = roster
        self._places = places
        self.most = most
        self.cutting = cutting
        self._counters = counters
        self._admitted: Admitted | None = None
        self._feed: Feed | None = None

    @property
    def row(self) -> int | None:
        """The row whose prompt is cut and not all launched."""
        return None if self._admitted is None else self._admitted.seq.ref.row

    def drop(self) -> None:
        """Let go of the prompt that is cut if its sequence ended or makes room."""
        if self._admitted is not None and (self._admitted.seq.finalized or self._admitted.seq.preempting):
            self._admission.abandon(self._admitted.seq)
            self._admitted = self._feed = None

    def next(self, now: float, *, lets_in: bool) -> list[tuple[Running, Part]]:
        """The parts of the next prefill step; without `lets_in` nobody gets a row."""
        parts: list[tuple[Running, Part]] = []
        if self._admitted is None and not (lets_in and len(self._admission)):
            return parts
        budget = self._budget()
        while len(parts) < self.most:
            if self._admitted is None and not (lets_in and budget.room and self._let_in(now, first=not parts)):
                break
            taken = self._cut(budget)
            if taken is None:
                break
            parts.append(taken)
            if not taken[1].ends or taken[0].history.alone:
                break
        if parts and budget.over:
            self._say(budget)
        return parts

    def _budget(self) -> Budget:
        if self.cutting is None:
            return Budget(WHOLE, None)
        return Budget(self.cutting.costs, self.cutting.limit if self._somebody_decodes() else None)

    def _somebody_decodes(self) -> bool:
        """Or will, when its prompt's last part has run."""
        rows: Ints = self._roster.rows.numbers
        wants = np.count_nonzero(self._places.cap[rows])
        own = self.row is not None and self._places.cap[self.row] > 0
        return bool(wants > own)

    def _let_in(self, now: float, *, first: bool) -> bool:
        admitted = self._admission.admit(now, first=first)
        if admitted is not None:
            seq, size = admitted.seq, self._limits.page_size
            self._places.begin(seq.ref.row, seq.history.walker, seq.base, len(seq.pages) * size)
            front = seq.history.request.prompt.picture is not None
            self._admitted, self._feed = admitted, Feed(admitted.prefill, self._limits.prefix, front)
        return admitted is not None

    def _cut(self, budget: Budget) -> tuple[Running, Part] | None:
        assert self._admitted is not None and self._feed is not None
        seq, feed = self._admitted.seq, self._feed
        part = cut(feed, budget)
        if part is None:
            return None
        if part.prefill is not None:
            kept = sum(place is not None for place in part.prefill.places)
            self._admission.launches(seq, self._admitted.items[: part.end - feed.first], kept)
        self._counters.prompt_parts += not part.ends
        if part.ends:
            self._admitted = self._feed = None
        return seq, part

    def _say(self, budget: Budget) -> None:
        """A part that cannot be cut takes longer than a step may."""
        if not self._counters.long_steps:
            _log.warning(
                "a step of %.1f ms (%d crops, %d tokens) is longer than max_step_ms, but cannot be cut; further ones "
                "are only counted",
                1e3 * budget.seconds,
                budget.crops,
                budget.tokens,
            )
        self._counters.long_steps += 1


WHOLE = Costs((), ())
"""Of a device on which nothing is cut."""
