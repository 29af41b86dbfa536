"""The referee: judges every call on a device by the numbered invariants, and keeps its own count of what happened.

It sees what the device sees (steps, masks, lanes, arrivals) and nothing else: it never asks the engine. It can stand
before any device. Each row's life is followed with a `Walker` moved by what was committed, so that masks, flags, caps
and muting are checked against the rules, not against the engine's idea of them. A broken invariant raises
`InvariantBroken` naming it; after that, or after `DeviceLost`, nothing more may be launched (I11).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from tests.fakes.life import InFlight, Life
from tests.fakes.look_watch import LookWatch
from tests.fakes.page_watch import PageWatch, broken
from tests.fakes.seat_watch import SeatWatch
from tests.fakes.slot_watch import SlotWatch
from tests.fakes.step_shape import check_shape
from tests.fakes.tally import Tally

from gapless.constrain.table import Table, TokenClass, Walker
from gapless.records import (
    POISON,
    Arrival,
    DeviceLimits,
    Flags,
    Mask,
    Prefill,
    RowRecord,
    RowRef,
    Step,
    StepKind,
)

ENDS = Flags.STOP | Flags.LENGTH | Flags.NONFINITE


@dataclass
class Referee:
    """See the module. Call `launch`, `finalize`, `park`, `release` before the device acts, `wait` before and after.

    `narrower`: host masks may forbid more than the table does.
    """

    limits: DeviceLimits
    table: Table
    tally: Tally = field(default_factory=Tally)
    lives: dict[RowRef, Life] = field(default_factory=dict)
    flights: list[InFlight] = field(default_factory=list)
    lanes: dict[int, RowRef] = field(default_factory=dict)
    dead: bool = False
    narrower: bool = False

    def __post_init__(self) -> None:
        self.pages = PageWatch(self.limits)
        self.looks = LookWatch()
        self.slots = SlotWatch(self.limits)
        self.seats = SeatWatch(self.limits, self.tally)
        self._epochs: dict[int, int] = {}
        self._last_step = -1
        self._unborn: set[RowRef] = set()

    # -- launch ------------------------------------------------------------------------------------------------------

    def launch(self, step: Step) -> None:
        """Judge a launch; the step is in flight afterwards."""
        self._alive("launch")
        slots = [f.step.slot for f in self.flights if f.step.kind is not StepKind.PARKED]
        check_shape(step, slots, self.limits.depth, self._last_step)
        self._last_step = step.id
        self.slots.launch(step)
        self.pages.freed(step.freed)
        for prefill in step.prefills:
            self._start(prefill)
        self._look(step)
        self._grant(step)
        for ref in step.rows:
            self._check_row(step, ref)
        for flight in self.flights:
            if flight.waiting:
                raise broken("I1", f"step {step.id} overwrites the logits of {flight.waiting} (step {flight.step.id})")
        for ref in step.rows:
            life = self.lives[ref]
            life.fed = ref.row not in step.fed
            self.tally.most_refs = max(self.tally.most_refs, life.refs + 1)
            if not life.fed:
                life.rides += 1
                self.tally.parts += 1
                continue
            life.forwards += 1
            life.waiting = ref.row in step.unsampled
            life.sampled += not life.waiting
        waiting = {ref for ref in step.rows if ref.row in step.unsampled}
        self.tally.launches += 1
        self.tally.most_rows = max(self.tally.most_rows, len(step.rows))
        self.tally.overlapped += any(f.step.kind is not StepKind.PARKED for f in self.flights)
        ready = [ref for ref in step.rows if ref not in waiting and ref.row not in step.fed]
        self.flights.append(InFlight(step, waiting, ready))

    def launch_failed(self, step: Step) -> None:
        """The device refused the step: it never was in flight."""
        self._retire(step, well=False)
        for ref in step.rows:
            life = self.lives[ref]
            if ref.row in step.fed:
                life.rides -= 1
            else:
                life.sampled -= not life.waiting
                life.forwards -= 1
            life.waiting = False
            if step.kind is StepKind.PREFILL and life.rides:
                life.ended = life.lost = True  # earlier parts of its prompt are in flight
            elif step.kind is StepKind.PREFILL:
                del self.lives[ref]
                self.pages.end(ref)
                self._unborn.add(ref)
            else:
                self.pages.unwritten(ref, life.base + life.forwards - 1)

    def _start(self, prefill: Prefill) -> None:
        start, ref = prefill.start, prefill.start.ref
        if not 0 < ref.row < self.limits.rows:
            raise broken("I5", f"row {ref.row} is not one of 1..{self.limits.rows - 1}")
        life = self.lives.get(ref)
        if life is not None and (life.fed or life.lost):
            raise broken("I9", f"{ref} is prefilled, but its prompt was launched to its end")
        if life is None:
            self._is_born(ref)
        if not prefill.ids + prefill.prefix_pages or len(prefill.ids) != len(prefill.values):
            raise broken("I5", f"{len(prefill.ids)} ids and {len(prefill.values)} values")
        self.tally.looked += self.looks.fed(prefill)
        if life is not None and life.start is not None:
            if (prefill.position, start) != (life.base, life.start):
                raise broken("I5", f"{ref} goes on at {prefill.position} with {start}, not at {life.base}")
            if prefill.grammar is not None or prefill.adapter is not None:
                raise broken("I5", f"{ref} brings what an earlier part of its prompt has brought")
            self.pages.more(prefill)
            life.base += len(prefill.ids)
            return
        self.seats.start(prefill, self.lives.values())
        self.pages.start(prefill)
        rides = 0 if life is None else life.rides
        walker = Walker(self.table, start.state, start.left, start.left_next, start.objects_left)
        resumed = bool(self._generated(prefill))
        self.lives[ref] = Life(ref, walker, prefill.position + len(prefill.ids), start.host_masked, resumed)
        self.lives[ref].adapter, self.lives[ref].start, self.lives[ref].rides = start.adapter, start, rides
        self.lives[ref].rule = self.seats.rule(prefill)
        self.tally.resumed_in_rule += start.grammar_state > 0
        self.tally.shared_blocks += prefill.position > 0 and prefill.picture is None
        self.tally.cached += prefill.position if prefill.picture is None else 0
        self.tally.copies += prefill.tail is not None
        self.tally.resumed += resumed
        self.tally.resumed_in_object += resumed and self._in_object(walker)

    def _is_born(self, ref: RowRef) -> None:
        if any(other.row == ref.row for other in self.lives):
            raise broken("I9", f"row {ref.row} starts anew while an earlier life of it is not over")
        if ref.epoch <= self._epochs.get(ref.row, -1):
            raise broken("I9", f"{ref} starts, but epoch {self._epochs[ref.row]} of the row was there before")
        self._epochs[ref.row] = ref.epoch

    def _look(self, step: Step) -> None:
        if step.look is None:
            return
        ref = step.look.ref
        if ref not in self.lives:
            self._is_born(ref)
            self.lives[ref] = Life(ref, Walker(self.table, 0, 0, 0, 0), -1, False, False, fed=False)
        self.looks.look(step.look)
        self.tally.looks += 1

    def _generated(self, prefill: Prefill) -> bool:
        """Whether the row continues: it stands elsewhere than at the start of a program, or has spent tokens."""
        start = prefill.start
        return start.state not in self.table.programs.values() or start.left != start.left_next

    def _in_object(self, walker: Walker) -> bool:
        """Whether the row stands inside a point or box: nothing but one spatial id may come."""
        allowed = np.flatnonzero(walker.mask())
        return len(allowed) == 1 and self.table.classes[allowed[0]] in (TokenClass.COORD, TokenClass.SIZE)

    def _grant(self, step: Step) -> None:
        refs = {ref.row: ref for ref in step.rows}
        for grant in step.grants:
            if grant.row not in refs or refs[grant.row] not in self.lives:
                raise broken("I9", f"a grant for row {grant.row}, which the step does not have")
            self.pages.grant(refs[grant.row], grant)

    def _check_row(self, step: Step, ref: RowRef) -> None:
        life = self.lives.get(ref)
        if life is None:
            raise broken("I9", f"{ref} is launched, but lives are {sorted(self.lives, key=repr)}")
        if life.waiting:
            raise broken("I1", f"{ref} goes forward again before it was sampled")
        if life.refs >= self.limits.depth:
            raise broken("I3", f"{ref} rides on {life.refs} steps already, depth is {self.limits.depth}")
        if life.ended or life.closed_at is not None:
            raise broken("I6", f"{ref} is planned after its end was committed")
        if ref.row in step.fed:
            return
        if life.refs - life.rides >= life.walker.remaining():
            raise broken(
                "I3", f"{ref} is planned past its cap: {life.walker.remaining()} to come, {life.refs} in flight"
            )
        if life.host_masked and ref.row not in step.unsampled:
            raise broken("I7", f"host-masked {ref} is sampled without its mask")
        if not life.host_masked and ref.row in step.unsampled:
            raise broken("I7", f"{ref} waits for a mask, but the device has its rules")
        if step.kind is StepKind.DECODE:
            if not life.forwards or not life.fed:
                raise broken("I5", f"{ref} decodes before its prefill")
            self.pages.write(ref, life.base + life.forwards - 1)

    # -- finalize and park -------------------------------------------------------------------------------------------

    def finalize(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> None:
        """Judge a finalize; the rows are sampled (or closed) afterwards."""
        self._alive("finalize")
        flight = self._unpark(step) if step.kind is StepKind.PARKED else self._find(step)
        for ref, mask in masks.items():
            if ref not in flight.waiting:
                raise broken("I7", f"{ref} of step {step.id} does not wait for a mask")
            self._check_mask(self.lives[ref], mask)
        for ref, mask in masks.items():
            life = self.lives[ref]
            flight.waiting.remove(ref)
            flight.ready.append(ref)
            life.waiting = False
            if mask is None:
                life.closed_at = life.sampled
            life.sampled += 1
            self.tally.closed += mask is None

    def _check_mask(self, life: Life, mask: Mask | None) -> None:
        if mask is None:  # a row that ended some other way leaves at once
            return
        if life.committed != life.sampled:
            raise broken("I7", f"{life.ref} is sampled before its previous step was committed")
        if life.ended:
            raise broken("I6", f"{life.ref} is sampled after its end was committed")
        if mask.dtype != np.bool_ or mask.shape != (self.limits.vocab,) or not mask.any():
            raise broken("I7", f"a mask of {mask.dtype} {mask.shape} for {life.ref}")
        own = life.walker.mask()
        if (mask & ~own).any() or not (self.narrower or np.array_equal(mask, own)):
            raise broken("I7", f"the mask of {life.ref} belongs to another state than {life.walker.state}")

    def _unpark(self, step: Step) -> InFlight:
        if self.lanes.get(step.lane) not in step.rows or len(step.rows) != 1:
            raise broken("I7", f"lane {step.lane} holds {self.lanes.get(step.lane)}, not {step.rows}")
        del self.lanes[step.lane]
        flight = InFlight(step, set(step.rows), [])
        self.flights.append(flight)
        return flight

    def finalize_failed(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> None:
        """The device refused: the rows wait still."""
        flight = self._find(step)
        for ref in masks:
            life = self.lives[ref]
            flight.ready.remove(ref)
            flight.waiting.add(ref)
            life.waiting, life.closed_at = True, None
            life.sampled -= 1
        if step.kind is StepKind.PARKED:
            self.flights.remove(flight)
            self.lanes[step.lane] = step.rows[0]

    def park(self, step: Step, lanes: Mapping[RowRef, int]) -> None:
        """Judge a park; the rows are in lanes afterwards."""
        self._alive("park")
        flight = self._find(step)
        for ref, lane in lanes.items():
            if ref not in flight.waiting:
                raise broken("I7", f"{ref} of step {step.id} is parked but does not wait for a mask")
            if lane in self.lanes:
                raise broken("I4", f"lane {lane} is taken by {self.lanes[lane]}")
            flight.waiting.remove(ref)
            self.lanes[lane] = ref
            self.tally.parked += 1

    def _find(self, step: Step) -> InFlight:
        for flight in self.flights:
            if flight.step.id == step.id and flight.step.kind is step.kind:
                return flight
        raise broken("I2", f"step {step.id} is not in flight")

    # -- wait and release --------------------------------------------------------------------------------------------

    def before_wait(self, step: Step, rows: tuple[RowRef, ...]) -> None:
        """Judge the call itself: order, and that all it asks for was sampled."""
        self._alive("wait")
        flight = self._find(step)
        if self.flights[0] is not flight:
            raise broken("I2", f"step {step.id} is waited for before step {self.flights[0].step.id}")
        if flight.waiting:
            raise broken("I7", f"step {step.id} is waited for while {flight.waiting} were not sampled")
        if len(rows) != len(flight.ready) or set(rows) != set(flight.ready):
            raise broken("I2", f"rows {rows} of step {step.id} are waited for, sampled were {flight.ready}")

    def after_wait(self, step: Step, rows: tuple[RowRef, ...], arrival: Arrival) -> None:
        """Judge what came back; the step is committed afterwards."""
        if arrival.step_id != step.id:
            raise broken("I4", f"the results of step {arrival.step_id} arrived for step {step.id}")
        if tuple(record.ref for record in arrival.records) != rows:
            raise broken("I9", f"records {[r.ref for r in arrival.records]} arrived for {rows}")
        self._note_overlap(step)
        self._unload(step)
        self._retire(step)
        for record in arrival.records:
            self._commit(self.lives[record.ref], record)

    def wait_failed(self, step: Step) -> None:
        """The step failed on the device: its rows are lost, and those whose token tables it should have brought."""
        for ref in self._find(step).ready:
            self.lives[ref].committed += 1
            self.lives[ref].ended = self.lives[ref].lost = True
        brought = {prefill.start.grammar for prefill in step.prefills if prefill.grammar is not None}
        for life in self.lives.values():
            if life.start is not None and life.start.grammar in brought:
                life.ended = life.lost = True
        self._unload(step, lost=True)
        self._retire(step, well=False)

    def _note_overlap(self, step: Step) -> None:
        others = {f.step.kind for f in self.flights if f.step is not step}
        decode, prefill = StepKind.DECODE, StepKind.PREFILL
        self.tally.decode_committed_during_prefill += step.kind is decode and prefill in others
        self.tally.prefill_committed_during_decode += step.kind is prefill and decode in others

    def _unload(self, step: Step, lost: bool = False) -> None:
        for life in [self.lives[ref] for ref in step.rows if ref.row in step.fed and ref in self.lives]:
            life.rides -= 1
            life.ended, life.lost = life.ended or lost, life.lost or lost

    def _retire(self, step: Step, well: bool = True) -> None:
        self.slots.retire(step, well)
        self.flights = [f for f in self.flights if f.step.id != step.id]

    def _commit(self, life: Life, record: RowRecord) -> None:
        life.committed += 1
        if life.lost:  # its step failed: what later steps bring of it means nothing
            return
        closed = life.closed_at == life.committed - 1
        if life.ended or closed:
            if record.token is not None or Flags.MUTED not in record.flags:
                raise broken("I6", f"{life.ref} ended, yet a step brings {record}")
            self.tally.zombies += not closed
            life.ended = True
            return
        if Flags.NONFINITE in record.flags:
            life.ended = True
            return
        if record.token is None or Flags.MUTED in record.flags:
            raise broken("I6", f"{life.ref} has not ended, yet a step brings {record}")
        token = record.token
        if token.id == POISON or POISON in token.values or not 0 <= token.id < self.limits.vocab:
            raise broken("I4", f"an unwritten landing buffer was read: {token}")
        if not life.walk.mask()[token.id]:
            raise broken("I7", f"{life.ref} got token {token.id}, which state {life.walker.state} forbids")
        head, flags = life.walk.advance(token.id)
        if len(token.values) != int(head):  # a head's number is how many values it gives
            raise broken("I6", f"{life.ref} got values {token.values} from head {head!r}")
        if flags != record.flags & ENDS:
            raise broken("I6", f"{life.ref}: the rules say {flags!r}, the device {record.flags!r}")
        life.ended = bool(flags)

    def release(self, ref: RowRef) -> None:
        """Judge a release; the row is free afterwards."""
        if ref in self._unborn:
            self._unborn.remove(ref)
            return
        life = self.lives.get(ref)
        if life is None and ref.epoch > self._epochs.get(ref.row, -1):  # none of its prompt was ever launched
            return
        if life is None:
            raise broken("I9", f"{ref} is released, but lives are {sorted(self.lives, key=repr)}")
        if life.refs or life.waiting:
            raise broken("I5", f"{ref} is released while {life.refs} steps hold it")
        del self.lives[ref]
        self.pages.end(ref)

    def lost(self) -> None:
        """The device is gone, or an invariant broke."""
        self.dead = True

    def _alive(self, call: str) -> None:
        if self.dead:
            raise broken("I11", f"{call} after the device was lost")

    def audit(self) -> None:
        """When idle: no row, step or lane is left."""
        left = {"rows": list(self.lives), "steps": [f.step.id for f in self.flights], "lanes": self.lanes}
        if any(left.values()):
            raise broken("I5", f"left behind when idle: {left}")
