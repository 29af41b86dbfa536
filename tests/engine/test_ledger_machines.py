"""Stateful tests of the ledgers: pages, picture prefixes, rows and the pipeline, each against a naive model of it."""

from collections import Counter, deque

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gapless.engine.pages import PagePool
from gapless.engine.pipeline import Pipeline
from gapless.engine.prefix import PrefixCache
from gapless.engine.rows import RowPool
from gapless.errors import InvariantBroken
from gapless.observe.counters import Counters
from gapless.records import RowRef, Step, StepKind

SIZE, BLOCK = 2, 5
"""Positions of a page, and of a picture's block."""
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


SPACES = [("", ""), ("", "p"), ("a@1", "p"), ("a@2", "p")]
"""Without picture, with one, and with it under two versions of an adapter."""


ITEMS = st.lists(st.sampled_from([1, 1, 1, (5, (0.5,))]), min_size=1, max_size=9)


class PrefixMachine(RuleBasedStateMachine):
    """S-PFX-04: sequences come, speak and go on few beginnings in few pages, beside a plain set of what is known.

    `known`: every beginning (space and items) that whoever comes must be given, and the pages it is in.
    """

    @initialize(keep=st.sampled_from([True, True, True, False]))
    def start(self, keep):
        self.pool, self.counters, self.keep = PagePool(24, SIZE), Counters(), keep
        self.cache = PrefixCache(self.pool, self.counters, keep=keep)
        self.live: dict[RowRef, dict] = {}
        self.next = self.pins = 0

    def _first(self, space):
        return BLOCK if space[1] else 0

    @rule(
        space=st.sampled_from(SPACES), items=st.lists(st.sampled_from([1, 1, 1, (5, (0.5,))]), min_size=1, max_size=9)
    )
    def come(self, space, items):
        path = self.cache.find(space, items)
        self._is_longest(space, items, path)
        first = self._first(space)
        behind = path[-1].end if path else first
        block = -(-first // SIZE) if not path else 0
        count = block + -(-(first + len(items)) // SIZE) - behind // SIZE
        could = self.pool.free + sum(len(e.pages) for e in self.cache.entries() if not e.leases and e not in path)
        self.cache.hold(path)
        evicted = self.counters.prefix_evictions
        taken = self.cache.take(count)
        assert (taken is None) == (count > could)
        if taken is None:
            assert self.counters.prefix_evictions == evicted, "something was lost for nothing"
            self.cache.leave(path)
            return
        self.next += 1
        ref = RowRef(1 + self.next % 5, self.next)
        path = path or [self.cache.publish(space, first, taken[:block], ref)]
        shared = [*path[0].pages[: path[0].end // SIZE], *(page for e in path[1:] for page in e.pages)]
        self.pool.share(tuple(shared))
        pages = [*shared, *taken[block:]]
        self.cache.extend(path, items, pages, ref, through=False)
        self.live[ref] = {"space": space, "items": list(items), "path": path, "pages": pages}

    def _is_longest(self, space, items, path):
        """By comparing with all there is, one by one."""
        matching = []
        for entry in self.cache.entries():
            chain = [entry]
            while chain[0].parent is not None:
                chain.insert(0, chain[0].parent)
            held = [item for e in chain[1:] for item in e.key]
            if chain[0].key == space and len(held) < len(items) and held == items[: len(held)]:
                matching.append(chain)
        assert path == max(matching, key=len, default=[])

    @precondition(lambda self: self.live)
    @rule(data=st.data(), said=st.lists(st.sampled_from([1, 2]), max_size=6), keeps=st.booleans())
    def go(self, data, said, keeps):
        ref = data.draw(st.sampled_from(sorted(self.live, key=str)))
        one = self.live.pop(ref)
        room = len(one["pages"]) * SIZE - self._first(one["space"]) - len(one["items"])
        if keeps:
            self.cache.extend(one["path"], [*one["items"], *said[:room]], one["pages"], ref, through=True)
        withdrawn = one["path"][-1].withdrawn
        self.cache.leave(one["path"])
        self.pool.give_back(tuple(one["pages"]))
        if keeps and self.keep and not withdrawn:
            assert len(self.cache.find(one["space"], [*one["items"], *said[:room], 3])) == len(one["path"])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def withdraw(self, data):
        ref = data.draw(st.sampled_from(sorted(self.live, key=str)))
        made = [entry for entry in self.live[ref]["path"] if entry.maker == ref]
        for _ in range(2):
            self.cache.withdraw(made)
        found = set(self.cache.entries())
        assert not found & {e for entry in made for e in entry.subtree()}

    @rule(count=st.integers(1, 8))
    def somebody_else_takes_pages(self, count):
        """Those that were left the longest ago go, and no more of them than must."""
        idle = list(self.cache.kept())
        short = count - self.pool.free
        taken = self.cache.take(count)
        if taken is None:
            assert short > len(idle) and self.cache.kept() == idle
            return
        assert len(idle) - len(self.cache.kept()) <= max(0, short) + -(-BLOCK // SIZE) - 1
        assert self.cache.kept() == idle[len(idle) - len(self.cache.kept()) :]
        self.pool.give_back(taken)

    @rule(more=st.sampled_from([1, 1, -1]))
    def pin(self, more):
        if more < 0 and not self.pins:
            with pytest.raises(InvariantBroken, match="I5"):
                self.cache.pin("p", more)
            return
        self.pins += more
        kept = set(self.cache.kept())
        self.cache.pin("p", more)
        assert set(self.cache.kept()) == kept

    @rule(space=st.sampled_from(SPACES))
    def nothing_is_published_twice_or_left_twice(self, space):
        roots = {entry.key: entry for entry in self.cache.entries() if entry.parent is None}
        if space in roots:
            with pytest.raises(InvariantBroken, match="I5"):
                self.cache.publish(space, BLOCK, (1, 2), RowRef(1, 1))
            if not roots[space].leases:
                with pytest.raises(InvariantBroken, match="I5"):
                    self.cache.leave([roots[space]])

    @invariant()
    def adds_up(self):
        if not hasattr(self, "cache"):
            return
        found, paths = set(self.cache.entries()), [one["path"] for one in self.live.values()]
        entries = found | {entry for path in paths for entry in path}
        refs = Counter(page for one in self.live.values() for page in one["pages"])
        refs.update(page for entry in entries for page in entry.pages)
        assert refs == {page: self.pool.refs(page) for page in self.pool.held()}
        for entry in entries:
            assert entry.leases == sum(path.count(entry) for path in paths)
            assert entry.withdrawn == (entry not in found)
        idle = [page for entry in entries if not entry.leases for page in entry.pages]
        assert sorted(self.cache.kept()) == sorted(idle) and self.cache.cached == len(idle)
        assert self.keep or not idle
        last = [e for e in found if not e.leases and e.parent is None and e.key[1] == "p"] if self.pins else []
        assert set(self.cache.kept()[len(idle) - sum(len(e.pages) for e in last) :]) == {
            q for e in last for q in e.pages
        }
        assert self.cache.free == self.pool.free + len(idle)
        assert sorted(self.cache.held()) == sorted(entry.pages for entry in entries if entry.leases)


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
        self.pipe = Pipeline(depth, rows=6)
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
            (refs,) = self.pipe.refs_of(np.array([ref.row]))
            assert refs == self._refs(ref) <= self.depth
            assert self.pipe.unsampled(ref) == self._unsampled(ref)
        assert self.pipe.masked == sum(self._unsampled(RowRef(i, 1)) for i in range(1, 6))
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
