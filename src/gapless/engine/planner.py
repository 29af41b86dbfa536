"""What to launch next: a prefill of waiting requests or a decode of running ones.

Pure decisions over ledgers it is given; launches nothing. Prefills and decodes take turns when both could go, so that
neither starves the other; so rows decode between the parts of a prompt that is cut. A row goes along when its prompt is
launched, it has a page for its next position, fewer than `depth` steps in flight, no unsampled forward, and its end is
not certain already.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress
from typing import Protocol

import numpy as np

from gapless.engine.cutting import Part
from gapless.engine.needs import InFlight, Room
from gapless.engine.places import Places
from gapless.engine.sequence import Roster, Running
from gapless.records import DeviceLimits, Ints, Mask, PageGrant, RowRef, Rows, Step, StepKind


class Feeds(Protocol):
    """What the planner needs of whoever cuts prompts into parts."""

    @property
    def row(self) -> int | None:
        """The row whose prompt is not all launched."""
        ...

    def drop(self) -> None:
        """Let go of that prompt if its sequence leaves."""
        ...

    def next(self, now: float, *, lets_in: bool) -> list[tuple[Running, Part]]:
        """The parts of the next prefill step."""
        ...


@dataclass(slots=True)
class _All:
    """All running `rows`, but for one that is `fed`, went along when there had been so many `changes` of places, and
    none waits for a host mask. So they, `going`, can go `steps` times more without a look at each: until then none
    reaches its cap or lacks a page, and whenever a slot is free each has fewer than `depth` steps in flight."""

    rows: Rows = field(default_factory=Rows)
    going: Rows = field(default_factory=Rows)
    changes: int = 0
    fed: int | None = None
    steps: int = 0

    def holds(self, rows: Rows, changes: int, fed: int | None) -> bool:
        """Whether one of those steps is next, if these are all that run and their places changed so often."""
        return self.steps > 0 and rows is self.rows and changes == self.changes and fed == self.fed


@dataclass(slots=True)
class Planner:
    """Chooses rows and grants pages. `lookahead`: tokens of room granted ahead."""

    limits: DeviceLimits
    pages: Room
    roster: Roster
    places: Places
    feeder: Feeds
    lookahead: int
    _next_id: int = 0
    _last: StepKind = StepKind.DECODE
    _starved: bool = False
    _all: _All = field(default_factory=_All)

    def next(self, pipeline: InFlight, now: float) -> Step | None:
        """Return the next step, or None when no slot is free or no row can go."""
        self.feeder.drop()
        slot = pipeline.free_slot()
        if slot is None:
            return None
        prefill_first = self._last is StepKind.DECODE and (self.feeder.row is not None or not self._starved)
        step = self._prefill(slot, now) if prefill_first else self._decode(slot, pipeline)
        if step is None:
            step = self._decode(slot, pipeline) if prefill_first else self._prefill(slot, now)
        if step is not None:
            self._last = step.kind
        return step

    def _prefill(self, slot: int, now: float) -> Step | None:
        parts = self.feeder.next(now, lets_in=not self._starved)  # pages that come back belong to rows that run
        if not parts:
            return None
        last, end = parts[-1]
        return Step(
            id=self._take_id(),
            kind=StepKind.PREFILL,
            rows=Rows(seq.ref for seq, _ in parts),
            slot=slot,
            unsampled=_host_masked([seq for seq, part in parts if part.ends]),
            prefills=tuple(part.prefill for _, part in parts if part.prefill is not None),
            freed=self.pages.take_freed(),
            fed=frozenset() if end.ends else frozenset((last.ref.row,)),
            look=end.look,
        )

    def _decode(self, slot: int, pipeline: InFlight) -> Step | None:
        grants: tuple[PageGrant, ...] = ()
        if self._all.holds(self.roster.rows, self.places.changes, self.feeder.row):
            self._all.steps -= 1
            rows = self._all.going
        else:
            rows, grants = self._choose(pipeline)
            if not rows:
                return None
        return Step(
            id=self._take_id(),
            kind=StepKind.DECODE,
            rows=rows,
            slot=slot,
            unsampled=_host_masked(self.roster.on(rows)) if self.roster.masked else frozenset(),
            grants=grants,
            freed=self.pages.take_freed(),
        )

    def _choose(self, pipeline: InFlight) -> tuple[Rows, tuple[PageGrant, ...]]:
        """Running rows that can go, oldest first, with the pages they are granted for it."""
        rows, numbers, self._starved = self.roster.rows, self.roster.rows.numbers, False
        ends = self.places.position[numbers] + pipeline.refs_of(numbers)
        goes, fed = pipeline.carries(numbers) & (ends < self.places.cap[numbers]), self.feeder.row
        if fed is not None:
            goes &= numbers != fed
        grants = self._make_room(rows, goes, ends)
        count = np.count_nonzero(goes)
        going = rows if count == len(rows) else Rows(compress(rows, goes.tolist()))
        if count and count == len(rows) - (fed is not None) and not self.roster.masked:
            free = np.minimum(self.places.room[numbers], self.places.cap[numbers] - 1) - ends
            self._all = _All(rows, going, self.places.changes, fed, int(free[goes].min()))
        return going, grants

    def _make_room(self, rows: Rows, goes: Mask, ends: Ints) -> tuple[PageGrant, ...]:
        """Grants that let rows write up to `ends`, int64 [n], oldest first, and with them those that others would need
        soon, if there are pages enough. Rows that get none stay behind: `goes` is cleared; so does the one that is to
        be preempted for them, if it has to be."""
        room, last = self.places.room[rows.numbers], self.places.cap[rows.numbers] - 1
        lacks = goes & (ends > room)
        if not np.count_nonzero(lacks):
            return ()
        if self.pages.free > len(rows) * (self.lookahead // self.limits.page_size + 2):
            lacks = goes & (np.minimum(ends + self.lookahead // 2, last) > room)
        short, sequences = np.flatnonzero(lacks).tolist(), self.roster.by_age()
        grants = {i: grant for i in short if (grant := self._grant(sequences[i], int(ends[i])))}
        if len(grants) < len(short):
            self._starved = True
            goes[[i for i in short if i not in grants]] = False
            goes[-1] &= not self._preempts_youngest()
        return tuple(grant for i, grant in grants.items() if goes[i])

    def _grant(self, seq: Running, end: int) -> PageGrant | None:
        """Pages for a row that is to write up to `end`, and for some steps more; None when the pool is empty."""
        size, row = self.limits.page_size, seq.ref.row
        last = int(self.places.cap[row]) - 1
        wanted = -(-min(end - 1 + self.lookahead, last) // size) - len(seq.pages)
        taken = self.pages.take(min(wanted, self.pages.free)) if self.pages.free else None
        if not taken:
            return None
        grant = PageGrant(row, len(seq.pages), taken)
        seq.pages.extend(taken)
        self.places.room[row] = len(seq.pages) * size
        return grant

    def _preempts_youngest(self) -> bool:
        """Mark the youngest sequence, unless pages are about to come back anyway (I5). Returns whether it did."""
        if len(self.roster) < 2 or self.places.leaving:
            return False
        youngest = self.roster.by_age()[-1]
        youngest.preempting = True
        self.places.leave(youngest.ref.row)
        return True

    def parked_step(self, ref: RowRef, lane: int) -> Step:
        """The small step of one parked row."""
        return Step(id=self._take_id(), kind=StepKind.PARKED, rows=Rows((ref,)), slot=-1, lane=lane)

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id


def _host_masked(sequences: list[Running]) -> frozenset[int]:
    return frozenset(seq.ref.row for seq in sequences if seq.history.request.host_masked)
