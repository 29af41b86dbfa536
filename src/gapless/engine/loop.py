"""The loop: the only file that knows the order of events.

Requests come in through a mailbox, steps go out to the device, arrivals come back as return values of `wait`, news for
callers is collected in the book and fetched from there. One thread calls everything here. With depth 1 the same lines
are the blocking engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from gapless.device.base import Device
from gapless.engine.blame import Blame
from gapless.engine.book import Book
from gapless.engine.mailbox import Mailbox
from gapless.engine.masking import Masking
from gapless.engine.pipeline import Flight, Pipeline
from gapless.engine.planner import Planner
from gapless.errors import InvariantBroken
from gapless.observe.meter import Meter, Part
from gapless.records import Arrival, Step

ARRIVALS_PER_TICK = 8


@dataclass(slots=True)
class Loop:
    """Pipelined prefill and decode over one device."""

    device: Device
    pipeline: Pipeline
    planner: Planner
    book: Book
    masking: Masking
    blame: Blame
    mailbox: Mailbox
    meter: Meter

    def tick(self) -> bool:
        """Launch what fits, finish sampling what is ready, settle the oldest step, and again what that made ready."""
        if self.pipeline.empty:
            self._admit()
        step = self.planner.next(self.pipeline, self.meter.enter(Part.PLAN))
        if step:
            self._launch(step)
        moved = self._finalize_ready() or step is not None
        if self.pipeline.must_settle(step):
            self.settle()
            moved = True
        moved = self._finalize_ready() or moved
        moved = self._admit() or moved  # after the launch: arrivals never delay the device
        moved = self._release() or moved
        busy = self.busy
        if not busy:
            self.meter.rest()
        elif not moved:
            self._sleep()
        return busy

    @property
    def busy(self) -> bool:
        """Steps in flight, sequences running or requests waiting."""
        return not (self.pipeline.empty and self.book.idle and self.mailbox.empty)

    def _launch(self, step: Step) -> None:
        self.meter.enter(Part.LAUNCH, step)
        for flight in self.pipeline.flights if self.pipeline.masked else ():
            self._park(flight)  # this forward overwrites the logits of rows not yet sampled
        try:
            self.device.launch(step)
            self.meter.launched(step.kind, self.pipeline.slots_held)
            self.pipeline.launch(step)
            for prefill in step.prefills:
                if prefill.start.ref.row in step.unsampled:
                    self.masking.request(prefill.start.ref)
        except Exception as error:
            self.blame.step(step, error)

    def _park(self, flight: Flight) -> None:
        if flight.waiting:
            lanes = self.pipeline.park(flight)
            self.meter.parked(len(lanes))
            with self.blame.on(lanes):
                self.device.park(flight.step, lanes)

    def _finalize_ready(self) -> bool:
        """Sample each row whose mask is ready (I7), in place or from its lane. Returns whether there was one."""
        if not self.pipeline.masked:
            return False
        sampled = 0
        for flight in self.pipeline.flights:
            if masks := self.masking.ready(flight.waiting):
                self.meter.enter(Part.FINALIZE, flight.step)
                with self.blame.on(masks, closing=all(m is None for m in masks.values())):
                    self.device.finalize(flight.step, masks)
                    sampled += self.pipeline.sampled(flight, list(masks))
        for parked in self.pipeline.parked:
            if masks := self.masking.ready([parked.ref]):
                small = self.planner.parked_step(parked.ref, parked.lane)
                self.meter.enter(Part.FINALIZE, small)
                with self.blame.on(masks, closing=masks[parked.ref] is None):
                    self.device.finalize(small, masks)
                    self.pipeline.unpark(parked, small)
                    sampled += 1
        return sampled > 0

    def settle(self) -> None:
        """Wait for the oldest step and commit it (I2), also if all its rows are parked: it may have failed."""
        flight = self.pipeline.oldest()
        self._park(flight)
        try:
            self.meter.enter(Part.DEVICE, flight.step)
            self._commit(flight.step, self.device.wait(flight.step, flight.sampled))
        except Exception as error:
            self.blame.step(flight.step, error)
        self.pipeline.retire(flight)
        self.meter.retired(self.pipeline.slots_held)

    def _commit(self, step: Step, arrival: Arrival) -> None:
        now = self.meter.landed(step, arrival, self.pipeline.kinds())
        for record in self.book.take_talk(arrival.records):
            with self.blame.on([record.ref]):
                self.book.commit(record, now)
                self.masking.request(record.ref)

    def _admit(self) -> bool:
        """Take arrivals, cancellations and deadlines. Returns whether that changed anything."""
        now = self.meter.enter(Part.ADMIT)
        return self.book.take_mail(self.mailbox.take(ARRIVALS_PER_TICK), now)

    def _release(self) -> bool:
        """Give back what sequences at zero refs hold: finalize early, release late (I5)."""
        over = self.book.releasable(self.pipeline)
        for seq in over:
            self.masking.forget(seq.ref)
            self.device.release(self.book.release(seq))
        return bool(over)

    def _sleep(self) -> None:
        """Nothing moved: only rows without masks are in flight. Block until one is ready, an arrival or a deadline."""
        if not self.pipeline.empty:
            self.mailbox.sleep(self.book.until_deadline(self.meter.enter(Part.MASK)))
        elif not self.book.idle and self.mailbox.empty:
            raise InvariantBroken("no step is in flight and none can be launched, but requests wait")
