"""A recording: what the loop's thread and the device's streams did, span by span, while `record` is on.

Like a profiler's, recording is the process's: every engine and device that is made within `with record() as recording:`
writes into it, whoever made them. In: parts from a meter, arrivals from the loop. Out: spans, for `observe.chrome` and
`observe.figure`. The memory is bounded: of more than `capacity` spans the oldest are forgotten, and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gapless.observe.meter import Meter, Part
from gapless.records import Arrival, Clock, Flags, Step, StepKind

CAPACITY = 200_000
"""Spans; about 25,000 steps, in about 50 MB."""
LOOP = "loop"
"""The lane of the loop's thread; the others are `records.Lane`."""


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that took time. Seconds on `time.perf_counter`.

    `engine` counts from 0 as engines were made. `name`: a label of `Part` on the lane `loop`; forward, sampling, copy
    or upload on the device's. `step` is what it was done for (None: for none), `zombies` how many of its rows had ended
    before it, known once it has landed.
    """

    engine: int
    lane: str
    name: str
    start: float
    end: float
    step: Step | None = None
    zombies: int | None = None

    @property
    def decodes(self) -> bool:
        """Whether it belongs to a decode step."""
        return self.step is not None and self.step.kind is StepKind.DECODE


class Recording:
    """See the module. `depths`: of each engine, in the order they were made."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.depths: list[int] = []
        self._spans: deque[Span] = deque(maxlen=capacity)
        self._count = 0

    def enter(self, depth: int) -> int:
        """An engine was made; its number."""
        self.depths.append(depth)
        return len(self.depths) - 1

    def add(self, span: Span) -> None:
        """Keep a span."""
        self._spans.append(span)
        self._count += 1

    @property
    def dropped(self) -> int:
        """How many spans were forgotten."""
        return self._count - len(self._spans)

    def spans(self, engine: int | None = None) -> list[Span]:
        """What is kept, of one engine or of all, by start."""
        return sorted((s for s in list(self._spans) if engine is None or s.engine == engine), key=_start)


class RecordingMeter(Meter):
    """A meter that also keeps each part as a span, and what arrivals say of the device's streams."""

    def __init__(self, clock: Clock, depth: int, recording: Recording) -> None:
        super().__init__(clock, depth)
        self._recording = recording
        self._engine = recording.enter(depth)

    def _turn(self, part: Part, step: Step | None, at: float) -> None:
        if at > self._since or self._step is not None:
            self._recording.add(Span(self._engine, LOOP, self._part.label, self._since, at, self._step))
        super()._turn(part, step, at)

    def landed(self, step: Step, arrival: Arrival, in_flight: set[StepKind]) -> float:
        """See `Meter`."""
        now = super().landed(step, arrival, in_flight)
        zombies = sum(Flags.MUTED in record.flags for record in arrival.records)
        for did in arrival.spans:
            self._recording.add(Span(self._engine, did.lane.value, did.name, did.start, did.end, step, zombies))
        return now


_current: Recording | None = None


def current() -> Recording | None:
    """The recording that is on, if one is."""
    return _current


@contextmanager
def record(capacity: int = CAPACITY) -> Iterator[Recording]:
    """Record all engines that are made in this block. Raises `RuntimeError` within another one."""
    global _current  # noqa: PLW0603 - one profiler per process
    if _current is not None:
        raise RuntimeError("a recording is on already; end it before the next")
    _current = Recording(capacity)
    try:
        yield _current
    finally:
        _current = None


def meter_for(clock: Clock, depth: int) -> Meter:
    """An engine's meter: one that records, while a recording is on."""
    return Meter(clock, depth) if _current is None else RecordingMeter(clock, depth, _current)


def _start(span: Span) -> float:
    return span.start
