"""Two in-order workers that stand for a GPU's compute and copy streams.

In: operations of flights, from the loop's thread. Out: lines in landing buffers, and an event per operation. The
compute worker alone runs torch; behind each of its operations the copy worker copies the lines late, as a real copy
would land late. Nothing here spins: workers block on their queues, the loop on events.

A failing operation fails its flight and mutes its rows; later flights go on. A `MemoryError` or `DeviceLost` loses the
device: its flight and all later ones end with `DeviceLost`. `stop` lets whatever is queued end that way too.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np
import torch

from gapless.config import HostDeviceConfig
from gapless.device.executor import Executor
from gapless.device.record import Lines
from gapless.errors import DeviceLost, GaplessError, InvariantBroken, StepFailed
from gapless.records import POISON, RowRef, Step

Operation = Callable[[], None]

_CLOSED = "the device was closed; load the model again"


@dataclass(slots=True, eq=False)
class Landing:
    """The host's copy of one slot's or lane's lines, allocated once. `source` is the device's own buffer.

    Only the copy worker writes `host` while a flight holds it, and it is read behind the flight's events.
    """

    source: Lines
    host: Lines
    holder: Flight | None = None

    def take(self, flight: Flight, poison: bool) -> None:
        """Reserve for a flight; raises `InvariantBroken` if another's lines were not read yet (I4)."""
        if self.holder is not None and not self.holder.read:
            raise InvariantBroken(
                f"I4: step {flight.step.id} lands where step {self.holder.step.id}'s records were not read yet"
            )
        self.holder = flight
        if poison:
            self.host[:] = POISON


@dataclass(slots=True, eq=False)
class Flight:
    """A launched step on its way. `waiting` rows are unsampled, `ready` ones sampled or closed.

    The workers set `error`, `started` and `ended`; the loop reads them behind the events in `landed`. `origin` is the
    flight whose forward a parked row was computed in: its failure is the parked row's too.
    """

    step: Step
    landing: Landing
    waiting: set[RowRef]
    ready: set[RowRef]
    origin: Flight | None = None
    landed: list[threading.Event] = field(default_factory=list)
    error: BaseException | None = None
    started: float | None = None
    ended: float = 0.0
    read: bool = False


class Stream:
    """One thread that runs operations in the order they came, each after a seeded pause."""

    def __init__(self, name: str, pause_seed: int | None, pause_ms: float) -> None:
        self._queue: SimpleQueue[Operation | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._door = threading.Lock()
        pauses = None if pause_seed is None or pause_ms <= 0 else (random.Random(pause_seed), pause_ms / 1000)
        self._thread = threading.Thread(
            target=_run_stream, args=(self._queue, self._stopping, pauses), name=name, daemon=True
        )
        self._thread.start()

    def submit(self, operation: Operation) -> bool:
        """Enqueue an operation (it handles its own exceptions). False, and nothing enqueued, after `stop`."""
        with self._door:
            if not self._stopping.is_set():
                self._queue.put(operation)
                return True
            return False

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called: what is still queued should end quickly."""
        return self._stopping.is_set()

    def sleep(self, seconds: float) -> None:
        """Pause the calling operation; cut short by `stop`."""
        self._stopping.wait(seconds)

    def stop(self) -> None:
        """Let the thread end after what is queued, and wait for it (never for itself)."""
        with self._door:
            self._stopping.set()
            self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()


def _run_stream(
    queue: SimpleQueue[Operation | None], stopping: threading.Event, pauses: tuple[random.Random, float] | None
) -> None:
    while (operation := queue.get()) is not None:
        if pauses is not None:
            stopping.wait(pauses[0].random() * pauses[1])
        operation()
        del operation  # an idle worker keeps nothing alive


class Streams:
    """The compute and the copy worker with the executor the former owns."""

    def __init__(self, build: Callable[[], Executor], config: HostDeviceConfig) -> None:
        seed = config.jitter_seed
        self._delay = config.copy_delay_ms / 1000
        self._compute = Stream("gapless-compute", seed, config.jitter_ms)
        self._copy = Stream("gapless-copy", None if seed is None else seed + 1, config.jitter_ms)
        self._lost: DeviceLost | None = None
        self._executor: Executor | None = None
        try:
            self._executor = self._on_worker(build)
        except BaseException:
            self.stop()
            raise

    @property
    def executor(self) -> Executor:
        """What the compute worker runs; raises `DeviceLost` after `stop`."""
        if self._executor is None:
            raise DeviceLost(_CLOSED)
        return self._executor

    def _on_worker(self, build: Callable[[], Executor]) -> Executor:
        built: Future[Executor] = Future()

        def run() -> None:
            try:
                with torch.inference_mode():
                    built.set_result(build())
            except BaseException as error:
                built.set_exception(error)

        self._compute.submit(run)
        return built.result()

    def enqueue(self, flight: Flight, compute: Operation, lines: list[int]) -> None:
        """Enqueue one computation of a flight; behind it `lines` are copied out and an event is set."""
        landed = threading.Event()
        flight.landed.append(landed)

        def run() -> None:
            self._run(flight, compute)
            if not self._copy.submit(copy):
                landed.set()

        def copy() -> None:
            self._copy_out(flight, lines)
            landed.set()

        if not self._compute.submit(run):
            flight.error = DeviceLost(_CLOSED)
            landed.set()

    def enqueue_silent(self, flight: Flight | None, compute: Operation) -> None:
        """Enqueue an operation nobody waits for; a failure is its flight's, or without one loses the device."""

        def run() -> None:
            try:
                if self._lost is None and not self._compute.stopping and (flight is None or flight.error is None):
                    with torch.inference_mode():
                        compute()
            except BaseException as error:
                self._fail(flight, error)

        self._compute.submit(run)

    def stop(self) -> None:
        """End both workers, the compute worker first: what it has queued still tells the copy worker. Idempotent.

        The executor's memory is let go.
        """
        self._compute.stop()
        self._copy.stop()
        self._executor = None

    def _run(self, flight: Flight, compute: Operation) -> None:
        origin = flight.origin
        if self._compute.stopping:
            flight.error = DeviceLost(_CLOSED)
        elif self._lost is not None or flight.error is not None:
            flight.error = self._lost or flight.error
        elif origin is not None and origin.error is not None:
            flight.error = origin.error
        else:
            self._time(flight, compute)

    def _time(self, flight: Flight, compute: Operation) -> None:
        flight.started = time.perf_counter() if flight.started is None else flight.started
        try:
            with torch.inference_mode():
                compute()
        except BaseException as error:
            self._fail(flight, error)
        flight.ended = time.perf_counter()

    def _fail(self, flight: Flight | None, error: BaseException) -> None:
        """Keep an exception for `wait`; only what cannot be blamed on one step loses the device."""
        if flight is None or isinstance(error, MemoryError | DeviceLost) or not isinstance(error, Exception):
            self._lost = DeviceLost(f"the CPU device cannot go on: {_said(error)}; load the model again")
            self._lost.__cause__ = error
            error = self._lost
        elif not isinstance(error, InvariantBroken):
            self._mute(flight)
        if flight is not None:
            flight.error = error

    def _mute(self, flight: Flight) -> None:
        with torch.inference_mode():
            self.executor.finish(flight.step.rows)

    def _copy_out(self, flight: Flight, lines: list[int]) -> None:
        if self._delay and not self._copy.stopping:
            self._copy.sleep(self._delay)
        if flight.error is None and lines:
            flight.landing.host[lines] = flight.landing.source[lines]


def blame(flight: Flight) -> GaplessError | None:
    """What `wait` must raise for a flight whose events are set: None, `StepFailed`, or what ends the engine."""
    error = flight.error
    if error is None:
        return None
    if isinstance(error, DeviceLost | InvariantBroken):
        raised: GaplessError = type(error)(str(error))
    else:
        raised = StepFailed(f"step {flight.step.id} failed on the device: {_said(error)}")
    raised.__cause__ = error
    return raised


def new_landing(source: torch.Tensor) -> Landing:
    """A landing buffer for one of the executor's line buffers; its memory is the host's own (I10)."""
    view: Lines = source.numpy()
    return Landing(view, np.full_like(view, POISON))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
