"""An engine that is ticked by hand, with what every tick and every step took.

In: any device, a table, the engine's settings. Out: a `Session` on the caller's thread, a `TickTimes` for every tick,
read from the engine's own accounting, and a `StepNote` for every step. What is done and in which order is unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from gapless.bench.trace import mark
from gapless.config import EngineConfig
from gapless.constrain.guided import GuidedMasks
from gapless.constrain.masks import MaskSource, TableMasks
from gapless.constrain.table import Table
from gapless.costs import Costs
from gapless.device.base import Device
from gapless.engine.build import Engine
from gapless.engine.mailbox import ThreadMailbox
from gapless.observe.meter import Part
from gapless.records import Arrival, DeviceLimits, Emission, Mask, Request, RowRef, Step, StepKind

Range = Callable[[str], AbstractContextManager[object]]
"""Opens a named range in a profiler's trace."""


@dataclass(frozen=True, slots=True)
class TickTimes:
    """Seconds of one tick, and what it launched and settled. `plan` is the planner's choice, `launch` the hand-over to
    the device, `wait` the time the host stood still for the device, `commit` all the rest of a tick; `busy` is the
    device's time in the step that was settled, `idle` its time without work before it."""

    plan: float
    launch: float
    wait: float
    commit: float
    busy: float
    idle: float
    launched: Step | None = None
    settled: Step | None = None

    @property
    def steady(self) -> bool:
        """One decode step was launched and one was settled."""
        return all(step is not None and step.kind is StepKind.DECODE for step in (self.launched, self.settled))

    def carries(self, rows: int) -> bool:
        """Whether it is steady and both steps have `rows` rows."""
        return self.steady and all(s is not None and len(s.rows) == rows for s in (self.launched, self.settled))


@dataclass(slots=True)
class StepNote:
    """A launched step and, once it was waited for, what came back. Made in constant time; summed up afterwards."""

    step: Step
    arrival: Arrival | None = None


class Watch:
    """A device with a watch in front of it. `calls` counts the protocol's calls, `settled_rows` the decode steps that
    were waited for by their number of rows; `range_of` opens a profiler's range around each launch, if one runs;
    `launched` and `settled`: the last steps of which that was asked.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.range_of: Range | None = None
        self.notes: list[StepNote] = []
        self.calls: dict[str, int] = dict.fromkeys(("launch", "finalize", "park", "wait", "release"), 0)
        self.settled_rows: Counter[int] = Counter()
        self.launched: Step | None = None
        self.settled: Step | None = None
        self._flying: dict[int, StepNote] = {}

    @property
    def costs(self) -> Costs | None:
        """See `Device`."""
        return self.device.costs

    @property
    def limits(self) -> DeviceLimits:
        """See `Device`."""
        return self.device.limits

    def launch(self, step: Step) -> None:
        """See `Device`."""
        self.calls["launch"] += 1
        note = self._flying[step.id] = StepNote(step)
        self.notes.append(note)
        if self.range_of is None:
            self.device.launch(step)
        else:
            with self.range_of(mark(step)):
                self.device.launch(step)
        self.launched = step

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
        arrival = self.device.wait(step, rows)
        self.settled = step
        if step.id in self._flying:
            self._flying.pop(step.id).arrival = arrival
        self.settled_rows[len(step.rows)] += step.kind is StepKind.DECODE
        return arrival

    def watch(self, steps: int) -> None:
        """See `Device`."""
        self.device.watch(steps)

    def release(self, ref: RowRef) -> None:
        """See `Device`."""
        self.calls["release"] += 1
        self.device.release(ref)

    def close(self) -> None:
        """See `Device`."""
        self.device.close()


class Session:
    """An engine on a watched device."""

    def __init__(self, device: Device, table: Table, config: EngineConfig, masks: MaskSource | None = None) -> None:
        """`masks`: of rows whose masks come from the host, None for those of the table."""
        self.watch = Watch(device)
        self.mailbox = ThreadMailbox()
        guided = GuidedMasks(self.mailbox.notify)
        self.engine = Engine(self.watch, table, config, masks or TableMasks(), self.mailbox, guided=guided)
        self.ticks: list[TickTimes] = []
        self._asked: list[int] = []

    def submit(self, requests: Iterable[Request]) -> None:
        """Leave requests for the next tick."""
        for request in requests:
            self._asked.append(request.id)
            self.mailbox.submit(request)

    def tick(self) -> list[Emission]:
        """One tick, and what it brought. Raises the error of a request that failed."""
        self._tick()
        news = self.engine.book.take_emissions()
        for emission in news:
            if emission.finish is not None and emission.finish.error is not None:
                raise emission.finish.error
        return news

    def _tick(self) -> None:
        meter, bubble, watch = self.engine.meter, self.engine.bubble, self.watch
        meter.enter(Part.ADMIT)  # what came between the ticks is not this one's
        before, watch.launched, watch.settled = list(meter.spent), None, None
        busy, idle = bubble.busy, bubble.idle
        self.engine.loop.tick()
        meter.enter(Part.DELIVER)
        busy, idle = bubble.busy - busy, bubble.idle - idle
        spent = [now - then for now, then in zip(meter.spent, before, strict=True)]
        plan, launch, wait = spent[Part.PLAN], spent[Part.LAUNCH], spent[Part.DEVICE]
        rest = sum(spent) - plan - launch - wait
        self.ticks.append(TickTimes(plan, launch, wait, rest, busy, idle, watch.launched, watch.settled))

    def run(self, until: Callable[[Session], bool] | None = None) -> None:
        """Tick until nothing is left to do, or until `until` says so before a tick."""
        while self.engine.loop.busy and not (until is not None and until(self)):
            self.tick()

    def drain(self) -> None:
        """Settle what is in flight and launch nothing; rows stay where they are."""
        while not self.engine.pipeline.empty:
            self.engine.loop.settle()

    def stop(self) -> None:
        """Cancel what was asked, let it drain, and audit the empty engine."""
        for request_id in self._asked:
            self.mailbox.cancel(request_id)
        self._asked.clear()
        while self.engine.loop.busy:
            self._tick()
            self.engine.book.take_emissions()
        self.engine.audit()
