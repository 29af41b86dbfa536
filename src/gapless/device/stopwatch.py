"""When steps began and ended on the GPU, in seconds.

In: marks on the compute stream. Out: times, once a step has landed. Each time is measured from the end of the step read
before it, so that small differences stay exact however long the engine runs. A step that waits for host masks comes in
several stretches: its forward, then what is sampled with masks; between them it pauses.

The clock's origin is arbitrary. A `detailed` watch also marks where a forward ends and what other streams do, and puts
it all on the host's `time.perf_counter` by an anchor: a mark that an idle stream reaches between two readings of that
clock. It is off by half of what lies between them, some microseconds, and by how far the two clocks drift apart until
the next anchor, which is taken when nothing is in flight and a second has passed. For the next `forwards` steps any
watch marks where a forward ends, and nothing else.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from operator import itemgetter

from gapless.device.runtime import Event, Runtime
from gapless.records import DeviceSpan, Lane

ANCHORS = 5
"""Tries at an anchor; the tightest counts."""
AGAIN = 1.0
"""Seconds after which an anchor is renewed, once nothing is in flight."""


@dataclass(slots=True)
class Stretch:
    """Marks around work of a step that was enqueued at once; `split`: where its forward ends and sampling begins."""

    name: str
    begin: Event
    split: Event | None = None
    end: Event | None = None


@dataclass(slots=True)
class Marks:
    """All marks of a step: on the compute stream, and begin and end of what other streams do for it."""

    stretches: list[Stretch] = field(default_factory=list)
    beside: list[tuple[Lane, Event, Event]] = field(default_factory=list)


NOTHING = Marks()
"""Of a step that never began; nobody adds to it."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds on the watch's clock; for `paused` of them the step computed nothing."""

    started: float
    ended: float
    paused: float = 0.0
    spans: tuple[DeviceSpan, ...] = ()


class Stopwatch:
    """Timed events of steps in flight; read in commit order."""

    def __init__(self, runtime: Runtime, detailed: bool = False) -> None:
        self.detailed = detailed
        self.forwards = 0
        """Steps left whose forward's end is marked too; any thread may set it."""
        self._runtime = runtime
        self._spare: deque[Event] = deque()
        self._marks: dict[int, Marks] = {}
        self._anchor: Event | None = None
        self._at = 0.0
        self._anchored = float("-inf")

    def start(self, step: int, name: str = "forward") -> None:
        """The compute stream begins, or goes on, with the step here."""
        if self.detailed and not self._marks and time.perf_counter() - self._anchored > AGAIN:
            self._set_anchor()
        marks, begin = self._marks.get(step), self._take()
        if marks is None:
            marks = self._marks[step] = Marks()
        marks.stretches.append(Stretch(name, begin))
        self._runtime.mark(begin)

    def split(self, step: int) -> None:
        """The forward ends here, sampling begins."""
        if self.detailed or self.forwards > 0:
            self.forwards -= 1
            self._marks[step].stretches[-1].split = split = self._take()
            self._runtime.mark(split)

    def stop(self, step: int) -> Event:
        """The compute stream ends with the step here, so far; the mark."""
        stretch = self._marks[step].stretches[-1]
        stretch.end = stretch.end or self._take()
        self._runtime.mark(stretch.end)
        return stretch.end

    def beside(self, step: int, lane: Lane, end: Event) -> Event | None:
        """Another stream works for the step until `end`; the mark to set where it begins, if that is to be known."""
        if not self.detailed:
            return None
        begin = self._take()
        self._marks[step].beside.append((lane, begin, end))
        return begin

    def read(self, step: int) -> Times:
        """When a step that has landed began and ended; twice the last time known if it never ran to its end."""
        marks, spare = self._marks.pop(step, NOTHING), self._spare
        anchor, last, started, ended, ran, told = self._anchor, None, None, self._at, 0.0, self.detailed
        for stretch in marks.stretches:
            spare.append(stretch.begin)
            if stretch.split is not None:
                spare.append(stretch.split)
                told = True
            if stretch.end is not None:
                anchor = anchor or stretch.begin
                began, ended = self._since(anchor, stretch.begin), self._since(anchor, stretch.end)
                started = began if started is None else started
                ran += ended - began
                if last is not None:
                    spare.append(last)
                last = stretch.end
        spare.extend(begin for _, begin, _ in marks.beside)
        if anchor is None or last is None or started is None:
            return Times(self._at, self._at)
        spans = self._spans(anchor, marks) if told else ()
        if self._anchor is not None:
            spare.append(self._anchor)
        self._anchor, self._at = last, ended
        return Times(started, ended, max(0.0, ended - started - ran), spans)

    def _spans(self, anchor: Event, marks: Marks) -> tuple[DeviceSpan, ...]:
        found = []
        for stretch in marks.stretches:
            if stretch.end is not None:
                begin, end = self._since(anchor, stretch.begin), self._since(anchor, stretch.end)
                split = end if stretch.split is None else self._since(anchor, stretch.split)
                found.append(DeviceSpan(Lane.COMPUTE, stretch.name, begin, split))
                if stretch.split is not None:
                    found.append(DeviceSpan(Lane.COMPUTE, "sampling", split, end))
        for lane, begin_mark, end_mark in marks.beside:
            begin, end = self._since(anchor, begin_mark), self._since(anchor, end_mark)
            found.append(DeviceSpan(lane, lane.value, begin, end))
        return tuple(found)

    def _since(self, anchor: Event, event: Event) -> float:
        return self._at + self._runtime.seconds(anchor, event)

    def _set_anchor(self) -> None:
        """Begin anew on the host's clock; waits for the compute stream, which has nothing to do."""
        tries = []
        for _ in range(ANCHORS):
            event, before = self._take(), time.perf_counter()
            self._runtime.mark(event)
            event.synchronize()
            after = time.perf_counter()
            tries.append((after - before, (before + after) / 2, event))
        best = min(tries, key=itemgetter(0))
        self._spare.extend(event for _, _, event in tries if event is not best[2])
        if self._anchor is not None:
            self._spare.append(self._anchor)
        _, self._at, self._anchor = best
        self._anchored = self._at

    def _take(self) -> Event:
        return self._spare.popleft() if self._spare else self._runtime.event(timed=True)
