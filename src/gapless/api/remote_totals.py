"""What an engine's process has told of its totals and steps, and who waits to hear it again.

In: `wire.Totals` as they come, from the thread that listens. Out: the last ones, and each step once. Questions are
answered in the order in which they were asked; after the end nobody waits.
"""

from __future__ import annotations

from collections import deque
from queue import SimpleQueue

from gapless.api import wire
from gapless.observe.accounting import Accounting, Standing
from gapless.observe.steps import KEPT, StepTimes

TOTALS_WAIT = 5.0
"""Seconds that the engine gets to answer for its totals; after that the last ones known are given."""
SNAPSHOT_WAIT = 1.0
"""The same, for a snapshot."""


class Totals:
    """See the module."""

    def __init__(self, totals: Accounting) -> None:
        self.accounting = totals
        self.standing = Standing()
        self._asked: deque[SimpleQueue[None]] = deque()
        self._steps: deque[StepTimes] = deque(maxlen=KEPT)

    def ask(self) -> SimpleQueue[None]:
        """Somebody waits from now on: for an item. To be called in the order in which `Tell` is sent."""
        answer: SimpleQueue[None] = SimpleQueue()
        self._asked.append(answer)
        return answer

    def heard(self, said: wire.Totals) -> None:
        """The answer to the oldest question."""
        self.accounting, self.standing = said.totals, said.standing
        self._steps.extend(said.steps)
        self._asked.popleft().put(None)

    def end(self) -> None:
        """Nobody answers any more."""
        while self._asked:
            self._asked.popleft().put(None)

    def steps(self) -> tuple[StepTimes, ...]:
        """Steps that were told of since the last call. For any thread."""
        found = []
        while self._steps:
            found.append(self._steps.popleft())
        return tuple(found)
