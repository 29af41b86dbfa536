"""Pictures in host memory: whose vision is skipped, who makes room, and what nobody may have."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.engine.test_kept_prefixes import IDS, PREFIX, SIZE, SPEC, TIMING, A, play, shown
from tests.fakes.adapters import HASHED
from tests.fakes.scene import Entry, ask, expected, limits_of, picture, sim_stage
from tests.fakes.sim_device import Fault
from tests.fakes.verdict import judge

from gapless.config import EngineConfig
from gapless.costs import Costs
from gapless.engine.cutting import Budget, Feed, cut
from gapless.engine.features import FeatureLedger
from gapless.errors import InvariantBroken, NonFiniteLogits, RequestFailed
from gapless.observe.counters import Counters
from gapless.records import HostPlace, Inset, Prefill, Prompt, RowRef, RowStart

FEW = 1 + 12
"""Pages for a request and hardly more: each takes those of the one before."""


def stage_of(depth=2, *, host=2, pages=FEW, faults=(), rows=9, **settings):
    limits = limits_of(SPEC, depth, pages=pages, rows=rows, page_size=SIZE, adapters=2, host=host)
    return sim_stage(SPEC, limits, timing=TIMING, faults=faults, config=EngineConfig(lookahead=8, **settings))


def after(number, which=1, gap=60, **how):
    return Entry(shown(number, which=which, max_tokens=6, **how), arrives=gap * number)


def moved(stage, device):
    """How many were brought, kept, and made room; all is given back."""
    slots, counters = device.referee.slots, stage.engine.counters
    assert counters.host_hits == slots.brought and stage.engine.ledgers.features.leased() == []
    assert stage.engine.ledgers.features.held == len(slots.there)
    return slots.brought, slots.kept, counters.host_evictions


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_picture_whose_pages_are_gone_is_brought_back(depth):
    stage, device = stage_of(depth)
    entries = [after(0), after(1, which=2), after(2), after(3, which=2), after(4, which=2)]
    assert play(stage, device, *entries) == [0, 0, 0, 0, 32], "the last one finds its pages"
    assert moved(stage, device) == (2, 2, 0)
    standing = stage.engine.standing()
    assert (standing.host_pictures, standing.host_bytes) == (2, 2 * 16 * (PREFIX - 1))


def test_without_host_memory_nothing_is_kept_or_looked_for():
    stage, device = stage_of(host=0)
    assert play(stage, device, after(0), after(1, which=2), after(2)) == [0, 0, 0]
    assert moved(stage, device) == (0, 0, 0)


def test_the_picture_asked_for_the_longest_ago_makes_room_whether_its_pages_were_there_or_not():
    stage, device = stage_of(pages=1 + 28)
    entries = [after(0, which=1), after(1, which=2), after(2, which=1), after(3, which=3), after(4, which=4)]
    assert play(stage, device, *entries) == [0, 0, 32, 0, 0]
    assert moved(stage, device) == (0, 4, 2)
    assert set(device.referee.slots.there.values()) == {picture(3).digest, picture(4).digest}
    stage, device = stage_of(pages=1 + 28)
    assert play(stage, device, *entries[:4]) == [0, 0, 32, 0]
    assert set(device.referee.slots.there.values()) == {picture(1).digest, picture(3).digest}, "2 went: 1 was in use"


def test_adapters_see_the_same_picture():
    """Vision is no adapter's business, so what was seen for one is there for all; pages are not."""
    stage, device = stage_of()
    entries = [after(n, adapter=adapter) for n, adapter in enumerate((None, *HASHED[:2], None))]
    assert play(stage, device, *entries) == [0] * 4
    assert moved(stage, device) == (3, 1, 0)


def test_in_one_step_and_right_behind_it_a_picture_is_kept_once():
    stage, device = stage_of(depth=2, pages=400, prefills_per_step=2)
    entries = [Entry(shown(n, adapter=adapter)) for n, adapter in enumerate((None, A, HASHED[1]))]
    assert play(stage, device, *entries) == [0, 0, 0]
    assert moved(stage, device) == (1, 1, 0), "the last of the three waits for a slot for its adapter"


@pytest.mark.parametrize("host", [1, 2])
def test_where_all_slots_are_held_a_picture_is_computed_and_not_kept(host):
    stage, device = stage_of(host=host, pages=400, prefills_per_step=4)
    assert play(stage, device, *(Entry(shown(n, which=n)) for n in range(4))) == [0] * 4
    assert moved(stage, device) == (0, host, 0)


def test_pictures_further_on_are_brought_too():
    filler = (0,) * (PREFIX - 1)
    ids = (11, *filler, *filler, 12)
    twice = Prompt(ids, ((),) * len(ids), picture(1), (Inset(1, picture(2)), Inset(PREFIX, picture(2))))
    stage, device = stage_of(host=3, pages=1 + 14)
    entries = [Entry(replace(ask(n, max_tokens=3), prompt=twice), arrives=60 * n) for n in (0, 2)]
    play(stage, device, entries[0], after(1, which=3, ids=IDS), entries[1])
    assert moved(stage, device) == (3, 3, 0)


@pytest.mark.parametrize("call", ["launch", "device", "wait"])
@pytest.mark.parametrize("depth", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))])
def test_what_a_failed_step_was_to_keep_is_found_by_nobody_and_its_slot_is_free_again(depth, call):
    for arrives in (0, 1, 2, 5):
        stage, device = stage_of(depth, host=1, pages=400, faults=(Fault(call, 0),), prefills_per_step=1)
        entries = [Entry(shown(1)), Entry(shown(2, adapter=A), arrives=arrives), Entry(shown(3, which=2), arrives=40)]
        stage.play(entries)
        right = expected(SPEC, entries)
        assert isinstance(stage.heard[1].finish.error, RequestFailed)
        for number in (2, 3):
            judge(stage.heard[number], right[number])
        device.audit()
        brought, _, _ = moved(stage, device)
        assert brought == 0 and set(device.referee.slots.there.values()) == {picture(2).digest}


def test_what_a_failed_step_has_read_is_not_trusted_either():
    stage, device = stage_of(host=2, faults=(Fault("wait", 12),))
    play(stage, device, after(0), after(1, which=2))
    steps = stage.engine.counters.prefill_steps + stage.engine.counters.decode_steps
    assert steps == 12, "the next one fails"
    stage.play([Entry(shown(2, max_tokens=6))])
    assert isinstance(stage.heard[2].finish.error, RequestFailed) and stage.engine.counters.host_hits == 1
    assert play(stage, device, after(4), after(5, which=2)) == [0, 0]
    assert moved(stage, device) == (2, 3, 0), "1 is computed again, 2 is not"


def test_what_a_cancelled_request_has_shown_is_kept_since_its_step_went_well():
    stage, device = stage_of(host=1, pages=400)
    stage.play([Entry(shown(1), cancelled=1)])
    assert stage.heard[1].finish.error is not None
    assert play(stage, device, after(2, which=2, gap=30), after(3, which=2, gap=30)) == [0, 32]
    assert moved(stage, device) == (0, 2, 1)


def test_a_picture_that_leads_to_no_numbers_is_found_by_nobody():
    stage, device = stage_of(pages=400)
    right = expected(SPEC, [Entry(shown(1))])[1]
    device.cursed = {right.hidden[0]}
    stage.play([Entry(shown(1))])
    assert isinstance(stage.heard[1].finish.error, NonFiniteLogits) and stage.engine.ledgers.features.held == 0
    device.cursed = set()
    assert play(stage, device, Entry(shown(2))) == [0]
    assert moved(stage, device) == (0, 2, 0)


def test_slots_are_held_until_the_first_token_and_no_longer():
    stage, device = stage_of(host=1, pages=400)
    held = []
    stage.before_tick = lambda tick: held.append(len(stage.engine.ledgers.features.leased()))
    play(stage, device, Entry(shown(1, max_tokens=40)))
    assert max(held) == 1 and sum(held) <= 3 < len(held) / 5


def test_a_request_that_makes_room_comes_back_without_vision():
    stage, device = stage_of(host=3, pages=1 + 18, rows=3)
    entries = [Entry(shown(n, ids=IDS[:8], which=n, max_tokens=40)) for n in (1, 2)]
    entries.append(Entry(shown(3, ids=IDS[:8], which=3, max_tokens=40), arrives=1))
    play(stage, device, *entries)
    assert stage.engine.counters.preemptions > 0 and moved(stage, device)[0] > 0


def test_of_a_picture_that_is_there_no_crops_are_counted_or_looked_at():
    start = RowStart(RowRef(1, 1), 0, 9, 9, 1, 0.0, 1.0, 0, -1, host_masked=False)
    whole = Prefill(start, IDS[:4], ((),) * 4, PREFIX, (1, 2, 3, 4, 5), picture(1), (1, 2, 3, 4))
    costs = Costs(crops=((1, 1.0), (2, 2.0)), tokens=((64, 1.0),))
    for there in (True, False):
        budget = Budget(costs, 1.5)
        part = cut(Feed(replace(whole, places=(HostPlace(0, there),)), PREFIX, front=True), budget)
        assert budget.crops == (0 if there else 1) and (part.look is None) == there
        assert part.ends == there and (part.prefill is not None) == there


def test_a_slot_that_nobody_holds_cannot_be_left():
    ledger = FeatureLedger(1, Counters())
    one = ledger.lease("a")
    ledger.leave([one], well=True)
    with pytest.raises(InvariantBroken, match="I5: the picture in host slot 0"):
        ledger.leave([one], well=True)


def test_a_slot_that_another_step_reads_is_not_free_when_one_fails():
    ledger = FeatureLedger(1, Counters())
    ledger.leave([ledger.lease("a")], well=True)
    failing, reading = ledger.lease("a"), ledger.lease("a")
    assert failing is reading and failing.there
    ledger.leave([failing], well=False)
    assert ledger.held == 0 and ledger.leased() == [0] and ledger.lease("a") is ledger.lease("b") is None
    ledger.leave([reading], well=True)
    assert ledger.leased() == [] and ledger.lease("a").there is False


def test_two_steps_that_fail_with_one_picture_leave_the_next_one_alone():
    ledger = FeatureLedger(2, Counters())
    ledger.leave([ledger.lease("a")], well=True)
    both = [ledger.lease("a"), ledger.lease("a")]
    ledger.leave(both[:1], well=False)
    anew = ledger.lease("a")
    assert anew is not both[0] and not anew.there and anew.slot != both[0].slot
    ledger.leave(both[1:], well=False)
    ledger.leave([anew], well=True)
    assert ledger.lease("a") is anew and ledger.held == 1 and ledger.lease("b").slot == both[0].slot


class FeatureMachine(RuleBasedStateMachine):
    """Beside a plain list of pictures by when they were asked for, each with who holds it."""

    @initialize(slots=st.integers(0, 3))
    def start(self, slots):
        self.slots, self.counters = slots, Counters()
        self.ledger = FeatureLedger(slots, self.counters)
        self.recent: list[str] = []
        self.there: set[str] = set()
        self.holding: list[tuple[str, object]] = []
        self.hits = self.evictions = 0

    @rule(digest=st.sampled_from("abcde"))
    def ask(self, digest):
        found = self.ledger.lease(digest)
        if digest in self.recent:
            assert (found is not None) == (digest in self.there)
            self.hits += digest in self.there
        else:
            held = {name for name, one in self.holding if not one.withdrawn}
            gone = [one for _, one in self.holding if one.withdrawn]
            room = self.slots - len(self.recent) - len({one.slot for one in gone})
            idle = [name for name in self.recent if name not in held]
            assert (found is not None) == (room > 0 or bool(idle))
            if found is not None and room <= 0:
                self.recent.remove(idle[0])
                self.there.discard(idle[0])
                self.evictions += 1
        if found is not None:
            assert found.there == (digest in self.there) and found.digest == digest
            self.recent = [*(name for name in self.recent if name != digest), digest]
            self.holding.append((digest, found))

    @rule(digest=st.sampled_from("abcde"))
    def touch(self, digest):
        self.ledger.touch(digest)
        if digest in self.recent:
            self.recent = [*(name for name in self.recent if name != digest), digest]

    @rule(data=st.data(), well=st.sampled_from([True, True, False]))
    def leave(self, data, well):
        if not self.holding:
            return
        digest, one = self.holding.pop(data.draw(st.integers(0, len(self.holding) - 1)))
        known = digest in self.recent and not one.withdrawn
        self.ledger.leave([one], well=well)
        if known and well:
            self.there.add(digest)
        elif known:
            self.recent.remove(digest)
            self.there.discard(digest)

    @invariant()
    def adds_up(self):
        if not hasattr(self, "ledger"):
            return
        assert self.ledger.held == len(self.recent)
        assert sorted(self.ledger.leased()) == sorted({one.slot for _, one in self.holding})
        assert (self.counters.host_hits, self.counters.host_evictions) == (self.hits, self.evictions)
        assert list(self.ledger._pictures) == self.recent


TestFeatureMachine = FeatureMachine.TestCase
TestFeatureMachine.settings = settings(max_examples=15, stateful_step_count=40, derandomize=True, deadline=None)
