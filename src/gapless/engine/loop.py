"""The loop: the only file that knows the order of events.

Requests come in through a mailbox, steps go out to the device, arrivals come back as return values of `wait`, news for
callers is collected in the book and fetched from there. One thread calls everything here. With depth 1 the same lines
are the blocking engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gapless.constrain.masks import MaskSource
from gapless.device.base import Device
from gapless.engine.book import Book
from gapless.engine.mailbox import Mailbox
from gapless.engine.pipeline import Flight, Pipeline
from gapless.engine.planner import Planner
from gapless.errors import DeviceLost, InvariantBroken, RequestFailed
from gapless.observe.counters import Counters
from gapless.records import Arrival, Clock, Mask, RowRef, Step, StepKind

ARRIVALS_PER_TICK = 8


@dataclass(slots=True)
class Loop:
    """Pipelined prefill and decode over one device."""

    device: Device
    pipeline: Pipeline
    planner: Planner
    book: Book
    masks: MaskSource
    mailbox: Mailbox
    clock: Clock
    counters: Counters

    def tick(self) -> bool:
        """Launch what fits, finish sampling what is ready, settle the oldest step, and again what that made ready."""
        if self.pipeline.empty:
            self._admit()
        step = self.planner.next(self.pipeline, self.clock.now())
        if step:
            self._launch(step)
        moved = self._finalize_ready() or step is not None
        if self.pipeline.must_settle(step):
            self._settle()
            moved = True
        moved = self._finalize_ready() or moved
        self._admit()  # after the launch: arrivals never delay the device
        moved = self._release() or moved
        if not moved:
            self._sleep()
        return self.busy

    @property
    def busy(self) -> bool:
        """Steps in flight, sequences running or requests waiting."""
        return not (self.pipeline.empty and self.book.idle and self.mailbox.empty)

    def _launch(self, step: Step) -> None:
        for flight in self.pipeline.flights:  # this forward overwrites the logits of rows not yet sampled
            self._park(flight)
        with self._blame(step.rows):
            self.device.launch(step)
            self._count_launch(step)
            self.pipeline.launch(step)
            for prefill in step.prefills:
                self._request_mask(prefill.start.ref)

    def _park(self, flight: Flight) -> None:
        if flight.waiting:
            lanes = self.pipeline.park(flight)
            self.counters.parked += len(lanes)
            with self._blame(lanes):
                self.device.park(flight.step, lanes)

    def _finalize_ready(self) -> bool:
        """Sample each row whose mask is ready (I7), in place or from its lane. Returns whether there was one."""
        before = len(self.pipeline.parked), sum(len(f.waiting) for f in self.pipeline.flights)
        for flight in self.pipeline.flights:
            if masks := self._ready(flight.waiting):
                with self._blame(masks, closing=not any(m is not None for m in masks.values())):
                    self.device.finalize(flight.step, masks)
                    self.pipeline.sampled(flight, list(masks))
        for parked in self.pipeline.parked:
            if masks := self._ready([parked.ref]):
                small = self.planner.parked_step(parked.ref, parked.lane)
                with self._blame(masks, closing=masks[parked.ref] is None):
                    self.device.finalize(small, masks)
                    self.pipeline.unpark(parked, small)
        return before != (len(self.pipeline.parked), sum(len(f.waiting) for f in self.pipeline.flights))

    def _ready(self, refs: Iterable[RowRef]) -> dict[RowRef, Mask | None]:
        masks: dict[RowRef, Mask | None] = {}
        for ref in refs:
            mask = None if (over := self.book.finalized(ref)) else self.masks.take(ref)
            if over or mask is not None:
                masks[ref] = mask
        return masks

    def _settle(self) -> None:
        """Wait for the oldest step and commit it (I2)."""
        flight = self.pipeline.oldest()
        self._park(flight)
        rows = tuple(flight.sampled)
        with self._blame(rows):
            if rows:
                self._commit(flight.step, self.device.wait(flight.step, rows))
        self.pipeline.retire(flight)

    def _commit(self, step: Step, arrival: Arrival) -> None:
        self._count_commit(step)
        now = self.clock.now()
        for record in arrival.records:
            with self._blame([record.ref]):
                if self.book.commit(record, now):
                    self._request_mask(record.ref)

    def _request_mask(self, ref: RowRef) -> None:
        walker = self.book.host_walker(ref)
        if walker is not None:
            self.masks.request(ref, walker)

    def _admit(self) -> None:
        """Take arrivals, cancellations and deadlines."""
        self.book.take_mail(self.mailbox.take(ARRIVALS_PER_TICK), self.clock.now())

    def _release(self) -> bool:
        """Give back what sequences at zero refs hold: finalize early, release late (I5)."""
        over = self.book.releasable(self.pipeline)
        for seq in over:
            self.masks.forget(seq.ref)
            self.device.release(self.book.release(seq))
        return bool(over)

    def _sleep(self) -> None:
        """Nothing moved: only rows without masks are in flight. Block until one is ready, an arrival or a deadline."""
        if not self.pipeline.empty:
            self.mailbox.sleep(self.book.until_deadline(self.clock.now()))
        elif not self.book.idle and self.mailbox.empty:
            raise InvariantBroken("no step is in flight and none can be launched, but requests wait")

    @contextmanager
    def _blame(self, rows: Iterable[RowRef], closing: bool = False) -> Iterator[None]:
        """An exception in here ends the requests on `rows` and no others (I11), unless the engine itself is lost.

        `closing`: these rows have ended already and must only leave; if even that fails the device is lost.
        """
        try:
            yield
        except (DeviceLost, InvariantBroken):
            raise
        except Exception as error:
            if closing:
                raise DeviceLost(f"rows that had ended could not be closed: {error}") from error
            failure = RequestFailed(f"a device step with this request failed: {error}")
            failure.__cause__ = error
            self.book.fail(tuple(rows), failure, self.clock.now())

    def _count_launch(self, step: Step) -> None:
        self.counters.overlapped += not self.pipeline.empty
        self.counters.prefill_steps += step.kind is StepKind.PREFILL
        self.counters.decode_steps += step.kind is StepKind.DECODE

    def _count_commit(self, step: Step) -> None:
        prefill, decode = self.pipeline.holds(StepKind.PREFILL), self.pipeline.holds(StepKind.DECODE)
        self.counters.decode_committed_during_prefill += step.kind is StepKind.DECODE and prefill
        self.counters.prefill_committed_during_decode += step.kind is StepKind.PREFILL and decode
