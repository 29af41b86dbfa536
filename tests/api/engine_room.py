"""A runner on the simulated device, for tests of the engine's thread: real threads, integer answers, no torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Heard, ask, limits_of, table_of
from tests.fakes.sim_clock import SimClock
from tests.fakes.sim_device import Fault, SimDevice

from gapless.api.channel import Channel
from gapless.api.runner import Runner
from gapless.config import EngineConfig
from gapless.records import Arrival, Mask, Request, RowRef, Step

SPEC = HashSpec()
PATIENCE = 20.0
"""Seconds after which a wait in these tests counts as a hang."""


class GatedDevice(SimDevice):
    """Lets `wait` go on only while its gate is open; `reached` says that the loop stands before it."""

    def __init__(self, faults: tuple[Fault, ...] = (), depth: int = 2, rows: int = 5) -> None:
        limits = limits_of(SPEC, depth, rows=rows)
        super().__init__(limits, table_of(SPEC), SPEC, SimClock(), faults=faults)
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def wait(self, step: Step, rows: tuple[RowRef, ...]) -> Arrival:
        self.reached.set()
        assert self.gate.wait(PATIENCE), "the test forgot to open the gate"
        return super().wait(step, rows)


class BrokenDevice(GatedDevice):
    """Raises from one call what no step can be blamed for."""

    def __init__(self, call: str, error: BaseException) -> None:
        super().__init__()
        self.broken, self.error = call, error

    def release(self, ref: RowRef) -> None:
        if self.broken == "release":
            raise self.error
        super().release(ref)

    def finalize(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> None:
        if self.broken == "finalize":
            raise self.error
        super().finalize(step, masks)

    def wait(self, step: Step, rows: tuple[RowRef, ...]) -> Arrival:
        if self.broken == "wait":
            self.reached.set()
            assert self.gate.wait(PATIENCE)
            raise self.error
        return super().wait(step, rows)


def run(device: SimDevice, constraints: str = "device") -> Runner:
    """An engine thread around a device."""
    return Runner(device, table_of(SPEC), EngineConfig(lookahead=8, constraints=constraints))  # type: ignore[arg-type]


@dataclass
class Asked:
    """A submitted request with its way back. `id` is the runner's."""

    request: Request
    channel: Channel
    id: int

    def hear(self) -> Heard:
        """Everything up to the finish, without hanging for ever."""
        heard = Heard()
        within(lambda: self._read(heard))
        return heard

    def _read(self, heard: Heard) -> None:
        while heard.finish is None:
            emission = self.channel.get()
            assert emission.request_id == self.id
            heard.tokens.extend(emission.tokens)
            heard.finish = emission.finish


def submit(
    runner: Runner, request: Request | None = None, *, whole: bool = False, deadline: float | None = None
) -> Asked:
    """Submit a request (a plain one by default)."""
    request = request or ask(0)
    channel = Channel(whole)
    what = (request.prompt, request.program, request.sampling, deadline, channel)
    return Asked(request, channel, runner.submit(*what, grammar=request.grammar or request.guide))


def within(work: Callable[[], None], seconds: float = PATIENCE) -> None:
    """Run `work` in a thread; fail if it hangs."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"still waiting after {seconds} s"
    if failures:
        raise failures[0]


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that another thread brings about."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.002)


def engine_threads() -> list[threading.Thread]:
    """Threads of engines that still live."""
    return [t for t in threading.enumerate() if t.name.startswith("gapless-") and t.is_alive()]
