"""The engine's loop with a watch on its parts, so that the loop itself stays clean.

In: any device, a table, the engine's settings. Out: a `Session` that is ticked by hand on the caller's thread, a
`TickTimes` for every tick and a `StepNote` for every step. `plan` is the planner's choice, `launch` the hand-over to
the device, `wait` the time the host stood still for the device, `commit` all the rest of a tick. Nothing is changed in
what is done or in which order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from time import perf_counter

from gapless.bench.trace import mark
from gapless.config import EngineConfig
from gapless.constrain.masks import TableMasks
from gapless.constrain.table import Table
from gapless.device.base import Device
from gapless.engine.build import Engine
from gapless.engine.loop import Loop
from gapless.engine.mailbox import ThreadMailbox
from gapless.engine.planner import Planner
from gapless.records import Arrival, DeviceLimits, Emission, Flags, InFlight, Mask, Request, RowRef, Step, StepKind

Range = Callable[[str], AbstractContextManager[object]]
"""Opens a named range in a profiler's trace."""


def no_range(name: str) -> AbstractContextManager[object]:
    """No profiler runs."""
    return nullcontext(name)


class Blocked:
    """How long the host stood still: a context that adds up the seconds spent in it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._began


@dataclass(slots=True)
class TickTimes:
    """Seconds of one tick's parts, and what it launched and settled."""

    plan: float = 0.0
    launch: float = 0.0
    wait: float = 0.0
    total: float = 0.0
    launched: Step | None = None
    settled: Step | None = None

    @property
    def commit(self) -> float:
        """What is neither plan nor launch nor wait."""
        return self.total - self.plan - self.launch - self.wait

    @property
    def steady(self) -> bool:
        """One decode step was launched and one was settled."""
        return all(step is not None and step.kind is StepKind.DECODE for step in (self.launched, self.settled))


@dataclass(slots=True)
class StepNote:
    """A launched step and, once it was waited for, what came back. Made in constant time; summed up afterwards."""

    step: Step
    arrival: Arrival | None = None

    @property
    def tokens(self) -> int:
        """How many tokens it sampled."""
        return sum(record.token is not None for record in self.arrival.records) if self.arrival else 0

    @property
    def muted(self) -> int:
        """How many of its rows had ended before it."""
        return sum(bool(record.flags & Flags.MUTED) for record in self.arrival.records) if self.arrival else 0


class Watch:
    """A device with a watch in front of it. `calls` counts the protocol's calls, `settled_rows` the decode steps that
    were waited for by their number of rows; `range_of` opens a profiler's range around each launch.

    `blocked`: where the device notes how long its `wait` stood still; without one, all of `wait` counts as that.
    """

    def __init__(self, device: Device, blocked: Blocked | None = None) -> None:
        self.device = device
        self.blocked = blocked or Blocked()
        self._whole_wait = blocked is None
        self.range_of: Range = no_range
        self.notes: list[StepNote] = []
        self.calls: dict[str, int] = dict.fromkeys(("launch", "finalize", "park", "wait", "release"), 0)
        self.settled_rows: Counter[int] = Counter()
        self.settled: Step | None = None
        self._flying: dict[int, StepNote] = {}

    @property
    def limits(self) -> DeviceLimits:
        """See `Device`."""
        return self.device.limits

    def launch(self, step: Step) -> None:
        """See `Device`."""
        self.calls["launch"] += 1
        note = self._flying[step.id] = StepNote(step)
        self.notes.append(note)
        with self.range_of(mark(step)):
            self.device.launch(step)

    def finalize(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> None:
        """See `Device`."""
        self.calls["finalize"] += 1
        self.device.finalize(step, masks)

    def park(self, step: Step, lanes: Mapping[RowRef, int]) -> None:
        """See `Device`."""
        self.calls["park"] += 1
        self.device.park(step, lanes)

    def wait(self, step: Step, rows: tuple[RowRef, ...]) -> Arrival:
        """See `Device`."""
        self.calls["wait"] += 1
        with self.blocked if self._whole_wait else nullcontext():
            arrival = self.device.wait(step, rows)
        self.settled = step
        if step.id in self._flying:
            self._flying.pop(step.id).arrival = arrival
        self.settled_rows[len(step.rows)] += step.kind is StepKind.DECODE
        return arrival

    def release(self, ref: RowRef) -> None:
        """See `Device`."""
        self.calls["release"] += 1
        self.device.release(ref)

    def close(self) -> None:
        """See `Device`."""
        self.device.close()


class TimedPlanner(Planner):
    """The planner, timed."""

    spent = 0.0

    def next(self, pipeline: InFlight, now: float) -> Step | None:
        """See `Planner`."""
        began = perf_counter()
        step = super().next(pipeline, now)
        self.spent += perf_counter() - began
        return step


class TimedLoop(Loop):
    """The loop, timed; `ticks` grows by one entry a tick."""

    def __init__(self, loop: Loop, watch: Watch) -> None:
        super().__init__(**{field.name: getattr(loop, field.name) for field in fields(Loop)})
        self.timed_planner = TimedPlanner(*(getattr(loop.planner, field.name) for field in fields(Planner)))
        self.planner = self.timed_planner
        self.watch = watch
        self.ticks: list[TickTimes] = []
        self._now = TickTimes()

    def tick(self) -> bool:
        """See `Loop`."""
        self._now = TickTimes()
        self.timed_planner.spent, self.watch.blocked.seconds, self.watch.settled = 0.0, 0.0, None
        began = perf_counter()
        busy = super().tick()
        self._now.total = perf_counter() - began
        self._now.plan, self._now.wait = self.timed_planner.spent, self.watch.blocked.seconds
        self._now.settled = self.watch.settled
        self.ticks.append(self._now)
        return busy

    def _launch(self, step: Step) -> None:
        began = perf_counter()
        super()._launch(step)
        self._now.launch += perf_counter() - began
        self._now.launched = step

    def drain(self) -> None:
        """Settle what is in flight and launch nothing; rows stay where they are."""
        while not self.pipeline.empty:
            self._settle()


class Session:
    """An engine on a watched device."""

    def __init__(self, device: Device, table: Table, config: EngineConfig, blocked: Blocked | None = None) -> None:
        self.watch = Watch(device, blocked)
        self.mailbox = ThreadMailbox()
        self.engine = Engine(self.watch, table, config, TableMasks(), self.mailbox)
        self.loop = TimedLoop(self.engine.loop, self.watch)
        self.engine.loop = self.loop
        self._asked: list[int] = []

    def submit(self, requests: Iterable[Request]) -> None:
        """Leave requests for the next tick."""
        for request in requests:
            self._asked.append(request.id)
            self.mailbox.submit(request)

    def tick(self) -> list[Emission]:
        """One tick, and what it brought. Raises the error of a request that failed."""
        self.loop.tick()
        news = self.engine.book.take_emissions()
        for emission in news:
            if emission.finish is not None and emission.finish.error is not None:
                raise emission.finish.error
        return news

    def run(self, until: Callable[[Session], bool] | None = None) -> None:
        """Tick until nothing is left to do, or until `until` says so before a tick."""
        while self.loop.busy and not (until is not None and until(self)):
            self.tick()

    def stop(self) -> None:
        """Cancel what was asked, let it drain, and audit the empty engine."""
        for request_id in self._asked:
            self.mailbox.cancel(request_id)
        self._asked.clear()
        while self.loop.busy:
            self.loop.tick()
            self.engine.book.take_emissions()
        self.engine.audit()
