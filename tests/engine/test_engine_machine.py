"""The planner and the whole engine driven at random: hypothesis chooses what arrives, what is said, what is cancelled.

`PlannerMachine` has no device at all: steps are judged by the referee and answered with random legal tokens, so ends
come at every possible time. `EngineMachine` runs the loop on the simulated device and compares with the oracle.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.fakes.adapters import HASHED
from tests.fakes.hash_language import HashSpec
from tests.fakes.masks import SimMasks
from tests.fakes.oracle import answer
from tests.fakes.referee import Referee
from tests.fakes.scene import ask, limits_of, picture, sim_stage, table_of
from tests.fakes.sim_clock import SimClock, SimMailbox
from tests.fakes.sim_device import Timing
from tests.fakes.verdict import judge

from gapless.config import EngineConfig
from gapless.constrain.table import PROGRAMS, Walker
from gapless.engine.build import Engine
from gapless.engine.mailbox import Mail
from gapless.errors import PromptTooLong, RequestCancelled, RequestTimeout, RequestTooLarge
from gapless.records import Arrival, DeviceLimits, Flags, RowRecord, Token

SPEC = HashSpec(prefix=5, max_context=64)
TABLE = table_of(SPEC)
MACHINE = settings(max_examples=30, stateful_step_count=60, derandomize=True, deadline=None)
LONG = settings(MACHINE, max_examples=200)

requests = st.tuples(
    st.sampled_from(PROGRAMS),
    st.integers(1, 7),
    st.sampled_from([None, 1, 2]),
    st.integers(1, 12),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([None, None, *HASHED[:2]]),
)
"""Program, prompt length, picture, max_tokens, max_objects, host-masked, adapter."""


def request_of(number, drawn):
    program, length, shown, most, objects, host, adapter = drawn
    ids = range(10 + number % 3, 10 + number % 3 + length)  # many begin alike
    shown = picture(shown) if shown is not None else None
    made = ask(number, program, ids=tuple(ids), shown=shown, max_tokens=most, max_objects=objects, seed=number)
    return replace(made, host_masked=host, adapter=adapter)


@dataclass
class NoDevice:
    """Has sizes and nothing else: the planner's machine answers steps itself."""

    limits: DeviceLimits


class PlannerMachine(RuleBasedStateMachine):
    @initialize(depth=st.integers(1, 4), pages=st.integers(9, 26), rows=st.integers(3, 6), prefills=st.integers(1, 3))
    def start(self, depth, pages, rows, prefills):
        limits = limits_of(SPEC, depth, rows=rows, pages=pages, page_size=4, adapters=1)
        config = EngineConfig(lookahead=6, prefills_per_step=prefills)
        clock = SimClock()
        masks = SimMasks(clock, (0.0, 0.0))
        self.engine = Engine(NoDevice(limits), TABLE, config, masks, SimMailbox(clock, masks.next_ready), clock)
        self.referee = Referee(limits, TABLE)
        self.walkers: dict[object, Walker] = {}
        self.records: dict[int, dict[object, RowRecord]] = {}
        self.count = 0

    @rule(drawn=requests)
    def submit(self, drawn):
        self.count += 1
        request = replace(request_of(self.count, drawn), host_masked=False)
        self.engine.book.take_mail(Mail((request,)), 0.0)

    @rule(data=st.data())
    def cancel(self, data):
        if self.count:
            number = data.draw(st.integers(1, self.count))
            self.engine.book.take_mail(Mail(cancels=(number,)), 0.0)

    @rule(seed=st.integers(0, 2**32))
    def launch(self, seed):
        step = self.engine.loop.planner.next(self.engine.pipeline, 0.0)
        if step is None:
            return
        self.referee.launch(step)
        self.engine.pipeline.launch(step)
        for prefill in step.prefills:
            s = prefill.start
            self.walkers[s.ref] = Walker(TABLE, s.state, s.left, s.left_next, s.objects_left)
        random = np.random.default_rng(seed)
        self.records[step.id] = {ref: self._say(ref, random) for ref in step.rows}

    def _say(self, ref, random) -> RowRecord:
        """What a device would: a random legal token, ends favoured; muted once the row has ended."""
        walker = self.walkers[ref]
        if walker is None:
            return RowRecord(ref, Flags.MUTED, None)
        legal = np.flatnonzero(walker.mask())
        likely = [i for i in (SPEC.rules.end, SPEC.rules.answer) if i in legal]
        token = int(random.choice(likely if likely and random.random() < 0.25 else legal))
        head, flags = walker.advance(token)
        if flags:
            self.walkers[ref] = None
        return RowRecord(ref, flags, Token(token, tuple(0.5 for _ in range(int(head)))))

    @precondition(lambda self: not self.engine.pipeline.empty)
    @rule()
    def settle(self):
        flight = self.engine.pipeline.oldest()
        rows = tuple(flight.sampled)
        self.referee.before_wait(flight.step, rows)
        arrival = Arrival(flight.step.id, tuple(self.records[flight.step.id][ref] for ref in rows), 0.0, 0.0)
        self.referee.after_wait(flight.step, rows, arrival)
        for record in arrival.records:
            self.engine.book.commit(record, 0.0)
        self.engine.pipeline.retire(flight)

    @rule()
    def release(self):
        for seq in self.engine.book.releasable(self.engine.pipeline):
            self.referee.release(self.engine.book.release(seq))

    @invariant()
    def ledgers_add_up(self):
        if not hasattr(self, "engine"):
            return
        held: dict[int, int] = {}
        roster = self.engine.roster.by_age()
        for pages in [seq.pages for seq in roster]:
            for page in pages:
                held[page] = held.get(page, 0) + 1
        cache = self.engine.ledgers.prefixes
        entries = {*cache.entries(), *(entry for seq in roster for entry in seq.path)}
        for entry in entries:
            assert entry.leases == sum(seq.path.count(entry) for seq in roster)
            for page in entry.pages:
                held[page] = held.get(page, 0) + 1
        assert held == {page: self.engine.ledgers.pages.refs(page) for page in self.engine.ledgers.pages.held()}
        assert len(self.engine.ledgers.rows.held()) == len(roster)
        assert cache.cached == sum(len(entry.pages) for entry in entries if not entry.leases) == len(cache.kept())

    def teardown(self):
        """Whatever was begun must come to its end within the pool it has."""
        if not hasattr(self, "engine"):
            return
        for turn in range(3000):
            self.launch(turn)
            if not self.engine.pipeline.empty:
                self.settle()
            self.release()
            if self.engine.pipeline.empty and self.engine.book.idle:
                break
        assert self.engine.book.idle, "requests are stuck"
        self.engine.audit()
        self.referee.audit()


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        depth=st.integers(1, 4),
        pages=st.integers(12, 30),
        rows=st.integers(3, 6),
        size=st.sampled_from([2, 4, 5]),
        slow=st.sampled_from([0.0, 3.0]),
    )
    def start(self, depth, pages, rows, size, slow):
        limits = limits_of(SPEC, depth, rows=rows, pages=pages, page_size=size, adapters=1)
        timing = Timing(forward=1.0, sampling=0.1, copy=0.2, bookkeeping=0.3)
        config = EngineConfig(lookahead=5, prefills_per_step=2)
        self.stage, self.device = sim_stage(SPEC, limits, timing=timing, delays=(0.0, slow), config=config)
        self.requests = {}
        self.cancelled = set()

    @rule(drawn=requests, wait=st.sampled_from([None, None, 4.0, 40.0]))
    def submit(self, drawn, wait):
        number = len(self.requests) + 1
        deadline = None if wait is None else self.stage.clock.now() + wait
        request = replace(request_of(number, drawn), deadline=deadline)
        self.requests[number] = request
        self.stage.mailbox.submit(request)

    @precondition(lambda self: any(heard.tokens for heard in self.stage.heard.values()))
    @rule(data=st.data(), most=st.integers(1, 6))
    def go_on(self, data, most):
        """A further turn behind what one has said so far."""
        said = {number: heard.tokens for number, heard in self.stage.heard.items() if heard.tokens}
        before = data.draw(st.sampled_from(sorted(said)))
        prompt = self.requests[before].prompt
        ids = (*prompt.ids, *(token.id for token in said[before]), 9)
        values = (*prompt.values, *(token.values for token in said[before]), ())
        number = len(self.requests) + 1
        sampling = replace(self.requests[before].sampling, max_tokens=most)
        asked = replace(self.requests[before], id=number, program="text", sampling=sampling, deadline=None)
        self.requests[number] = replace(asked, prompt=replace(prompt, ids=ids, values=values))
        self.stage.mailbox.submit(self.requests[number])

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data):
        number = data.draw(st.sampled_from(sorted(self.requests)))
        self.cancelled.add(number)
        self.stage.mailbox.cancel(number)

    @precondition(lambda self: self.requests)
    @rule(count=st.integers(1, 6))
    def tick(self, count):
        for _ in range(count):
            if not self.stage.tick():
                self.stage.engine.audit()
                self.device.audit()

    def teardown(self):
        if not hasattr(self, "stage"):
            return
        for _ in range(3000):
            if not self.stage.tick() and self.stage.mailbox.empty:
                break
        self.stage.engine.audit()
        self.device.audit()
        assert set(self.stage.heard) == set(self.requests)
        for number, request in self.requests.items():
            allowed = (RequestTooLarge, PromptTooLong)
            allowed += (RequestCancelled,) if number in self.cancelled else ()
            allowed += (RequestTimeout,) if request.deadline is not None else ()
            judge(self.stage.heard[number], answer(SPEC, TABLE, request), allowed)


TestPlanner = PlannerMachine.TestCase
TestEngine = EngineMachine.TestCase
TestPlanner.settings = MACHINE
TestEngine.settings = MACHINE


@pytest.mark.slow
class TestPlannerAtLength(PlannerMachine.TestCase):
    settings = LONG


@pytest.mark.slow
class TestEngineAtLength(EngineMachine.TestCase):
    settings = LONG
