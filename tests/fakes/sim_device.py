"""A device on a simulated clock: the loop's machine without a machine.

It keeps the device protocol with its own rows, memory, table walking and sampling (nothing of `gapless.device` but the
protocol), computes at once what a stream would compute in order, and lets results land at the simulated time at which
a real copy would. Times are settable; bookkeeping is charged to the host when `wait` returns. A referee judges every
call. Landing buffers are poisoned at launch and stamped with their step.

What flows in: steps, masks. What flows out: arrivals, an event log with simulated times. Invariant: a step's results
are a pure function of the steps launched before it, never of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from tests.fakes import hash_language as lang
from tests.fakes.adjusted import adjusted_by
from tests.fakes.draw import draw
from tests.fakes.hash_language import HashSpec, Hidden
from tests.fakes.judged import Judged
from tests.fakes.page_watch import broken
from tests.fakes.referee import Referee
from tests.fakes.sim_clock import SimClock
from tests.fakes.sim_memory import PagedMemory, SimRow
from tests.fakes.sim_timing import Timing

from gapless.constrain.table import Table, Walker
from gapless.constrain.tokens import TokenWalker
from gapless.costs import Costs
from gapless.errors import DeviceLost, StepFailed
from gapless.records import (
    POISON,
    Arrival,
    DeviceLimits,
    DeviceSpan,
    Flags,
    Lane,
    Mask,
    Prefill,
    RowRecord,
    RowRef,
    Step,
    StepKind,
    Token,
    TokenTable,
    ValueHead,
)

SPANS = {"forward": (Lane.COMPUTE, "forward"), "sample": (Lane.COMPUTE, "sampling"), "copy": (Lane.COPY, "copy")}
"""Events that a timeline shows, as it names them."""


@dataclass(frozen=True)
class Event:
    """Something that happened, from `start` to `end`.

    Names: launch, forward, sample, copy, park, wait, commit, release.
    """

    name: str
    step: int
    kind: StepKind | None
    rows: tuple[RowRef, ...]
    start: float
    end: float


@dataclass
class Fault:
    """Something to go wrong: `error` at the `nth` (from 0) use of `call`.

    `launch`, `finalize`, `park` and `wait` raise from the call itself, before it did anything; `device` lets a launch
    return and its step fail later, so that `wait` raises. `rows` of `step` are what it hit.
    """

    call: str
    nth: int
    error: Exception = field(default_factory=lambda: StepFailed("an injected fault"))
    rows: tuple[RowRef, ...] = ()
    step: int = -1


@dataclass
class Landing:
    """One landing buffer. `stamp`: the step it was poisoned for; cells hold None until a record has landed."""

    stamp: int = POISON
    cells: dict[RowRef, RowRecord | None] = field(default_factory=dict)
    lands: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    paused: float = 0.0
    spans: list[DeviceSpan] = field(default_factory=list)


class SimDevice:
    """See the module."""

    def __init__(
        self,
        limits: DeviceLimits,
        table: Table,
        spec: HashSpec,
        clock: SimClock,
        timing: Timing | None = None,
        faults: tuple[Fault, ...] = (),
        costs: Costs | None = None,
    ) -> None:
        self.costs = costs
        self.limits = limits
        self.referee = Referee(limits, table)
        self.events: list[Event] = []
        self.cursed: set[Hidden] = set()
        self.faults = list(faults)
        self.closed = False
        self._table = table
        self._spec = spec
        self._clock = clock
        self._timing = timing or Timing()
        self._memory = PagedMemory(spec, limits.pages, limits.page_size)
        self._rows: dict[RowRef, SimRow] = {}
        self._landings = [Landing() for _ in range(limits.depth)]
        self._lane_landings = [Landing() for _ in range(limits.rows * limits.depth)]
        self._lanes: dict[int, Hidden] = {}
        self._tables: dict[int, TokenTable] = {}
        self._adapters = [0] * (limits.adapters + 1)
        self._failed: dict[int, Exception] = {}
        self._failed_rows: dict[RowRef, Exception] = {}
        self._calls: dict[str, int] = {}
        self._compute_free = 0.0
        self._copy_free = 0.0

    # -- protocol ----------------------------------------------------------------------------------------------------

    def launch(self, step: Step) -> None:
        """See `Device`."""
        with self._judged():
            self.referee.launch(step)
        try:
            self._fault("launch", step, step.rows)
        except Exception:
            self.referee.launch_failed(step)
            raise
        began = self._clock.now()
        self._clock.advance(self._timing.launch)
        self._log("launch", step, step.rows, began, self._clock.now())
        self._memory.poison(step.freed)
        self._poison_landing(self._landings[step.slot], step, step.rows)
        try:
            self._fault("device", step, step.rows)
        except Exception as error:
            self._failed[step.id] = error
        with self._judged():
            self._compute(step)

    def finalize(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> None:
        """See `Device`."""
        with self._judged():
            self.referee.finalize(step, masks)
        try:
            self._fault("finalize", step, masks)
        except Exception:
            self.referee.finalize_failed(step, masks)
            raise
        landing = self._landing(step)
        if step.kind is StepKind.PARKED:
            self._poison_landing(landing, step, step.rows)
            ref = step.rows[0]
            if masks[ref] is not None or step.lane in self._lanes:  # closing needs no logits
                self._rows[ref].hidden = self._lanes.pop(step.lane)
            landing.started = landing.ended = max(self._clock.now(), self._compute_free)
        self._sample(step, landing, dict(masks))

    def park(self, step: Step, lanes: Mapping[RowRef, int]) -> None:
        """See `Device`."""
        with self._judged():
            self.referee.park(step, lanes)
        self._fault("park", step, lanes)
        self._log("park", step, tuple(lanes), self._clock.now(), self._clock.now())
        for ref, lane in lanes.items():
            self._lanes[lane] = self._rows[ref].hidden

    def wait(self, step: Step, rows: tuple[RowRef, ...]) -> Arrival:
        """See `Device`. The host's clock moves to the landing, then on by the bookkeeping the commit will cost."""
        with self._judged():
            self.referee.before_wait(step, rows)
        self._fail_wait(step, rows)
        landing, began = self._landing(step), self._clock.now()
        self._clock.advance_to(landing.lands)
        landed = self._clock.now()
        self._log("wait", step, rows, began, landed)
        arrival = self._read(step, landing, rows, landed)
        with self._judged():
            self.referee.after_wait(step, rows, arrival)
        self._clock.advance(self._timing.bookkeeping if rows else 0.0)
        self._log("commit", step, rows, landed, self._clock.now())
        return arrival

    def watch(self, steps: int) -> None:
        pass

    def release(self, ref: RowRef) -> None:
        """See `Device`."""
        with self._judged():
            self.referee.release(ref)
        self.events.append(Event("release", -1, None, (ref,), self._clock.now(), self._clock.now()))
        self._rows.pop(ref, None)
        self._failed_rows.pop(ref, None)

    def close(self) -> None:
        """See `Device`."""
        self.closed = True

    def audit(self) -> None:
        """When idle: nothing is left behind."""
        self.referee.audit()
        if self._rows or self._lanes:
            raise broken("I5", f"left on the device when idle: rows {list(self._rows)}, lanes {self._lanes}")

    # -- compute stream ----------------------------------------------------------------------------------------------

    def _compute(self, step: Step) -> None:
        for grant in step.grants:
            row = next(self._rows[ref] for ref in step.rows if ref.row == grant.row)
            row.table.extend(grant.pages)
        for prefill in step.prefills:
            self._start(prefill, failed=step.id in self._failed)
        if (look := step.look) is not None:
            self._memory.look(look)
        landing = self._landings[step.slot]
        length = self._timing.forward
        if step.kind is StepKind.PREFILL and self._timing.prefill is not None:
            length = self._timing.prefill
        landing.started = max(self._clock.now(), self._compute_free)
        self._compute_free = landing.started + length
        landing.lands = landing.ended = self._compute_free
        self._log("forward", step, step.rows, landing.started, self._compute_free)
        if step.id in self._failed:
            for ref in step.rows:
                if ref not in self._rows:  # it was looked for only
                    continue
                self._rows[ref].done = True
                if ref.row in step.unsampled:
                    self._failed_rows[ref] = self._failed[step.id]
        elif step.kind is StepKind.DECODE:
            for ref in step.rows:
                self._decode(self._rows[ref])
        sampled = {ref: None for ref in step.rows if ref.row not in step.unsampled | step.fed}
        if sampled:
            self._sample(step, landing, {ref: self._rows[ref].walk.mask() for ref in sampled})

    def _start(self, prefill: Prefill, failed: bool) -> None:
        start = prefill.start
        if prefill.adapter and not failed:
            self._adapters[start.adapter] = prefill.adapter.weights
        if prefill.grammar and not failed:
            self._tables[start.grammar] = prefill.grammar.table
        walker = Walker(self._table, start.state, start.left, start.left_next, start.objects_left)
        row = SimRow(start, list(prefill.pages), walker, prefill.position, adapter=self._adapters[start.adapter])
        table = self._tables.get(start.grammar)
        row.rule = table and TokenWalker(table, start.grammar_state)
        self._rows[start.ref] = row
        if failed:
            full, size = prefill.position // self.limits.page_size, self.limits.page_size
            self._memory.ruin(prefill.prefix_pages)
            self._memory.ruin(prefill.pages[full:], full * size)
            return
        words = self._memory.seen(prefill)
        if prefill.picture is not None:
            self._memory.write_block(prefill.prefix_pages, words.pop(0), row.adapter)
        if prefill.tail is not None:
            self._memory.copy_page(*prefill.tail)
        insets = dict(zip((inset.at for inset in prefill.insets), words, strict=True))
        while (at := row.position - prefill.position) < len(prefill.ids):
            if at in insets:
                self._show(row, insets[at])
            else:
                self._feed(row, prefill.ids[at], prefill.values[at])

    def _show(self, row: SimRow, word: int) -> None:
        self._memory.write_inset(row.table, word, row.position, row.adapter)
        row.position += self._spec.prefix - 1

    def _decode(self, row: SimRow) -> None:
        if row.done:
            return
        if row.last is None:
            raise broken("I1", f"{row.start.ref} goes forward, but its last sample is not there")
        token, row.last = row.last, None
        self._feed(row, token.id, token.values)

    def _feed(self, row: SimRow, token_id: int, values: tuple[float, ...]) -> None:
        own = lang.word_of(self._spec, token_id, values) ^ row.adapter
        row.hidden = self._memory.forward(row.table, row.position, own)
        row.position += 1

    def _sample(self, step: Step, landing: Landing, masks: dict[RowRef, Mask | None]) -> None:
        began = max(self._clock.now(), self._compute_free)
        self._compute_free = began + self._timing.sampling
        landing.paused += began - landing.ended
        landing.ended = self._compute_free
        landing.lands = self._copy_free = max(self._copy_free, landing.ended) + self._timing.copy
        self._log("sample", step, tuple(masks), began, landing.ended)
        self._log("copy", step, tuple(masks), landing.ended, landing.lands)
        for ref, mask in masks.items():
            if landing.stamp != step.id or ref not in landing.cells:
                raise broken("I4", f"step {step.id} lands in a buffer stamped {landing.stamp}")
            landing.cells[ref] = self._sample_row(self._rows[ref], ref, mask)

    def _sample_row(self, row: SimRow, ref: RowRef, mask: Mask | None) -> RowRecord:
        if row.done or mask is None:
            row.done = True
            return RowRecord(ref, Flags.MUTED, None)
        scores = lang.scores(self._spec, row.hidden)
        if row.hidden in self.cursed or not np.isfinite(scores).all():
            row.done = True
            return RowRecord(ref, Flags.NONFINITE, None)
        s = row.start
        if s.adjustment is not None:
            scores = adjusted_by(scores, mask, s.adjustment, row.walker, row.said)
        chosen = draw(scores, mask, s.temperature, s.top_p, s.seed, row.position, s.top_logprobs)
        head, flags = row.walk.advance(chosen.id)
        token = Token(chosen.id, self._values(head, row.hidden), chosen.logprob, chosen.top)
        row.last, row.done = token, bool(flags)
        row.said.append(token.id)
        return RowRecord(ref, flags, token)

    def _values(self, head: ValueHead, hidden: Hidden) -> tuple[float, ...]:
        if head is ValueHead.COORD:
            return (lang.coord_of(hidden),)
        return lang.size_of(hidden) if head is ValueHead.SIZE else ()

    # -- landing buffers ---------------------------------------------------------------------------------------------

    def _landing(self, step: Step) -> Landing:
        return self._lane_landings[step.lane] if step.kind is StepKind.PARKED else self._landings[step.slot]

    def _poison_landing(self, landing: Landing, step: Step, rows: tuple[RowRef, ...]) -> None:
        landing.stamp = step.id
        landing.paused, landing.spans = 0.0, []
        landing.cells = dict.fromkeys(rows)

    def _read(self, step: Step, landing: Landing, rows: tuple[RowRef, ...], landed: float) -> Arrival:
        records = []
        for ref in rows:
            record = landing.cells.get(ref)
            if landing.stamp != step.id or record is None:
                raise broken(
                    "I4", f"the landing buffer of step {step.id} holds step {landing.stamp}, nothing for {ref}"
                )
            records.append(record)
        found = tuple(records), landing.started, landing.ended, landing.paused, landed, tuple(landing.spans)
        return Arrival(step.id, *found)

    # -- faults and log ----------------------------------------------------------------------------------------------

    def _fault(self, call: str, step: Step, rows: Iterable[RowRef]) -> None:
        """Raise the fault that is due at this use of `call`."""
        nth = self._calls.get(call, 0)
        self._calls[call] = nth + 1
        for fault in self.faults:
            if fault.call == call and fault.nth == nth:
                fault.rows, fault.step = tuple(rows), step.id
                if isinstance(fault.error, DeviceLost) and call != "device":
                    self.referee.lost()
                raise fault.error

    def _fail_wait(self, step: Step, rows: tuple[RowRef, ...]) -> None:
        try:
            self._fault("wait", step, step.rows)
            parked = step.rows if step.kind is StepKind.PARKED else ()
            causes = [self._failed_rows[ref] for ref in parked if ref in self._failed_rows]
            causes += [self._failed[step.id]] if step.id in self._failed else []
            if causes and isinstance(causes[0], DeviceLost):
                self.referee.lost()
                raise causes[0]
            if causes:
                raise StepFailed(f"step {step.id} failed on the device") from causes[0]
        except Exception:
            self.referee.wait_failed(step)
            for ref in rows:
                self._rows[ref].done = True
            raise

    def _judged(self) -> Judged:
        return Judged(self.referee)

    def _log(self, name: str, step: Step, rows: tuple[RowRef, ...], start: float, end: float) -> None:
        self.events.append(Event(name, step.id, step.kind, rows, start, end))
        if name in SPANS:
            self._landing(step).spans.append(DeviceSpan(*SPANS[name], start, end))
