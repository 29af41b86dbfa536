"""Single steps, for whoever watches: what each took, and how long the device stood idle before it.

In: steps and their arrivals from a meter, as they land. Out: the last `KEPT` of them, each told once. Nothing is kept
until somebody asks for a number of steps to be watched, and no more than those. One thread adds, another one may take.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gapless.records import Arrival, Lane, Step, StepKind

KEPT = 512
"""Steps that wait for whoever watches; of more the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step that landed. Times are seconds, `started` on the device's own clock.

    `idle`: how long the device stood idle before it (see `observe.bubble`). `sampling` None: where the forward ended
    was not marked, and `forward` is all of it.
    """

    id: int
    kind: StepKind
    rows: int
    started: float
    forward: float
    sampling: float | None
    idle: float

    @classmethod
    def of(cls, step: Step, arrival: Arrival, idle: float) -> StepTimes:
        """Of a step whose results are there."""
        computed = arrival.ended - arrival.started - arrival.paused
        spans = [span for span in arrival.spans if span.lane is Lane.COMPUTE]
        sampling = None
        if spans:
            sampling = sum((span.end - span.start for span in spans if span.name == "sampling"), 0.0)
            computed = max(0.0, computed - sampling)
        return cls(step.id, step.kind, len(step.rows), arrival.started, computed, sampling, idle)


class Watched:
    """Steps that are watched. `left`: how many more."""

    def __init__(self) -> None:
        self.left = 0
        self._kept: deque[StepTimes] = deque(maxlen=KEPT)

    def note(self, step: Step, arrival: Arrival, idle: float) -> None:
        """A step has landed while some were to be watched."""
        self.left -= 1
        self._kept.append(StepTimes.of(step, arrival, idle))

    def take(self) -> tuple[StepTimes, ...]:
        """Those that landed since the last call, the oldest first. For any thread."""
        found = []
        while self._kept:
            found.append(self._kept.popleft())
        return tuple(found)
