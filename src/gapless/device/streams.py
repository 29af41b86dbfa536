"""Two in-order workers that stand for a GPU's compute and copy streams.

In: operations of flights, from the loop's thread. Out: lines in landing buffers, and an event per operation. The
compute worker alone runs torch; behind each of its operations the copy worker copies the lines late, as a real copy
would land late. Nothing here spins: workers block on their queues, the loop on events.

A failing operation fails its flight and mutes its rows; later flights go on. A `MemoryError` or `DeviceLost` loses the
device: its flight and all later ones end with `DeviceLost`. `stop` lets whatever is queued end that way too.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

import torch

from gapless.config import HostDeviceConfig
from gapless.device.executor import Executor
from gapless.device.flights import CLOSED, Flight, said
from gapless.device.record import Lines
from gapless.errors import DeviceLost, InvariantBroken
from gapless.locks import Lock
from gapless.records import DeviceSpan, Lane, StepKind

Operation = Callable[[], None]
Compute = Callable[[], float | None]
"""Computes for a flight; returns when sampling began, if it sampled."""


HostFlight = Flight[threading.Event]


class Stream:
    """One thread that runs operations in the order they came, each after a seeded pause."""

    def __init__(self, name: str, pause_seed: int | None, pause_ms: float) -> None:
        self._queue: SimpleQueue[Operation | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._door = Lock()
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
        self._process = os.getpid()
        try:
            self._executor = self._on_worker(build)
        except BaseException:
            self.stop()
            raise

    @property
    def executor(self) -> Executor:
        """What the compute worker runs; raises `DeviceLost` after `stop`."""
        if self._executor is None:
            raise DeviceLost(CLOSED)
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

    def enqueue(self, flight: HostFlight, compute: Compute, source: Lines, lines: list[int]) -> None:
        """Enqueue one computation of a flight; behind it `lines` of `source` are copied out and an event is set."""
        landed = threading.Event()
        flight.landed.append(landed)

        def run() -> None:
            self._run(flight, compute)
            if not self._copy.submit(copy):
                landed.set()

        def copy() -> None:
            self._copy_out(flight, source, lines)
            landed.set()

        if not self._compute.submit(run):
            flight.error = DeviceLost(CLOSED)
            landed.set()

    def enqueue_silent(self, flight: HostFlight | None, compute: Operation) -> None:
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

        The executor's memory is let go. In a forked child nothing happens: the workers are not in it, and at the fork
        they may have held anything, the events' locks and torch's among them.
        """
        if os.getpid() != self._process:
            return
        self._compute.stop()
        self._copy.stop()
        self._executor = None

    def _run(self, flight: HostFlight, compute: Compute) -> None:
        origin = flight.origin
        if self._compute.stopping:
            flight.error = DeviceLost(CLOSED)
        elif self._lost is not None or flight.error is not None:
            flight.error = self._lost or flight.error
        elif origin is not None and origin.error is not None:
            flight.error = origin.error
        else:
            self._time(flight, compute)

    def _time(self, flight: HostFlight, compute: Compute) -> None:
        sampling, began = None, time.perf_counter()
        flight.started = began if flight.started is None else flight.started
        try:
            with torch.inference_mode():
                sampling = compute()
        except BaseException as error:
            self._fail(flight, error)
        flight.ended = ended = time.perf_counter()
        flight.computed += ended - began
        if flight.step.kind is not StepKind.PARKED and not flight.spans:
            flight.spans.append(DeviceSpan(Lane.COMPUTE, "forward", began, ended if sampling is None else sampling))
        if sampling is not None:
            flight.spans.append(DeviceSpan(Lane.COMPUTE, "sampling", sampling, ended))

    def _fail(self, flight: HostFlight | None, error: BaseException) -> None:
        """Keep an exception for `wait`; only what cannot be blamed on one step loses the device."""
        if flight is None or isinstance(error, MemoryError | DeviceLost) or not isinstance(error, Exception):
            error = self._lose(error)
        elif not isinstance(error, InvariantBroken):
            error = self._mute(flight, error)
        if flight is not None:
            flight.error = error

    def _mute(self, flight: HostFlight, error: Exception) -> Exception:
        """The rows of a failed step come back muted from now on; if even that fails, nothing they do is known. What is
        to be told of the step."""
        try:
            with torch.inference_mode():
                self.executor.finish(flight.step.rows)
        except Exception as worse:
            return self._lose(worse)
        return error

    def _lose(self, error: BaseException) -> DeviceLost:
        if self._lost is None:
            self._lost = DeviceLost(f"the CPU device cannot go on: {said(error)}; load the model again")
            self._lost.__cause__ = error
        return self._lost

    def _copy_out(self, flight: HostFlight, source: Lines, lines: list[int]) -> None:
        began = time.perf_counter()
        if self._delay and not self._copy.stopping:
            self._copy.sleep(self._delay)
        if flight.error is None and lines:
            flight.landing.host[lines] = source[lines]
        flight.spans.append(DeviceSpan(Lane.COPY, "copy", began, time.perf_counter()))
