"""The CPU device: the same protocol, order and hazards as a GPU, rehearsed with two threads.

In: steps and masks from the loop's thread. Out: arrivals. `launch`, `finalize`, `park` and `release` enqueue and return
at once; `wait` alone blocks (I8). What is enqueued is copied first, so host and device share no buffer that either may
write (I10). It does not know requests, pages or why rows are chosen.

Between idle and busy there is nothing to configure: an arrival's `started` and `ended` are the compute worker's own
times, so the gap between two arrivals' is the device's idle time.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial

import torch

from gapless.config import EngineConfig, HostDeviceConfig, cpu_threads
from gapless.constrain.table import Table
from gapless.device.executor import Executor, pack_step
from gapless.device.packet import Layout
from gapless.device.record import unpack_line
from gapless.device.sizing import device_limits, machine_memory, step_layout
from gapless.device.streams import Flight, Streams, blame, new_landing
from gapless.errors import InvariantBroken
from gapless.models.base import Model
from gapless.records import Arrival, DeviceLimits, Mask, RowRef, Step, StepKind


class HostDevice:
    """Runs a model on the CPU behind the device protocol."""

    def __init__(self, model: Model, table: Table, config: EngineConfig, host: HostDeviceConfig | None = None) -> None:
        host = host or HostDeviceConfig()
        self._limits = device_limits(model, config, machine_memory())
        self._layout = step_layout(self._limits, config, self._limits.rows)
        self._poison = host.poison
        threads = cpu_threads() if host.threads is None else host.threads
        self._streams = Streams(partial(_build, model, table, self._limits, self._layout, host.poison, threads), host)
        self._stop = weakref.finalize(self, self._streams.stop)  # also runs when the interpreter exits
        self._slots = [new_landing(lines) for lines in self._streams.executor.slots]
        self._lanes = [new_landing(lines) for lines in self._streams.executor.lanes]
        self._parked: dict[int, tuple[RowRef, Flight]] = {}
        self._flights: dict[int, Flight] = {}
        self._masked_by_host: dict[int, bool] = {}
        self._newest = -1

    @property
    def limits(self) -> DeviceLimits:
        """Sizes the ledgers are built from."""
        return self._limits

    def launch(self, step: Step) -> None:
        """See `Device`. Raises `InvariantBroken` if the slot's records were not read (I4), or a host-masked row would
        be sampled without its mask (I7)."""
        executor = self._streams.executor
        work = pack_step(step, self._layout)
        self._check_masks(step)
        waiting = {ref for ref in step.rows if ref.row in step.unsampled}
        landing = self._slots[step.slot]
        flight = Flight(step, landing, waiting, set(step.rows) - waiting)
        landing.take(flight, self._poison)
        self._flights[step.id] = flight
        self._newest = step.id
        lines = [i for i, ref in enumerate(step.rows) if ref in flight.ready]
        self._streams.enqueue(flight, partial(executor.launch, work), lines)

    def finalize(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> None:
        """See `Device`. Raises `InvariantBroken` for a row that does not wait, or whose logits are gone."""
        executor = self._streams.executor
        copies = {ref: None if mask is None else mask.copy() for ref, mask in masks.items()}
        flight = self._unpark(step, masks) if step.kind is StepKind.PARKED else self._waiting_flight(step, masks)
        flight.waiting -= set(copies)
        flight.ready |= set(copies)
        lines = [i for i, ref in enumerate(step.rows) if ref in copies]
        self._streams.enqueue(flight, partial(executor.finalize, step, copies), lines)

    def park(self, step: Step, lanes: Mapping[RowRef, int]) -> None:
        """See `Device`. Raises `InvariantBroken` for a row that does not wait, or a lane that is taken."""
        executor, lanes = self._streams.executor, dict(lanes)
        flight = self._waiting_flight(step, lanes)
        for ref, lane in lanes.items():
            holder = self._lanes[lane].holder
            if lane in self._parked or (holder is not None and not holder.read):
                raise InvariantBroken(f"I4: {ref} is parked in lane {lane}, which another row holds")
        self._parked |= {lane: (ref, flight) for ref, lane in lanes.items()}
        flight.waiting -= set(lanes)
        self._streams.enqueue_silent(flight, partial(executor.park, step, lanes))

    def wait(self, step: Step, rows: tuple[RowRef, ...]) -> Arrival:
        """See `Device`. Blocks on the copy worker's events, never spins."""
        flight = self._flights.get(step.id)
        if flight is None:
            raise InvariantBroken(f"step {step.id} is waited for, but is not in flight")
        unsampled = set(rows) - flight.ready
        if unsampled:
            raise InvariantBroken(f"I7: step {step.id} is waited for before {sorted(r.row for r in unsampled)} sampled")
        for landed in flight.landed:
            landed.wait()
        del self._flights[step.id]
        flight.read = True
        failure = blame(flight)
        if failure is not None:
            raise failure
        place = {ref: i for i, ref in enumerate(step.rows)}
        records = tuple(unpack_line(flight.landing.host[place[ref]], step.id, ref) for ref in rows)
        return Arrival(step.id, records, flight.started or flight.ended, flight.ended)

    def release(self, ref: RowRef) -> None:
        """See `Device`."""
        if self._stop.alive:
            self._streams.enqueue_silent(None, partial(self._streams.executor.forget, ref))

    def close(self) -> None:
        """Stop the workers; what is in flight ends with `DeviceLost`. Idempotent."""
        self._stop()

    def _check_masks(self, step: Step) -> None:
        """I7: rows that began as host-masked are never sampled behind their forward."""
        for prefill in step.prefills:
            self._masked_by_host[prefill.start.ref.row] = prefill.start.host_masked
        for ref in step.rows:
            if self._masked_by_host.get(ref.row, False) and ref.row not in step.unsampled:
                raise InvariantBroken(f"I7: {ref} is host-masked, but step {step.id} would sample it without its mask")

    def _waiting_flight(self, step: Step, rows: Mapping[RowRef, object]) -> Flight:
        """The flight of a step whose `rows` wait for their masks and whose logits are still there."""
        flight = self._flights.get(step.id)
        idle = set(rows) - flight.waiting if flight is not None else set(rows)
        if flight is None or idle:
            raise InvariantBroken(f"I7: rows {sorted(r.row for r in idle)} of step {step.id} wait for no mask")
        if step.id != self._newest:
            raise InvariantBroken(f"I1: step {self._newest} has overwritten the logits of step {step.id}; park first")
        return flight

    def _unpark(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> Flight:
        """A parked row becomes a small flight of its own, landing in its lane's buffer.

        A row that is only closed needs no logits, so it may leave even if they never reached the lane.
        """
        ref, origin = self._parked.get(step.lane, (None, None))
        closes = ref is None and all(mask is None for mask in masks.values())
        if step.rows != (ref,) and not closes:
            raise InvariantBroken(f"I7: step {step.id} samples {step.rows} from lane {step.lane}, which holds {ref}")
        landing = self._lanes[step.lane]
        flight = Flight(step, landing, set(), set(), origin)
        landing.take(flight, self._poison)
        self._parked.pop(step.lane, None)
        self._flights[step.id] = flight
        return flight


def _build(
    model: Model, table: Table, limits: DeviceLimits, layout: Layout, rehearse: bool, threads: int | None
) -> Executor:
    """On the compute worker: torch's thread pool belongs to the thread that uses it."""
    if threads is not None:
        torch.set_num_threads(threads)
    return Executor(model, table, limits, layout, rehearse)
