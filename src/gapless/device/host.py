"""The CPU device: the same protocol, order and hazards as a GPU, rehearsed with two threads.

In: steps and masks from the loop's thread. Out: arrivals. `launch`, `finalize`, `park` and `release` enqueue and return
at once; `wait` alone blocks (I8). What is enqueued is copied first, so host and device share no buffer that either may
write (I10). It does not know requests, pages or why rows are chosen.

Between idle and busy there is nothing to configure: an arrival's `started` and `ended` are the compute worker's own
times, so the gap between two arrivals' is the device's idle time.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch

from gapless.config import EngineConfig, HostDeviceConfig, cpu_threads
from gapless.constrain.table import Table
from gapless.costs import Costs
from gapless.device.executor import Executor, pack_step
from gapless.device.flights import Flights, Landing, blame
from gapless.device.packet import Layout, waiting_of
from gapless.device.record import Lines
from gapless.device.sizing import TABLE_SHARE, device_limits, step_layout, table_memory
from gapless.device.streams import Streams
from gapless.models.base import Model
from gapless.models.machine import machine_memory
from gapless.records import POISON, Arrival, DeviceLimits, Mask, RowRef, Step, StepKind


class HostDevice:
    """Runs a model on the CPU behind the device protocol."""

    def __init__(self, model: Model, table: Table, config: EngineConfig, host: HostDeviceConfig | None = None) -> None:
        host = host or HostDeviceConfig()
        self._limits = device_limits(model, config, machine_memory())
        table_memory(model, config, machine_memory() // TABLE_SHARE)
        self._layout = step_layout(self._limits, config, self._limits.rows)
        threads = cpu_threads() if host.threads is None else host.threads
        self._streams = Streams(
            partial(_build, model, table, self._limits, self._layout, config, host.poison, threads), host
        )
        self._costs = self._streams.executor.costs
        self._stop = weakref.finalize(self, self._streams.stop)  # also runs when the interpreter exits
        executor = self._streams.executor
        self._slots: list[Lines] = [lines.numpy() for lines in executor.slots]
        self._lanes: list[Lines] = [lines.numpy() for lines in executor.lanes]
        self._flights: Flights[threading.Event] = Flights(
            [_new_landing(lines) for lines in self._slots], [_new_landing(lines) for lines in self._lanes], host.poison
        )

    @property
    def costs(self) -> Costs | None:
        """See `Device`."""
        return self._costs

    @property
    def limits(self) -> DeviceLimits:
        """Sizes the ledgers are built from."""
        return self._limits

    def watch(self, steps: int) -> None:
        """See `Device`; its arrivals always say it."""

    def launch(self, step: Step) -> None:
        """See `Device`. Raises `InvariantBroken` if the slot's records were not read (I4), or a host-masked row would
        be sampled without its mask (I7)."""
        executor = self._streams.executor
        work = pack_step(step, self._layout)
        flight = self._flights.launch(step)
        lines = np.flatnonzero(~waiting_of(step)).tolist()
        self._streams.enqueue(flight, partial(executor.launch, work), self._slots[step.slot], lines)

    def finalize(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> None:
        """See `Device`. Raises `InvariantBroken` for a row that does not wait, or whose logits are gone."""
        executor = self._streams.executor
        copies = {ref: None if mask is None else mask.copy() for ref, mask in masks.items()}
        flight = self._flights.finalize(step, copies)
        source = self._lanes[step.lane] if step.kind is StepKind.PARKED else self._slots[step.slot]
        lines = [i for i, ref in enumerate(step.rows) if ref in copies]
        self._streams.enqueue(flight, partial(executor.finalize, step, copies), source, lines)

    def park(self, step: Step, lanes: Mapping[RowRef, int]) -> None:
        """See `Device`. Raises `InvariantBroken` for a row that does not wait, or a lane that is taken."""
        executor, lanes = self._streams.executor, dict(lanes)
        flight = self._flights.park(step, lanes)
        self._streams.enqueue_silent(flight, partial(executor.park, step, lanes))

    def wait(self, step: Step, rows: tuple[RowRef, ...]) -> Arrival:
        """See `Device`. Blocks on the copy worker's events, never spins."""
        flight = self._flights.due(step, rows)
        for copied in flight.landed:
            copied.wait()
        landed = time.perf_counter()
        self._flights.land(flight)
        failure = blame(flight)
        if failure is not None:
            raise failure
        started = flight.ended if flight.started is None else flight.started
        paused = max(0.0, flight.ended - started - flight.computed)
        return Arrival(
            step.id,
            self._flights.records(flight, rows),
            started,
            flight.ended,
            paused,
            landed,
            spans=tuple(flight.spans),
        )

    def release(self, ref: RowRef) -> None:
        """See `Device`."""
        if self._stop.alive:
            self._streams.enqueue_silent(None, partial(self._streams.executor.forget, ref))

    def close(self) -> None:
        """Stop the workers; what is in flight ends with `DeviceLost`. Idempotent."""
        self._stop()


def _new_landing(source: Lines) -> Landing:
    """A landing buffer for one of the executor's line buffers; its memory is the host's own (I10)."""
    return Landing(np.full_like(source, POISON))


def _build(
    model: Model,
    table: Table,
    limits: DeviceLimits,
    layout: Layout,
    config: EngineConfig,
    rehearse: bool,
    threads: int | None,
) -> Executor:
    """On the compute worker: torch's thread pool belongs to the thread that uses it."""
    if threads is not None:
        torch.set_num_threads(threads)
    executor = Executor(model, table, limits, layout, rehearse)
    if config.max_step_ms is not None:
        executor.measure()
    return executor
