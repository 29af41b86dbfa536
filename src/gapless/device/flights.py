"""Steps on their way, as a device sees them: which rows still wait, whose lines land where, what went wrong.

A pure state machine that every device keeps; it moves nothing itself. In: the calls of the protocol, in their order.
Out: flights, or `InvariantBroken` for a call that cannot be meant. It does not know streams, threads or tensors: `E`
is whatever a device waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gapless.device.record import Lines, Reader, unpack_lines
from gapless.errors import DeviceLost, GaplessError, InvariantBroken, StepFailed
from gapless.records import POISON, DeviceSpan, Mask, Records, RowRef, Rows, Step, StepKind

E = TypeVar("E")
CLOSED = "the device was closed; load the model again"
"""What is lost by it says so."""


@dataclass(slots=True, eq=False)
class Landing:
    """The host's copy of one slot's or lane's lines, allocated once; read behind the events of the flight that holds
    it."""

    host: Lines
    holder: Flight[Any] | None = None

    def take(self, flight: Flight[Any], poison: bool) -> None:
        """Reserve for a flight; raises `InvariantBroken` if another's lines were not read yet (I4)."""
        if self.holder is not None and not self.holder.read:
            raise InvariantBroken(
                f"I4: step {flight.step.id} lands where step {self.holder.step.id}'s records were not read yet"
            )
        self.holder = flight
        if poison:
            self.host[:] = POISON


@dataclass(slots=True, eq=False)
class Flight(Generic[E]):
    """A launched step on its way. `waiting` rows are unsampled, those that `left` were parked or get no token of this
    step, all others are sampled or closed.

    `landed`: what to wait for before the lines are read. `computed`: seconds the device spent between `started` and
    `ended`; `spans`: on what. `origin` is the flight whose forward a parked row was computed in: its failure is the
    parked row's too.
    """

    step: Step
    landing: Landing
    waiting: set[RowRef] = field(default_factory=set)
    left: set[RowRef] = field(default_factory=set)
    origin: Flight[E] | None = None
    landed: list[E] = field(default_factory=list)
    error: BaseException | None = None
    started: float | None = None
    ended: float = 0.0
    computed: float = 0.0
    spans: list[DeviceSpan] = field(default_factory=list)
    read: bool = False


class Flights(Generic[E]):
    """All flights of one device, by step, and what is parked in its lanes."""

    def __init__(self, slots: Sequence[Landing], lanes: Sequence[Landing], poison: bool) -> None:
        self.slots, self.lanes = slots, lanes
        self.poison = poison
        self._flights: dict[int, Flight[E]] = {}
        self._parked: dict[int, tuple[RowRef, Flight[E]]] = {}
        self._masked_by_host: set[int] = set()
        self._newest = -1
        self._reader = Reader()

    def launch(self, step: Step) -> Flight[E]:
        """A step is launched. Raises if its slot's records were not read (I4), or a host-masked row would be sampled
        without its mask (I7)."""
        self._note_masks(step)
        waiting = {ref for ref in step.rows if ref.row in step.unsampled} if step.unsampled else set()
        left = {ref for ref in step.rows if ref.row in step.fed} if step.fed else set()
        flight: Flight[E] = Flight(step, self.slots[step.slot], waiting, left)
        flight.landing.take(flight, self.poison)
        self._flights[step.id] = flight
        self._newest = step.id
        return flight

    def _note_masks(self, step: Step) -> None:
        for prefill in step.prefills:
            if prefill.start.host_masked:
                self._masked_by_host.add(prefill.start.ref.row)
            else:
                self._masked_by_host.discard(prefill.start.ref.row)
        for ref in step.rows if self._masked_by_host else ():
            if ref.row in self._masked_by_host and ref.row not in step.unsampled and ref.row not in step.fed:
                raise InvariantBroken(f"I7: {ref} is host-masked, but step {step.id} would sample it without its mask")

    def finalize(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> Flight[E]:
        """Rows that waited are sampled or closed. Raises for a row that does not wait, or whose logits are gone."""
        flight = self._unpark(step, masks) if step.kind is StepKind.PARKED else self._waiting(step, masks)
        flight.waiting -= set(masks)
        return flight

    def park(self, step: Step, lanes: Mapping[RowRef, int]) -> Flight[E]:
        """Rows go to lanes. Raises for a row that does not wait, or a lane that is taken."""
        flight = self._waiting(step, lanes)
        for ref, lane in lanes.items():
            holder = self.lanes[lane].holder
            if lane in self._parked or (holder is not None and not holder.read):
                raise InvariantBroken(f"I4: {ref} is parked in lane {lane}, which another row holds")
        self._parked |= {lane: (ref, flight) for ref, lane in lanes.items()}
        flight.waiting -= set(lanes)
        flight.left |= set(lanes)
        return flight

    def due(self, step: Step, rows: tuple[RowRef, ...]) -> Flight[E]:
        """The flight of a step that is waited for. Raises if it is not in flight, or one of `rows` was not sampled."""
        flight = self._flights.get(step.id)
        if flight is None:
            raise InvariantBroken(f"step {step.id} is waited for, but is not in flight")
        if (rows is flight.step.rows or rows == flight.step.rows) and not flight.waiting and not flight.left:
            return flight  # all of it, as nearly always
        unsampled = set(rows) - (set(flight.step.rows) - flight.waiting - flight.left)
        if unsampled:
            raise InvariantBroken(f"I7: step {step.id} is waited for before {sorted(r.row for r in unsampled)} sampled")
        return flight

    def land(self, flight: Flight[E]) -> None:
        """All that a flight waited for has come; its landing buffer is free once its lines were read."""
        del self._flights[flight.step.id]
        flight.read = True
        if flight.landing.holder is flight:  # a step that is over keeps no picture alive
            flight.landing.holder = None

    def records(self, flight: Flight[E], rows: tuple[RowRef, ...]) -> Records:
        """Copies of the records of `rows`, from a flight that has landed."""
        step, host = flight.step, flight.landing.host
        if rows is step.rows or rows == step.rows:
            return self._reader.read(host[: len(rows)], step.id, step.rows)
        place = {ref: i for i, ref in enumerate(step.rows)}
        return unpack_lines(host[[place[ref] for ref in rows]], step.id, Rows(rows))

    def _waiting(self, step: Step, rows: Mapping[RowRef, object]) -> Flight[E]:
        """The flight of a step whose `rows` wait for their masks and whose logits are still there."""
        flight = self._flights.get(step.id)
        idle = set(rows) - flight.waiting if flight is not None else set(rows)
        if flight is None or idle:
            raise InvariantBroken(f"I7: rows {sorted(r.row for r in idle)} of step {step.id} wait for no mask")
        if step.id != self._newest:
            raise InvariantBroken(f"I1: step {self._newest} has overwritten the logits of step {step.id}; park first")
        return flight

    def _unpark(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> Flight[E]:
        """A parked row becomes a small flight of its own, landing in its lane's buffer.

        A row that is only closed needs no logits, so it may leave even if they never reached the lane.
        """
        ref, origin = self._parked.get(step.lane, (None, None))
        closes = ref is None and all(mask is None for mask in masks.values())
        if step.rows != (ref,) and not closes:
            raise InvariantBroken(f"I7: step {step.id} samples {step.rows} from lane {step.lane}, which holds {ref}")
        flight: Flight[E] = Flight(step, self.lanes[step.lane], origin=origin)
        flight.landing.take(flight, self.poison)
        self._parked.pop(step.lane, None)
        self._flights[step.id] = flight
        return flight


def blame(flight: Flight[E]) -> GaplessError | None:
    """What `wait` must raise for a flight that has landed: None, `StepFailed`, or what ends the engine."""
    error = flight.error
    if error is None:
        return None
    if isinstance(error, DeviceLost | InvariantBroken):
        raised: GaplessError = type(error)(str(error))
    else:
        raised = StepFailed(f"step {flight.step.id} failed on the device: {said(error)}")
    raised.__cause__ = error
    return raised


def said(error: BaseException) -> str:
    """An error's type and words."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
