"""The GPU behind the device protocol: everything enqueued ahead, one wait, nothing asked on the way.

In: steps and masks from the loop's thread. Out: arrivals. A launch is one copy of packed words, the replay of a forward
and of a tail, which writes lines into the slot's own memory, and behind an event the copy of these to the host on
another stream. A decode step that is like the one before, as nearly all are, needs no words: rows move on by
themselves, and so does the step's number. Only `wait` blocks (I8); a picture that finds the arena full waits for
pictures before it.

Invariants: one compute stream in launch order (I1); host memory that the GPU reads or writes belongs to one step in
flight (I4, I10); padding rows are row 0, of which nothing is asked. An exception while a step is enqueued is that
step's and mutes its rows; an error the GPU cannot leave loses the device (I11).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from gapless.config import CudaDeviceConfig, EngineConfig
from gapless.constrain.table import Table
from gapless.costs import Costs
from gapless.device.course import Chart, Course
from gapless.device.cuda_parts import build
from gapless.device.flights import CLOSED, Flight, Flights, blame, said
from gapless.device.gauge import measured, on_gpu
from gapless.device.graphs import Graphs, Stage
from gapless.device.packet import Asked, check_step, demand, write_head
from gapless.device.packs import Packs
from gapless.device.pinned import Slot
from gapless.device.program import Program
from gapless.device.prompt import Prompt, prompt_words, write_prompt
from gapless.device.runtime import CudaRuntime, Event, Runtime
from gapless.device.sizing import GpuPlan
from gapless.device.stopwatch import Stopwatch, Times
from gapless.device.uploads import Embedded, Uploads
from gapless.errors import DeviceLost, InvariantBroken, NotEnoughMemory
from gapless.models.base import Model
from gapless.observe.recording import current
from gapless.records import Arrival, DeviceLimits, Lane, Mask, Prefill, RowRef, Step, StepKind

NEVER = Times(0.0, 0.0)


class CudaDevice:
    """Runs a model on its GPU. `prepare` comes before the first launch, else every part runs without graphs."""

    def __init__(
        self, model: Model, table: Table, config: EngineConfig, cuda: CudaDeviceConfig, runtime: Runtime | None = None
    ) -> None:
        self.runtime = runtime or CudaRuntime(model.device)
        try:
            parts = build(self.runtime, model, table, config, cuda)
        except BaseException:
            if self.runtime.healthy():
                self.runtime.settle()
                self.runtime.give_back()
            raise
        self.plan: GpuPlan = parts.plan
        self.graphs: Graphs = parts.graphs
        self.program: Program = parts.program
        self._limits = parts.limits
        self._layout = parts.layout
        self._poison = cuda.poison
        self._slots, self._lanes, self._prompts = parts.slots, parts.lanes, parts.prompts
        self._chart = Chart(self.graphs, self.program.table, self._limits.rows)
        self._course: Course | None = None  # of the step before, if the next may be like it
        self._flights: Flights[Event] = Flights([s.landed for s in self._slots], self._lanes.landed, cuda.poison)
        self._watch = Stopwatch(self.runtime, detailed=current() is not None)
        self._uploads = Uploads(self.runtime, parts, self._watch)
        self._marks: deque[Event] = deque()
        self._lost: DeviceLost | None = None
        self._closed = False
        self._measures = config.max_step_ms is not None
        self.costs: Costs | None = None
        """See `Device`."""

    @property
    def limits(self) -> DeviceLimits:
        """Sizes the ledgers are built from."""
        return self._limits

    def prepare(self) -> Iterator[Stage]:
        """Capture the graphs; what is next comes out before each one. `plan` says afterwards what it cost.

        Raises `NotEnoughMemory` if they do not fit.
        """
        began, (before, _) = time.perf_counter(), self.runtime.memory()
        try:
            yield from self.graphs.capture()
        except torch.OutOfMemoryError as error:
            raise NotEnoughMemory(
                f"the CUDA graphs do not fit beside the KV cache ({error}); lower pages or max_rows, or turn graphs "
                "off",
                param="pages",
            ) from error
        if self._measures:
            yield from self._measure()
        self.runtime.settle()
        self.plan = replace(
            self.plan,
            graphs=self.graphs.count,
            graph_bytes=max(0, before - self.runtime.memory()[0]),
            seconds=time.perf_counter() - began,
        )

    def _measure(self) -> Iterator[Stage]:
        yield Stage("costs of prompts and pictures", self.graphs.count, self.graphs.count + 1)
        with self.runtime.setting_up(), torch.inference_mode():
            self.costs = measured(self.program, self.graphs, on_gpu(self.runtime))

    def watch(self, steps: int) -> None:
        """See `Device`."""
        self._watch.forwards = steps

    def launch(self, step: Step) -> None:
        """See `Device`. Raises `InvariantBroken` if the slot's records were not read (I4), or a host-masked row would
        be sampled without its mask (I7); what goes wrong while it is enqueued is raised by `wait`."""
        self._check_open()
        check_step(step)
        flight = self._flights.launch(step)
        self._enqueue(flight, partial(self._launch, step, flight))

    def _launch(self, step: Step, flight: Flight[Event]) -> None:
        self.runtime.bind()
        slot, course = self._slots[step.slot], self._course
        slot.demanded, self._course = 0, None  # until all of it is enqueued
        if course is not None and course.goes_on(step):
            self._watch.start(step.id)
        else:
            course = self._tell(step, slot)
        if step.kind is StepKind.PREFILL:
            self._prefill(flight, slot, course.bucket)
        else:
            self.graphs.forward(course.bucket, course.width, course.feeds)
            if self._poison:
                self.program.rows.hand_over(self.program.inbox.rows[: course.bucket])
        if course.kind is not None:
            self._watch.split(step.id)
            self.graphs.tail(step.slot, course.bucket, course.kind)
        self._land(flight, slot, course.bucket)
        if not step.unsampled and not step.fed:
            course.last, self._course = step.id, course

    @torch.inference_mode()
    def _tell(self, step: Step, slot: Slot) -> Course:
        """Send a step's words and let rows begin and tables grow by them; from here on it computes."""
        sent = slot.packet.fill(step)
        if self._poison and step.freed:
            self.program.cache.poison(step.freed)
        if sent not in slot.down:
            slot.down[sent] = (self.program.inbox.words[:sent], slot.words[:sent])
        inbox, words = slot.down[sent]
        inbox.copy_(words, non_blocking=True)
        self._watch.start(step.id)
        if step.prefills:
            self.program.begin()
            if (notes := slot.notes(step)) is not None:
                self.program.note(*notes)
        if step.grants and sent > self._layout.head:
            self.graphs.extend()
        return self._chart.course(step)

    @torch.inference_mode()
    def _prefill(self, flight: Flight[Event], slot: Slot, bucket: int) -> None:
        """Prompts side by side where the model has that, the others one by one."""
        packs, step = self.program.packs, flight.step
        alone: list[tuple[int, Prefill]] = []
        side: list[tuple[int, Prefill]] = []
        for place, prefill in enumerate(step.prefills):
            self.program.load_adapter(prefill)
            self._uploads.grammar(step, prefill)
            (side if packs is not None and packs.takes(prefill) else alone).append((place, prefill))
        pictures = self._uploads.pictures(flight, slot)
        used = 0 if packs is None else self._together(slot, packs, side, pictures)
        if alone:
            self._one_by_one(slot, alone, used, pictures)
        if len(step.fed) < len(step.rows):
            self.program.head(bucket)

    def _together(self, slot: Slot, packs: Packs, prefills: list[tuple[int, Prefill]], pictures: Embedded) -> int:
        """Returns how many words of the slot's prompts this takes."""
        used = 0
        for pieces in packs.plan(prefills):
            count = packs.write(pieces, slot.prompt_words[used:])
            packs.feed(pieces, slot.prompts[used : used + count], pictures)
            self.graphs.together(packs.bucket(pieces))
            self.program.keep(pieces)
            used += count
        return used

    def _one_by_one(self, slot: Slot, prefills: list[tuple[int, Prefill]], used: int, pictures: Embedded) -> None:
        """Eager: prompts and pictures come in every length. `used`: words of the slot's prompts that are taken."""
        ends = (used + np.cumsum([prompt_words(prefill) for _, prefill in prefills])).tolist()
        starts = [used, *ends]
        for (_, prefill), start, end in zip(prefills, starts, ends, strict=False):
            write_prompt(prefill, slot.prompt_words[start:end])
        self._prompts[used : ends[-1]].copy_(slot.prompts[used : ends[-1]], non_blocking=True)
        for (place, prefill), start, end in zip(prefills, starts, ends, strict=False):
            own = Prompt.of(prefill, self._prompts[start:end])
            width = self.graphs.width(len(prefill.pages))
            self.program.prompt(place, prefill, own, pictures[place], width)

    def _land(self, flight: Flight[Event], slot: Slot, bucket: int) -> None:
        """Copy the lines to the host, behind the tail that writes them."""
        if bucket not in slot.home:
            slot.home[bucket] = (slot.lines[:bucket], slot.landing[:bucket])
        self._send_home(flight, *slot.home[bucket])

    def _send_home(self, flight: Flight[Event], lines: torch.Tensor, landing: torch.Tensor) -> None:
        landed = self._marks.popleft() if self._marks else self.runtime.event(timed=self._watch.detailed)
        began = self._watch.beside(flight.step.id, Lane.COPY, landed)
        self.runtime.copy_out(lines, landing, self._watch.stop(flight.step.id), landed, began)
        flight.landed.append(landed)

    @torch.inference_mode()
    def finalize(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> None:
        """See `Device`. Raises `InvariantBroken` for a row that does not wait, or whose logits are gone."""
        self._check_open()
        flight, self._course = self._flights.finalize(step, masks), None
        if flight.origin is not None and flight.origin.error is not None:
            flight.error = flight.origin.error
        self._enqueue(flight, partial(self._finalize, step, flight, masks))

    def _finalize(self, step: Step, flight: Flight[Event], masks: Mapping[RowRef, Mask | None]) -> None:
        self.runtime.bind()
        asked = [demand(ref, masks) for ref in step.rows]
        if step.kind is StepKind.PARKED:
            self._finalize_parked(step, flight, asked[0], masks[step.rows[0]])
        else:
            self._finalize_here(step, flight, asked, masks)

    def _finalize_here(
        self, step: Step, flight: Flight[Event], asked: list[Asked], masks: Mapping[RowRef, Mask | None]
    ) -> None:
        slot, head = self._slots[step.slot], self._layout.head
        write_head(self._layout, slot.demand_words[slot.demanded], step, asked)
        self.program.inbox.words[:head].copy_(slot.demands[slot.demanded], non_blocking=True)
        slot.demanded += 1
        places = [i for i, ref in enumerate(step.rows) if masks.get(ref) is not None]
        for place in places:
            slot.mask_rows[place] = masks[step.rows[place]]
        if places:  # one copy, with what lies between: nothing is asked of those rows
            span = slice(places[0], places[-1] + 1)
            self.program.batch.masks[span].copy_(slot.masks[span], non_blocking=True)
        bucket = self.graphs.bucket(len(step.rows))
        self._watch.start(step.id, "sampling")
        self.graphs.tail(step.slot, bucket, self._chart.masked(step))
        self._land(flight, slot, bucket)

    def _finalize_parked(self, step: Step, flight: Flight[Event], asked: Asked, mask: Mask | None) -> None:
        lane, lanes = step.lane, self._lanes
        lanes.word_rows[lane] = (step.id, step.rows[0].row, asked)
        self.program.lane_words.copy_(lanes.words[lane], non_blocking=True)
        if mask is not None:
            lanes.mask_rows[lane] = mask
            self.program.parked.masks[0].copy_(lanes.masks[lane], non_blocking=True)
        self._watch.start(step.id, "sampling")
        self.program.fetch(lane)
        self.graphs.parked_tail(self._chart.masked(step).adjusted)
        lanes.lines[lane].copy_(self.program.parked.lines[0])
        self._send_home(flight, lanes.lines[lane], lanes.landing[lane])

    @torch.inference_mode()
    def park(self, step: Step, lanes: Mapping[RowRef, int]) -> None:
        """See `Device`. Raises `InvariantBroken` for a row that does not wait, or a lane that is taken."""
        self._check_open()
        self._enqueue(self._flights.park(step, lanes), partial(self._park, step, lanes))

    def _park(self, step: Step, lanes: Mapping[RowRef, int]) -> None:
        self.runtime.bind()
        for ref, lane in lanes.items():
            self.program.park(step.rows.index(ref), lane)

    def wait(self, step: Step, rows: tuple[RowRef, ...]) -> Arrival:
        """See `Device`. Blocks until the copies have landed, never spins in Python."""
        self._check_open()
        flight = self._flights.due(step, rows)
        times, over = NEVER, 0.0
        try:
            for landed in flight.landed:
                landed.synchronize()
            over = time.perf_counter()
            times = self._watch.read(step.id)
        except RuntimeError as error:  # what went wrong on the GPU after it was enqueued
            flight.error = self._lose(error)
        self._flights.land(flight)
        self._marks.extend(flight.landed)
        failure = blame(flight)
        if failure is not None:
            raise failure
        records = self._flights.records(flight, rows)
        return Arrival(step.id, records, times.started, times.ended, times.paused, over, times.spans)

    def release(self, ref: RowRef) -> None:
        """See `Device`. A row that no step names is read by nobody, so nothing has to be done."""

    @torch.inference_mode()
    def close(self) -> None:
        """Wait for what is enqueued and free the memory; what was not waited for ends with `DeviceLost`. Idempotent."""
        if self._closed:
            return
        self._closed = True
        healthy = self.runtime.healthy()
        reusable = healthy and self._lost is None
        self._lost = self._lost or DeviceLost(CLOSED)
        self.graphs.close()
        del self.program, self._slots, self._lanes, self._prompts, self._uploads
        if healthy:
            self.runtime.settle()
        if reusable:
            self.runtime.give_back()

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceLost(CLOSED)

    def _enqueue(self, flight: Flight[Event], work: Callable[[], None]) -> None:
        """An exception in `work` is the flight's, for `wait` to raise. Nothing more is done for one that failed."""
        flight.error = self._lost or flight.error
        if flight.error is not None:
            return
        try:
            work()
        except Exception as error:
            self._fail(flight, error)

    def _fail(self, flight: Flight[Event], error: Exception) -> None:
        flight.error = error
        if isinstance(error, DeviceLost) or not self.runtime.healthy():
            flight.error = self._lose(error)
        elif not isinstance(error, InvariantBroken):
            self._mute(flight)

    @torch.inference_mode()
    def _mute(self, flight: Flight[Event]) -> None:
        """The rows of a failed step come back muted from now on; if even that fails, nothing they do is known."""
        try:
            self.program.rows.finish(flight.step.rows)
        except Exception as error:
            flight.error = self._lose(error)

    def _lose(self, error: Exception) -> DeviceLost:
        if self._lost is None:
            self._lost = DeviceLost(f"the GPU cannot go on: {said(error)}; load the model again")
            self._lost.__cause__ = error
        return self._lost
