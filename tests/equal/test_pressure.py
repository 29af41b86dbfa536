"""From a pool of barely one request to an ample one: every answer is the cold one's, all come to their end, in time.

What is bounded, and by what: a request is passed only while it waits for an adapter's slot, and only by requests
without adapter; the oldest that runs never makes room, so whoever came k-th has ended by the time in which the first k
could have run one by one; work that is done twice is a small part; more memory is never slower. Times are a simulated
clock's.
"""

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.fakes.adapters import HASHED
from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Entry, ask, expected, limits_of, picture, sim_stage
from tests.fakes.sim_device import Timing
from tests.fakes.verdict import judge_all

from gapless.config import EngineConfig
from gapless.costs import Costs
from gapless.errors import RequestTooLarge

SPEC = HashSpec(end_permille=0, answer_permille=0)
SIZE = 4
TIMING = Timing(forward=1.0, sampling=0.1, copy=0.1, bookkeeping=0.3)
STEP = 1.1
"""Seconds of a step, whatever it computes."""
SAID = 36
LEAST = -(-(SPEC.prefix + 8 + SAID - 1) // SIZE) + 1
"""Pages of one request: its picture's last, partly filled one is there twice."""
POOLS = (LEAST, LEAST + 1, LEAST + 4, LEAST + 9, 2 * LEAST, 3 * LEAST, 5 * LEAST, 9 * LEAST, 20 * LEAST)


class Watch:
    """Sees each launch before the device does, and what the engine holds at that moment."""

    def __init__(self, stage, device):
        self.stage, self.launch = stage, device.launch
        self.computed = Counter()
        """Positions that prefills computed, by request."""
        self.passed = Counter()
        """How often younger requests were let in before it."""
        self.wrong = []
        """Who was let in before whom, though the first in line waited for no adapter's slot, or one of both does not
        concern that: the one that is passed has no adapter, or the one that passes has."""
        device.launch = self

    def __call__(self, step):
        engine = self.stage.engine
        waiting = [one.history.request for one in engine.admission.waiting]
        first = waiting[0].adapter if waiting else None
        blocked = first is not None and not engine.ledgers.adapters.can_lease(first)
        for prefill in step.prefills:
            request = engine.roster.get(prefill.start.ref).history.request
            self.computed[request.id] += len(prefill.ids) + (SPEC.prefix if prefill.picture is not None else 0)
            for other in waiting:
                if other.id < request.id:
                    self.passed[other.id] += 1
                    if not blocked or other.adapter is None or request.adapter is not None:
                        self.wrong.append((request.id, other.id))
        self.launch(step)


def requests(count, *, pictures, said=SAID, adapters=(None,)):
    for n in range(count):
        made = ask(n + 1, ids=range(20, 28), shown=picture(n % pictures), max_tokens=said)
        yield replace(made, adapter=adapters[n * 7 // 3 % len(adapters)])


def play(pages, asked, *, depth=2, lookahead=8, rows=13, arrive=0, slots=2):
    limits = limits_of(SPEC, depth, pages=1 + pages, rows=rows, page_size=SIZE, adapters=slots)
    stage, device = sim_stage(SPEC, limits, timing=TIMING, config=EngineConfig(lookahead=lookahead))
    entries = [Entry(request, arrives=arrive * n) for n, request in enumerate(asked)]
    watch = Watch(stage, device)
    stage.play(entries)
    judge_all(stage.heard, expected(SPEC, entries), entries)
    device.audit()
    assert not watch.wrong
    return stage, watch


def steps_of(stage):
    return stage.engine.counters.prefill_steps + stage.engine.counters.decode_steps


def ends(stage, asked):
    """When each ended, in seconds since all of them came."""
    told = [stage.heard[request.id].finish.metrics for request in asked]
    assert all(one.queue_ms >= 0 and one.prefill_ms >= 0 for one in told), "it waited until it was first let in"
    return [(one.ttft_ms + one.decode_ms) / 1e3 for one in told]


def bounded(stage, watch, asked, ample):
    """No starvation, no livelock."""
    counters = stage.engine.counters
    serial = 0.0
    for number, (request, end) in enumerate(zip(asked, ends(stage, asked), strict=True), start=1):
        serial += STEP * (request.sampling.max_tokens + 1)
        assert end <= 2 * serial + 8 * STEP * number, f"{request.id} ended at {end}, {serial} one by one"
    assert stage.heard[asked[0].id].finish.metrics.preemptions == 0, "the oldest never makes room"
    assert counters.preemptions <= 3 * len(asked)
    assert sum(watch.computed.values()) <= 3 * ample, "most of the work was done again"
    assert not watch.passed


@pytest.mark.parametrize("lookahead", [8, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 64))])
def test_from_barely_one_request_to_ample_pools_nothing_collapses(lookahead):
    asked = list(requests(12, pictures=5))
    cold = sum(SPEC.prefix + len(request.prompt.ids) for request in asked)
    runs = [play(pages, asked, lookahead=lookahead) for pages in POOLS]
    for stage, watch in runs:
        bounded(stage, watch, asked, cold)
    took = [steps_of(stage) for stage, _ in runs]
    assert all(more <= 1.1 * less for less, more in pairwise(took)), f"more memory was slower: {took}"
    assert took[0] <= 12 * (SAID + 2) and took[-1] <= took[0] / 8, took
    if lookahead < 64:
        assert sum(stage.engine.counters.preemptions for stage, _ in runs) > 20
    assert runs[-1][0].engine.counters.preemptions == 0
    assert all(stage.engine.counters.prefix_evictions for stage, _ in runs[:4])


@pytest.mark.slow
@pytest.mark.parametrize("arrive", [0, 3])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("lookahead", [1, 5, 16])
def test_in_every_pool_of_a_long_line(lookahead, depth, arrive):
    asked = list(requests(24, pictures=7))
    cold = sum(SPEC.prefix + len(request.prompt.ids) for request in asked)
    took = []
    for pages in range(LEAST, 8 * LEAST, 7):
        stage, watch = play(pages, asked, depth=depth, lookahead=lookahead, arrive=arrive)
        if not arrive:
            bounded(stage, watch, asked, cold)
        took.append(steps_of(stage))
    assert all(more <= 1.15 * min(took[: n + 1]) for n, more in enumerate(took[1:])), took


def test_what_cannot_fit_fails_alone_among_those_that_just_fit():
    asked = list(requests(6, pictures=3))
    large = replace(asked[2], sampling=replace(asked[2].sampling, max_tokens=SAID + SIZE))
    limits = limits_of(SPEC, 2, pages=1 + LEAST, rows=5, page_size=SIZE)
    stage, device = sim_stage(SPEC, limits, config=EngineConfig(lookahead=8))
    entries = [Entry(request) for request in (*asked[:2], large, *asked[3:])]
    stage.play(entries)
    assert isinstance(stage.heard[large.id].finish.error, RequestTooLarge)
    others = [entry for entry in entries if entry.request is not large]
    judge_all({e.request.id: stage.heard[e.request.id] for e in others}, expected(SPEC, others), others)
    device.audit()


@pytest.mark.parametrize("pages", [LEAST + 2, 4 * LEAST])
def test_whoever_waits_for_an_adapters_slot_is_passed_by_requests_without_one_for_a_while_only(pages):
    """One slot, three adapters: the line is passed, but never for longer than what holds the slot runs."""
    asked = list(requests(18, pictures=4, said=20, adapters=(None, *HASHED[:3])))
    assert len({request.adapter and request.adapter.key for request in asked}) == 4
    stage, watch = play(pages, asked, slots=1, rows=5, lookahead=4)
    without = sum(request.adapter is None for request in asked)
    assert max(watch.passed.values(), default=0) <= without
    if pages > 2 * LEAST:
        assert watch.passed, "nobody was passed, so nothing is shown"
    serial = STEP * (20 + 1)
    for request, end in zip(asked, ends(stage, asked), strict=True):
        before = request.id + watch.passed[request.id]
        assert end <= 2 * serial * before + 8 * STEP * before, f"{request.id} ended at {end}"


def test_a_request_that_makes_room_is_computed_again_but_for_what_is_still_there():
    """Its own pages are found again, and only tokens that are gone count as computed again."""
    asked = list(requests(8, pictures=8))
    stage, watch = play(3 * LEAST, asked)
    counters = stage.engine.counters
    assert counters.preemptions > 0 and counters.prefix_hits > 0
    more = sum(watch.computed.values()) - len(asked) * (SPEC.prefix + 8)
    assert counters.recomputed_tokens <= more < counters.preemptions * (SPEC.prefix + 8 + SAID)
    assert counters.tokens == len(asked) * SAID


@pytest.mark.slow
def test_ledgers_are_flat_over_ten_thousand_requests():
    """Whatever comes, nothing of it stays but what the pool has room for."""
    rng, asked = random.Random(7), []
    for number in range(1, 10_001):
        ids = range(20, 20 + rng.randrange(1, 9))
        made = ask(number, ids=ids, shown=picture(rng.randrange(12)), max_tokens=rng.choice([1, 3, 6]))
        asked.append(replace(made, adapter=rng.choice([None, None, *HASHED[:3]])))
    limits = limits_of(SPEC, 2, pages=1 + 4 * LEAST, rows=9, page_size=SIZE, adapters=2, host=3)
    costs = Costs(((1, 2e-3), (2, 4e-3)), ((4, 1e-3), (16, 2e-3)))
    stage, device = sim_stage(SPEC, limits, config=EngineConfig(lookahead=8, max_step_ms=3.0), costs=costs)
    engine, sizes = stage.engine, []
    for first in range(0, len(asked), 500):
        stage.ticks = 0
        batch = [Entry(request, arrives=n // 4) for n, request in enumerate(asked[first : first + 500])]
        stage.play(batch)
        judge_all({e.request.id: stage.heard.pop(e.request.id) for e in batch}, expected(SPEC, batch), batch)
        device.audit()
        device.events.clear()
        engine.audit()
        cache, seen = engine.ledgers.prefixes, engine.ledgers.features
        assert seen.leased() == [] and seen.held <= 3 and len(device.referee.slots.there) == seen.held
        sizes.append(
            (len(cache.entries()), len(cache._roots), len(cache._leaving), len(engine.roster), len(engine.admission))
        )
    assert max(entries for entries, *_ in sizes) <= 2 * limits.pages, "each but the first of a path has a page"
    assert {tuple(left) for _, _, *left in sizes} == {(0, 0, 0)}
    counters = engine.counters
    assert counters.finished == 10_000 and counters.prefix_hits > 1000 and counters.prefix_evictions > 1000
    assert min(counters.prompt_parts, counters.host_hits, counters.host_evictions) > 100
    assert engine.ledgers.pages.held() == sorted(cache.kept())
