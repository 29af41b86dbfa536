"""Stateful tests of the ledgers: pages, picture prefixes, rows and the pipeline, each against a naive model of it."""

from collections import Counter, deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gapless.engine.pages import PagePool
from gapless.engine.pipeline import Pipeline
from gapless.engine.prefix import PrefixTable
from gapless.engine.rows import RowPool
from gapless.errors import InvariantBroken
from gapless.records import RowRef, Step, StepKind

MACHINE = settings(max_examples=60, stateful_step_count=50, derandomize=True, deadline=None)


class PageMachine(RuleBasedStateMachine):
    """Takes, shares and gives back at random; a page is free exactly when nobody holds it."""

    @initialize(pages=st.integers(2, 12))
    def start(self, pages):
        self.pool = PagePool(pages, 4)
        self.total = pages - 1
        self.held: Counter[int] = Counter()
        self.freed: list[int] = []

    @rule(count=st.integers(0, 6))
    def take(self, count):
        taken = self.pool.take(count)
        if count > self.total - len(+self.held):
            assert taken is None
            return
        assert taken is not None and len(set(taken)) == count
        assert not set(taken) & set(+self.held) and 0 not in taken
        self.held.update(taken)

    @rule(data=st.data())
    def share(self, data):
        pages = data.draw(st.lists(st.sampled_from(sorted(+self.held) or [0]), max_size=4, unique=True))
        if self.held and pages:
            self.pool.share(tuple(pages))
            self.held.update(pages)

    @rule(data=st.data())
    def give_back(self, data):
        pages = data.draw(st.lists(st.sampled_from(sorted(+self.held) or [0]), max_size=4, unique=True))
        if +self.held:
            self.pool.give_back(tuple(pages))
            self.held.subtract(pages)
            self.freed += [page for page in pages if not self.held[page]]

    @rule()
    def take_freed(self):
        assert self.pool.take_freed() == tuple(self.freed)
        self.freed = []

    @rule(page=st.integers(1, 11))
    def free_pages_are_neither_shared_nor_given_back(self, page):
        if page <= self.total and not self.held[page]:
            with pytest.raises(InvariantBroken, match="I5"):
                self.pool.share((page,))
            with pytest.raises(InvariantBroken, match="I5"):
                self.pool.give_back((page,))

    @invariant()
    def adds_up(self):
        if hasattr(self, "pool"):
            assert self.pool.held() == sorted(+self.held)
            assert self.pool.free + len(+self.held) == self.total
            assert all(self.pool.refs(page) == count for page, count in self.held.items())


class PrefixMachine(RuleBasedStateMachine):
    """S-PFX-04: requests come and go on few pictures; an entry's pages live as long as its last holder."""

    @initialize()
    def start(self):
        self.pool = PagePool(40, 4)
        self.table = PrefixTable(self.pool)
        self.holders: dict[RowRef, object] = {}
        self.findable: dict[str, object] = {}
        self.next = 0

    @rule(key=st.sampled_from("abc"))
    def come(self, key):
        self.next += 1
        ref = RowRef(1 + self.next % 5, self.next)
        entry = self.table.find(key)
        assert entry is self.findable.get(key)
        if entry is None:
            pages = self.pool.take(3)
            if pages is None:
                return
            entry = self.findable[key] = self.table.publish(key, pages, ref)
        entry.holders.add(ref)
        self.holders[ref] = entry

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def go(self, data):
        ref = data.draw(st.sampled_from(sorted(self.holders, key=str)))
        entry = self.holders.pop(ref)
        self.table.leave(entry, ref)
        if entry not in self.holders.values() and self.findable.get(entry.key) is entry:
            del self.findable[entry.key]

    @precondition(lambda self: self.findable)
    @rule(data=st.data())
    def withdraw(self, data):
        entry = self.findable.pop(data.draw(st.sampled_from(sorted(self.findable))))
        self.table.withdraw(entry)
        self.table.withdraw(entry)

    @rule(key=st.sampled_from("abc"))
    def nothing_is_published_twice(self, key):
        if key in self.findable:
            with pytest.raises(InvariantBroken, match="I5"):
                self.table.publish(key, (1, 2, 3), RowRef(1, 1))

    @invariant()
    def adds_up(self):
        if not hasattr(self, "table"):
            return
        entries = set(map(id, self.holders.values()))
        assert len(self.table.held()) == len(entries)
        assert len(self.pool.held()) == 3 * len(entries)
        for key in "abc":
            assert self.table.find(key) is self.findable.get(key)


class RowMachine(RuleBasedStateMachine):
    """Rows are leased and come back; no two lives of a row are alike."""

    @initialize(rows=st.integers(2, 6))
    def start(self, rows):
        self.pool, self.rows = RowPool(rows), rows
        self.leased: list[RowRef] = []
        self.seen: set[RowRef] = set()

    @rule()
    def lease(self):
        if len(self.leased) < self.rows - 1:
            ref = self.pool.lease()
            assert 0 < ref.row < self.rows and ref not in self.seen
            assert ref.row not in {r.row for r in self.leased}
            self.leased.append(ref)
            self.seen.add(ref)

    @rule(data=st.data())
    def give_back(self, data):
        if self.leased:
            ref = data.draw(st.sampled_from(self.leased))
            self.leased.remove(ref)
            self.pool.give_back(ref)
            with pytest.raises(InvariantBroken, match="I5"):
                self.pool.give_back(ref)

    @invariant()
    def adds_up(self):
        if hasattr(self, "pool"):
            assert self.pool.free == self.rows - 1 - len(self.leased)
            assert set(self.pool.held()) == set(self.leased)


class PipelineMachine(RuleBasedStateMachine):
    """Launch, sample, park, unpark and retire at random, beside a naive list of steps in flight."""

    @initialize(depth=st.integers(1, 4))
    def start(self, depth):
        self.depth = depth
        self.pipe = Pipeline(depth, lanes=5 * depth)
        self.flights: deque[tuple[Step, set[RowRef], list[RowRef]]] = deque()
        self.parked: dict[RowRef, int] = {}
        self.next = 0

    def _refs(self, ref: RowRef) -> int:
        return (ref in self.parked) + sum(ref in waiting or ref in ready for _, waiting, ready in self.flights)

    def _unsampled(self, ref: RowRef) -> bool:
        return ref in self.parked or any(ref in waiting for _, waiting, _ in self.flights)

    @rule(data=st.data())
    def launch(self, data):
        slot = self.pipe.free_slot()
        used = {step.slot for step, _, _ in self.flights if step.kind is not StepKind.PARKED}
        assert (slot is None) == (len(used) == self.depth) and slot not in used
        able = [RowRef(i, 1) for i in range(1, 6)]
        able = [r for r in able if self._refs(r) < self.depth and not self._unsampled(r)]
        if slot is None or not able:
            return
        rows = tuple(data.draw(st.lists(st.sampled_from(able), min_size=1, unique=True)))
        unsampled = data.draw(st.sets(st.sampled_from(rows)))
        self.next += 1
        step = Step(self.next, StepKind.DECODE, rows, slot, frozenset(r.row for r in unsampled))
        flight = self.pipe.launch(step)
        assert flight.waiting == unsampled
        self.flights.append((step, set(unsampled), [r for r in rows if r not in unsampled]))

    @rule(data=st.data())
    def sample(self, data):
        for flight, (_, waiting, ready) in zip(self.pipe.flights, self.flights, strict=True):
            if waiting:
                some = data.draw(st.lists(st.sampled_from(sorted(waiting, key=str)), unique=True))
                self.pipe.sampled(flight, some)
                waiting.difference_update(some)
                ready.extend(some)

    @rule()
    def park(self):
        for flight, (_, waiting, _) in zip(self.pipe.flights, self.flights, strict=True):
            lanes = self.pipe.park(flight)
            assert set(lanes) == waiting
            busy = [*self.parked.values(), *(s.lane for s, _, _ in self.flights if s.kind is StepKind.PARKED)]
            assert len({*busy, *lanes.values()}) == len(busy) + len(lanes), "a lane was given twice"
            self.parked.update(lanes)
            waiting.clear()

    @rule(data=st.data())
    def unpark(self, data):
        assert {p.ref: p.lane for p in self.pipe.parked} == self.parked
        if self.parked:
            parked = data.draw(st.sampled_from(self.pipe.parked))
            self.next += 1
            step = Step(self.next, StepKind.PARKED, (parked.ref,), -1, lane=parked.lane)
            self.pipe.unpark(parked, step)
            del self.parked[parked.ref]
            self.flights.append((step, set(), [parked.ref]))

    @rule()
    def retire(self):
        if self.flights and not self.flights[0][1]:
            if len(self.flights) > 1:
                with pytest.raises(InvariantBroken, match="I2"):
                    self.pipe.retire(self.pipe.flights[1])
            self.pipe.retire(self.pipe.oldest())
            self.flights.popleft()
        elif self.flights:
            with pytest.raises(InvariantBroken, match="I2"):
                self.pipe.retire(self.pipe.oldest())

    @rule()
    def too_much_is_refused(self):
        slot = self.pipe.free_slot()
        full = [r for r in (RowRef(i, 1) for i in range(1, 6)) if self._unsampled(r)]
        wrong = (slot or 0) + 1 if slot is None or self.depth > 1 else 7
        with pytest.raises(InvariantBroken, match="I4"):
            self.pipe.launch(Step(99_999, StepKind.DECODE, (RowRef(9, 1),), wrong if slot != wrong else 8))
        assert all(self.pipe.unsampled(ref) for ref in full)

    @invariant()
    def adds_up(self):
        if not hasattr(self, "pipe"):
            return
        for ref in (RowRef(i, 1) for i in range(1, 6)):
            assert self.pipe.refs(ref) == self._refs(ref) <= self.depth
            assert self.pipe.unsampled(ref) == self._unsampled(ref)
        assert self.pipe.empty == (not self.flights and not self.parked)
        full = len([s for s, _, _ in self.flights if s.kind is not StepKind.PARKED]) == self.depth
        assert self.pipe.must_settle(None) == (full or any(ready for _, _, ready in self.flights))


TestPages = PageMachine.TestCase
TestPrefixes = PrefixMachine.TestCase
TestRows = RowMachine.TestCase
TestPipeline = PipelineMachine.TestCase
TestPages.settings = MACHINE
TestPrefixes.settings = MACHINE
TestRows.settings = MACHINE
TestPipeline.settings = MACHINE
