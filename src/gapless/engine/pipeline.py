"""Steps in flight: which slots they hold, which rows ride on them, in which order they must be committed.

A pure state machine. It alone counts `inflight_refs` (I3) and says when a slot may be used again (I4). It does not
know devices, pages or sequences.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from gapless.errors import InvariantBroken
from gapless.records import Ints, Mask, RowRef, Rows, Step, StepKind


@dataclass(slots=True, eq=False)
class Flight:
    """A launched step. `waiting` rows have no token yet; `sampled` rows' records are landing or have landed; `fed` rows
    get none of this step."""

    step: Step
    waiting: set[RowRef] = field(default_factory=set)
    sampled: Rows = field(default_factory=Rows)
    fed: Rows = field(default_factory=Rows)


@dataclass(frozen=True, slots=True)
class Parked:
    """A row whose logits were set aside in a lane until its mask is ready."""

    ref: RowRef
    lane: int


class Pipeline:
    """Flights in commit order (I2), oldest first, and parked rows beside them.

    `rows`: how many the device has, with row 0, which never rides. A row takes at most `depth` lanes."""

    def __init__(self, depth: int, rows: int) -> None:
        self.depth = depth
        self.masked = 0
        """Rows that wait for host masks, in steps and in lanes."""
        self._slots: deque[int] = deque(range(depth))
        self._lanes: deque[int] = deque(range((rows - 1) * depth))
        self._flights: deque[Flight] = deque()
        self._parked: dict[RowRef, Parked] = {}
        self._unsampled = np.zeros(rows, dtype=np.bool_)  # by row number

    @property
    def empty(self) -> bool:
        """Nothing launched is uncommitted."""
        return not self._flights and not self._parked

    @property
    def parked(self) -> list[Parked]:
        """Rows in lanes, longest parked first."""
        return list(self._parked.values())

    @property
    def flights(self) -> list[Flight]:
        """Launched steps in commit order."""
        return list(self._flights)

    def free_slot(self) -> int | None:
        """Return a slot no step holds, or None."""
        return self._slots[0] if self._slots else None

    def refs_of(self, numbers: Ints) -> Ints:
        """How many launched steps contain each row (parked ones count): numbers int64 [n] -> int64 [n]."""
        refs: Ints = self._refs()[numbers]
        return refs

    def _refs(self) -> Ints:
        """By row number. Nobody asks while the same rows go again and again, so it is counted when somebody does."""
        refs = np.zeros(len(self._unsampled), dtype=np.int64)
        for flight in self._flights:
            refs[flight.sampled.numbers] += 1
            refs[flight.fed.numbers] += 1
            for ref in flight.waiting:
                refs[ref.row] += 1
        for ref in self._parked:
            refs[ref.row] += 1
        return refs

    def unsampled(self, ref: RowRef) -> bool:
        """Whether a launched forward of this row still waits for its host mask."""
        return bool(self._unsampled[ref.row])

    def carries(self, numbers: Ints) -> Mask:
        """Bool [n]: which of these rows, numbers int64 [n], may ride on one more step."""
        carries: Mask = (self.refs_of(numbers) < self.depth) & ~self._unsampled[numbers]
        return carries

    def kinds(self) -> set[StepKind]:
        """The kinds of steps that are uncommitted."""
        return {f.step.kind for f in self._flights}

    @property
    def slots_held(self) -> int:
        """How many uncommitted steps hold a slot. Parked rows and their small steps hold none."""
        return self.depth - len(self._slots)

    def launch(self, step: Step) -> Flight:
        """Enter a step that was launched; every row on it gains a ref."""
        if not self._slots or self._slots[0] != step.slot:
            raise InvariantBroken(f"I4: step {step.id} was launched into slot {step.slot}, which is not free")
        numbers = step.rows.numbers
        if self.masked and np.count_nonzero(self._unsampled[numbers]):
            ref = next(ref for ref in step.rows if self.unsampled(ref))
            raise InvariantBroken(f"I1: {ref} was launched again before it was sampled")
        if self.slots_held < len(self._flights) + len(self._parked):  # else nobody can be on so many
            refs = self.refs_of(numbers)
            if refs.max(initial=0) >= self.depth:
                ref = step.rows[int(refs.argmax())]
                raise InvariantBroken(f"I3: {ref} rides on {refs.max()} steps at depth {self.depth} already")
        self._slots.popleft()
        flight = Flight(step, sampled=step.rows)
        if step.unsampled or step.fed:
            flight.waiting = {ref for ref in step.rows if ref.row in step.unsampled}
            flight.fed = Rows(ref for ref in step.rows if ref.row in step.fed)
            flight.sampled = Rows(r for r in step.rows if r not in flight.waiting and r.row not in step.fed)
            self._unsampled[list(step.unsampled)] = True
            self.masked += len(flight.waiting)
        self._flights.append(flight)
        return flight

    def sampled(self, flight: Flight, refs: list[RowRef]) -> int:
        """Rows that waited for a mask now have a token, or were closed. Returns how many."""
        for ref in refs:
            flight.waiting.remove(ref)
            self._unsampled[ref.row] = False
        self.masked -= len(refs)
        flight.sampled = Rows((*flight.sampled, *refs))
        return len(refs)

    def park(self, flight: Flight) -> dict[RowRef, int]:
        """Move the waiting rows of a flight, and their refs, to lanes (the lanes are returned)."""
        lanes = {}
        for ref in sorted(flight.waiting, key=_row):
            lanes[ref] = self._lanes.popleft()
            self._parked[ref] = Parked(ref, lanes[ref])
        flight.waiting.clear()
        return lanes

    def unpark(self, parked: Parked, step: Step) -> None:
        """A parked row was sampled: from now on it is a small step of its own, last in the commit order."""
        del self._parked[parked.ref]
        self._unsampled[parked.ref.row] = False
        self.masked -= 1
        self._flights.append(Flight(step, sampled=step.rows))

    def must_settle(self, launched: Step | None) -> bool:
        """Whether the oldest step has to be committed now: no slot is left, or there was nothing to launch and the
        oldest flight has something to wait for."""
        if not self._slots:
            return True
        return launched is None and any(f.sampled or f.fed for f in self._flights)

    def oldest(self) -> Flight:
        """The flight to commit next."""
        return self._flights[0]

    def retire(self, flight: Flight) -> None:
        """The oldest flight's records were read: free its slot or lane, drop its refs."""
        if self._flights[0] is not flight or flight.waiting:
            raise InvariantBroken(f"I2: step {flight.step.id} is retired out of order or before it was sampled")
        self._flights.popleft()
        if flight.step.kind is StepKind.PARKED:
            self._lanes.append(flight.step.lane)
        else:
            self._slots.append(flight.step.slot)

    def held(self) -> dict[str, int]:
        """Slots, lanes and refs still out, for the audit."""
        return {"slots": self.slots_held, "lanes": len(self._parked), "refs": int(self._refs().sum())}


def _row(ref: RowRef) -> int:
    return ref.row
