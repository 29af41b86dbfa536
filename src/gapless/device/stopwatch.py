"""When steps began and ended on the GPU, in seconds on its own clock.

In: marks on the compute stream. Out: times, once a step has landed. Each time is measured from the end of the step read
before it, so that small differences stay exact however long the engine runs.
"""

from __future__ import annotations

from collections import deque

from gapless.device.runtime import Event, Runtime


class Stopwatch:
    """Timed events of steps in flight; read in commit order."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._spare: deque[Event] = deque()
        self._spans: dict[int, tuple[Event, Event | None]] = {}
        self._anchor: Event | None = None
        self._at = 0.0

    def start(self, step: int) -> None:
        """The compute stream begins with the step here."""
        begin = self._take()
        self._spans[step] = begin, None
        self._runtime.mark(begin)

    def stop(self, step: int) -> Event:
        """The compute stream ends with the step here, so far; the mark."""
        begin, end = self._spans[step]
        end = end or self._take()
        self._spans[step] = begin, end
        self._runtime.mark(end)
        return end

    def read(self, step: int) -> tuple[float, float]:
        """When a step that has landed began and ended; twice the last time known if it never ran to its end."""
        begin, end = self._spans.pop(step, (None, None))
        if begin is None or end is None:
            if begin is not None:
                self._spare.append(begin)
            return self._at, self._at
        anchor = self._anchor or begin
        started = self._at + self._runtime.seconds(anchor, begin)
        self._at += self._runtime.seconds(anchor, end)
        self._anchor = end
        self._spare.append(begin)
        if anchor is not begin:
            self._spare.append(anchor)
        return started, self._at

    def _take(self) -> Event:
        return self._spare.popleft() if self._spare else self._runtime.event(timed=True)
