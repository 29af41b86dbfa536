"""When steps began and ended on the GPU, in seconds on its own clock.

In: marks on the compute stream. Out: times, once a step has landed. Each time is measured from the end of the step read
before it, so that small differences stay exact however long the engine runs. A step that waits for host masks comes in
several stretches: its forward, then what is sampled with masks; between them it pauses.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gapless.device.runtime import Event, Runtime


@dataclass(slots=True)
class Stretch:
    """Marks around work of a step that was enqueued at once."""

    begin: Event
    end: Event | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds on the GPU's clock; for `paused` of them the step computed nothing."""

    started: float
    ended: float
    paused: float = 0.0


class Stopwatch:
    """Timed events of steps in flight; read in commit order."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._spare: deque[Event] = deque()
        self._stretches: dict[int, list[Stretch]] = {}
        self._anchor: Event | None = None
        self._at = 0.0

    def start(self, step: int) -> None:
        """The compute stream begins, or goes on, with the step here."""
        begin = self._take()
        self._stretches.setdefault(step, []).append(Stretch(begin))
        self._runtime.mark(begin)

    def stop(self, step: int) -> Event:
        """The compute stream ends with the step here, so far; the mark."""
        stretch = self._stretches[step][-1]
        stretch.end = stretch.end or self._take()
        self._runtime.mark(stretch.end)
        return stretch.end

    def read(self, step: int) -> Times:
        """When a step that has landed began and ended; twice the last time known if it never ran to its end."""
        stretches = self._stretches.pop(step, [])
        whole = [(stretch.begin, stretch.end) for stretch in stretches if stretch.end is not None]
        self._spare.extend(stretch.begin for stretch in stretches if stretch.end is None)
        if not whole:
            return Times(self._at, self._at)
        anchor = self._anchor or whole[0][0]
        times = [(self._since(anchor, begin), self._since(anchor, end)) for begin, end in whole]
        started, ended, last = times[0][0], times[-1][1], whole[-1][1]
        self._spare.extend(event for marks in whole for event in marks if event is not last)
        if self._anchor is not None:
            self._spare.append(self._anchor)
        self._anchor, self._at = last, ended
        return Times(started, ended, max(0.0, ended - started - sum(end - begin for begin, end in times)))

    def _since(self, anchor: Event, event: Event) -> float:
        return self._at + self._runtime.seconds(anchor, event)

    def _take(self) -> Event:
        return self._spare.popleft() if self._spare else self._runtime.event(timed=True)
