"""The bubble: how long the device stood idle while there was work.

Fed with each step's start and end on the device's clock, in commit order. A gap between the end of one step and the
start of the next counts as idle; a gap across `rest` (nothing was asked of the engine) does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from gapless.records import Arrival, StepKind


@dataclass(slots=True)
class Bubble:
    """Device seconds since the loop began: busy in steps of each kind, and idle between steps."""

    steps: int = 0
    decode_steps: int = 0
    decode_busy: float = 0.0
    busy: float = 0.0
    idle: float = 0.0
    _last_end: float | None = None

    def note(self, kind: StepKind, arrival: Arrival) -> None:
        """Take one step's times."""
        spent = arrival.ended - arrival.started
        self.steps += 1
        self.busy += spent
        if kind is StepKind.DECODE:
            self.decode_steps += 1
            self.decode_busy += spent
        if self._last_end is not None:
            self.idle += max(0.0, arrival.started - self._last_end)
        self._last_end = max(arrival.ended, self._last_end or arrival.ended)

    def rest(self) -> None:
        """There is no work: what follows until the next step is not idle time."""
        self._last_end = None

    @property
    def idle_share(self) -> float:
        """Idle seconds over busy + idle, 0..1; 0 before the first step."""
        total = self.busy + self.idle
        return self.idle / total if total else 0.0
