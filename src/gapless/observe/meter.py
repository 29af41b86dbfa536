"""The meter: what the loop's thread did with its time, and what came of it. Always on.

In: the loop says which part it enters, and what was launched, landed and parked. Out: seconds by part and by number of
steps in flight, and the bubble and counters beside them; `accounting.Accounting` sums it up. Each moment belongs to
exactly one part, so the parts add up to the thread's whole time. It costs a clock reading a part and nothing a row.
"""

from __future__ import annotations

from enum import IntEnum

from gapless.observe.bubble import Bubble
from gapless.observe.counters import Counters
from gapless.observe.steps import Watched
from gapless.records import Arrival, Clock, Step, StepKind


class Part(IntEnum):
    """What the loop's thread is at: work up to DELIVER, from DEVICE on standing still for a reason."""

    PLAN = 0
    """Choosing the next step."""
    LAUNCH = 1
    """Handing a step to the device; a full picture arena is waited for in here."""
    FINALIZE = 2
    """Handing over host masks, and what is sampled with them."""
    COMMIT = 3
    """Reading a step's records and moving its requests on."""
    ADMIT = 4
    """Taking mail in, and giving back what ended requests held."""
    DELIVER = 5
    """Handing news to callers, between ticks."""
    DEVICE = 6
    """Waiting for the oldest step's results."""
    MASK = 7
    """Waiting for a host mask: nothing else is in flight."""
    MAIL = 8
    """Waiting for a request: there is nothing to do."""

    @property
    def waits(self) -> bool:
        """Whether the thread stands still in it."""
        return self >= Part.DEVICE

    @property
    def label(self) -> str:
        """Its name in reports."""
        return self.name.lower()


class Meter:
    """See the module. Written by the loop's thread alone; who reads it elsewhere may see one part half booked."""

    def __init__(self, clock: Clock, depth: int) -> None:
        self.counters = Counters()
        self.bubble = Bubble()
        self.watched = Watched()
        self.spent = [0.0] * len(Part)
        """Seconds by part."""
        self.held = [0.0] * (depth + 1)
        """Seconds by number of steps in flight (from the beginning of a launch until it has landed)."""
        self._now = clock.now
        self._part, self._since = Part.MAIL, clock.now()
        self._step: Step | None = None
        self._in_flight = 0

    def enter(self, part: Part, step: Step | None = None) -> float:
        """The thread turns to another part, for `step` if it concerns one. Returns the time."""
        at = self._now()
        self._turn(part, step, at)
        return at

    def _turn(self, part: Part, step: Step | None, at: float) -> None:
        spent = at - self._since
        self.spent[self._part] += spent
        self.held[self._in_flight] += spent
        self._part, self._since, self._step = part, at, step

    def launched(self, kind: StepKind, held: int) -> None:
        """A step was launched beside `held` others."""
        self._in_flight = held + 1
        self.counters.launched(kind, overlaps=held > 0)

    def parked(self, rows: int) -> None:
        """Rows were set aside for their masks."""
        self.counters.parked += rows

    def landed(self, step: Step, arrival: Arrival, in_flight: set[StepKind]) -> float:
        """The wait for a step has returned, the commit begins: at the moment the results were there, since reading
        them is part of it. Returns the time."""
        now = self._now()
        self._turn(Part.COMMIT, step, arrival.landed if self._since <= arrival.landed <= now else now)
        idle = self.bubble.note(step.kind, arrival)
        if self.watched.left > 0:
            self.watched.note(step, arrival, idle)
        self.counters.committed(step.kind, in_flight)
        return now

    def retired(self, held: int) -> None:
        """A step was committed, or has failed; `held` are left in flight. What the device did for one that never landed
        is unknown, so the time around it is not counted as idle."""
        if self._part is Part.DEVICE:
            self.bubble.rest()
        self._in_flight = held

    def rest(self) -> None:
        """Nothing is left to do."""
        self.bubble.rest()
        self.enter(Part.MAIL)
