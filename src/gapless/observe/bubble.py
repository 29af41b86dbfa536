"""The bubble: how long the device stood idle while there was work.

Fed with each step's times on the device's clock, in commit order; they are read when a step has landed, so knowing them
costs the device nothing. One stream computes everything. What it did not spend in steps between the first one's start
and the last one's end, it was idle: between steps, and where a step paused for host masks. A gap across `rest` (nothing
was asked of the engine) does not count. This is the one definition of idle: an answer's `idle_ms`, the totals, the
benchmarks and the timeline all use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gapless.records import Arrival, StepKind


@dataclass(slots=True)
class Busy:
    """Steps of one kind: how many, and device seconds spent in them."""

    steps: int = 0
    seconds: float = 0.0


def _by_kind() -> dict[StepKind, Busy]:
    return {kind: Busy() for kind in StepKind}


@dataclass(slots=True)
class Bubble:
    """Device seconds since the loop began: busy in steps of each kind, and idle in between."""

    kinds: dict[StepKind, Busy] = field(default_factory=_by_kind)
    idle: float = 0.0
    longest: float = 0.0
    """Seconds of the longest step of all."""
    _last_end: float | None = None

    def note(self, kind: StepKind, arrival: Arrival) -> float:
        """Take one step's times. Returns the idle seconds before and in it."""
        computed = arrival.ended - arrival.started - arrival.paused
        spent = self.kinds[kind]
        spent.steps += 1
        spent.seconds += computed
        self.longest = max(self.longest, computed)
        until = arrival.started if self._last_end is None else self._last_end
        self._last_end = max(until, arrival.ended)
        idle = self._last_end - until - computed  # below 0 for a step within a pause that was counted before
        self.idle += idle
        return idle

    def rest(self) -> None:
        """There is no work: what follows until the next step is not idle time."""
        self._last_end = None

    @property
    def steps(self) -> int:
        """Steps of all kinds."""
        return sum(spent.steps for spent in self.kinds.values())

    @property
    def busy(self) -> float:
        """Seconds in steps of all kinds."""
        return sum(spent.seconds for spent in self.kinds.values())

    @property
    def idle_share(self) -> float:
        """Idle seconds over busy + idle, 0..1; 0 before the first step."""
        total = self.busy + self.idle
        return self.idle / total if total else 0.0
