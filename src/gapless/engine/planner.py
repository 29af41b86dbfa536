"""What to launch next: a prefill of waiting requests or a decode of running ones.

Pure decisions over ledgers it is given; launches nothing. Prefills and decodes take turns when both could go, so that
neither starves the other. A row goes along when it has a page for its next position, fewer than `depth` steps in
flight, no unsampled forward, and its end is not certain already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gapless.engine.needs import InFlight, Room
from gapless.engine.sequence import Roster, Running
from gapless.records import DeviceLimits, PageGrant, Prefill, RowRef, Step, StepKind


class Admits(Protocol):
    """What the planner needs of admission."""

    def admit(self, limit: int, now: float) -> list[tuple[Running, Prefill]]:
        """Give rows and pages to the next requests in line."""
        ...


@dataclass(slots=True)
class Planner:
    """Chooses rows and grants pages. `lookahead`: tokens of room granted ahead; `prefills`: most in one step."""

    limits: DeviceLimits
    pages: Room
    roster: Roster
    admission: Admits
    lookahead: int
    prefills: int
    _next_id: int = 0
    _last: StepKind = StepKind.DECODE
    _starved: bool = False

    def next(self, pipeline: InFlight, now: float) -> Step | None:
        """Return the next step, or None when no slot is free or no row can go."""
        slot = pipeline.free_slot()
        if slot is None:
            return None
        prefill_first = self._last is StepKind.DECODE and not self._starved
        step = self._prefill(slot, now) if prefill_first else self._decode(slot, pipeline)
        if step is None:
            step = self._decode(slot, pipeline) if prefill_first else self._prefill(slot, now)
        if step is not None:
            self._last = step.kind
        return step

    def _prefill(self, slot: int, now: float) -> Step | None:
        if self._starved:  # pages that come back belong to rows that already run
            return None
        admitted = self.admission.admit(self.prefills, now)
        if not admitted:
            return None
        return Step(
            id=self._take_id(),
            kind=StepKind.PREFILL,
            rows=tuple(seq.ref for seq, _ in admitted),
            slot=slot,
            unsampled=_host_masked([seq for seq, _ in admitted]),
            prefills=tuple(prefill for _, prefill in admitted),
            freed=self.pages.take_freed(),
        )

    def _decode(self, slot: int, pipeline: InFlight) -> Step | None:
        going: list[Running] = []
        grants: list[PageGrant] = []
        self._starved = False
        for seq in self.roster.by_age():
            if not self._can_go(seq, pipeline):
                continue
            grant = self._room(seq, pipeline.refs(seq.ref))
            if grant is None:
                self._starved = True
                continue
            going.append(seq)
            grants.extend(grant)
        if self._starved:
            self._preempt_youngest()
            going = [seq for seq in going if not seq.preempting]
        if not going:
            return None
        rows = {seq.ref.row for seq in going}
        return Step(
            id=self._take_id(),
            kind=StepKind.DECODE,
            rows=tuple(seq.ref for seq in going),
            slot=slot,
            unsampled=_host_masked(going),
            grants=tuple(g for g in grants if g.row in rows),
            freed=self.pages.take_freed(),
        )

    def _can_go(self, seq: Running, pipeline: InFlight) -> bool:
        refs = pipeline.refs(seq.ref)
        return (
            not seq.finalized
            and not seq.preempting
            and refs < pipeline.depth
            and refs < seq.history.walker.remaining()
            and not pipeline.unsampled(seq.ref)
        )

    def _room(self, seq: Running, refs: int) -> tuple[PageGrant, ...] | None:
        """Grants that give the row a page for its next position: none needed, one, or None when the pool is empty."""
        size = self.limits.page_size
        position = seq.next_position(refs)
        if position < len(seq.pages) * size:
            return ()
        last = seq.base + seq.fresh + seq.history.walker.remaining() - 1
        wanted = -(-min(position + self.lookahead, last) // size) - len(seq.pages)
        taken = self.pages.take(min(wanted, self.pages.free)) if self.pages.free else None
        if not taken:
            return None
        grant = PageGrant(seq.ref.row, len(seq.pages), taken)
        seq.pages.extend(taken)
        return (grant,)

    def _preempt_youngest(self) -> None:
        """Mark the youngest sequence, unless pages are about to come back anyway (I5)."""
        sequences = self.roster.by_age()
        if len(sequences) > 1 and not any(seq.finalized or seq.preempting for seq in sequences):
            sequences[-1].preempting = True

    def parked_step(self, ref: RowRef, lane: int) -> Step:
        """The small step of one parked row."""
        return Step(id=self._take_id(), kind=StepKind.PARKED, rows=(ref,), slot=-1, lane=lane)

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id


def _host_masked(sequences: list[Running]) -> frozenset[int]:
    return frozenset(seq.ref.row for seq in sequences if seq.history.request.host_masked)
