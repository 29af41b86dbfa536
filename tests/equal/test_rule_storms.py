"""Storms over rules: rows that are ruled, led by guides, adjusted, host-masked, free and pointing, in scenes drawn at
random, on devices that hardly hold them. Whoever is not cancelled, late, or hit by a fault says what the oracle says.

Few slots for tables and few numbers, few rows and pages, prompts in parts, steps that fail, callers who leave before
their prompt is launched: all at once, another mix in each scene.
"""

import random
from contextlib import contextmanager
from dataclasses import replace

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.host_stage import host_stage
from tests.fakes.inline_stage import inline_stage
from tests.fakes.ruled import LONG, tables, with_rules
from tests.fakes.scene import Entry, ask, expected, limits_of, mix_of_requests, picture, sim_stage
from tests.fakes.sim_device import Fault, Timing
from tests.fakes.tally import Tally
from tests.fakes.verdict import judge

from gapless.config import EngineConfig
from gapless.constrain.guides import installed
from gapless.costs import Costs
from gapless.errors import RequestCancelled, RequestFailed, RequestTimeout, StepFailed

SPEC = HashSpec()
WHOLE = Costs(((2, 2e-3), (4, 3e-3)), ((4, 1e-3), (8, 1.5e-3), (16, 3e-3)), whole=True)
LOOKS = replace(WHOLE, whole=False)
LARGEST = max(table.numbers for table in (*tables(), *tables(rules=LONG)))
TIMING = Timing(forward=1.0, sampling=0.1, copy=0.05, bookkeeping=0.5)
FAILING = ("launch", "device", "device", "wait", "park")


def drawn(seed, rng):
    """Requests of every kind, some with rules of long answers, deadlines, longer prompts; many leave early."""
    entries = mix_of_requests(
        seed,
        rng.choice([8, 14, 20]),
        host=rng.choice([0.0, 0.15]),
        cancels=rng.choice([0.1, 0.3, 0.6]),
        spread=rng.choice([1, 6, 12, 30]),
        inset=rng.choice([0, SPEC.prefix - 1]),
        adjusted=rng.choice([0.0, 0.4, 0.8]),
    )
    entries = with_rules(entries, rng.choice([0.4, 0.8]), seed)
    if installed() and rng.random() < 0.5:
        from tests.fakes.guided import with_guides

        entries = with_guides(entries, rng.choice([0.2, 0.5]), seed)
    long = rng.random() < 0.4
    return [_changed(entry, long, rng) for entry in entries]


def _changed(entry, long, rng):
    request, cancelled = entry.request, entry.cancelled
    if request.grammar is not None and long:
        table = tables(rules=LONG)[request.id % 2]
        most = max(table.fewest + rng.randrange(3), 0 if table.fewest > 60 else 35)
        request = replace(request, grammar=table, sampling=replace(request.sampling, max_tokens=most))
    if rng.random() < 0.15:
        request = replace(request, deadline=rng.uniform(0.0, 40.0))
    if rng.random() < 0.5:
        count, prompt = rng.randrange(4, 24), request.prompt
        ids, values = (*prompt.ids, *range(20, 20 + count)), (*prompt.values, *((),) * count)
        request = replace(request, prompt=replace(prompt, ids=ids, values=values))
    if cancelled is not None and rng.random() < 0.5:
        cancelled = entry.arrives + rng.randrange(4)
    return Entry(request, entry.arrives, cancelled)


@contextmanager
def drawn_stage(device, depth, seed, rng):
    """A stage and its device, both small."""
    costs = rng.choice([None, WHOLE, LOOKS])
    sizes = {
        "rows": rng.choice([3, 5, 9]),
        "pages": rng.choice([400, 60, 40]),
        "grammars": rng.choice([1, 2, 4]),
        "numbers": rng.choice([LARGEST, LARGEST + 60, 4096]),
        "host": rng.choice([0, 2]),
    }
    if device == "sim":
        config = EngineConfig(lookahead=8, max_step_ms=2.0 if costs else None)
        failing = [(rng.choice(FAILING), rng.randrange(12)) for _ in range(rng.choice([0, 0, 1, 2, 3]))]
        faults = tuple(Fault(*fault, StepFailed("an injected fault")) for fault in failing)
        delays = (0.0, rng.choice([0.0, 3.0]))
        limits, timing = limits_of(SPEC, depth, **sizes), rng.choice([None, TIMING])
        yield *sim_stage(SPEC, limits, timing=timing, delays=delays, faults=faults, config=config, costs=costs), faults
        return
    make = host_stage if device == "host" else inline_stage
    limit = {"max_step_ms": 2.0, "costs": WHOLE} if costs else {}
    with make(HashModel(SPEC), depth, seed=seed, delays=(0.0, 0.001), **sizes, **limit) as (stage, refereed):
        stage.before_tick = lambda _: stage.clock.advance(0.5)
        yield stage, refereed, ()


def storm(device, depth, seed):
    """Play one scene; returns what happened in it."""
    rng = random.Random(seed)
    entries = drawn(seed, rng)
    with drawn_stage(device, depth, seed, rng) as (stage, refereed, faults):
        refereed.referee.narrower = True
        right, heard = expected(SPEC, entries), stage.play(entries)
        refereed.audit()
        assert not stage.engine.ledgers.grammars.held()
        for entry in entries:
            allowed = (RequestFailed,) if faults else ()
            allowed += (RequestCancelled,) if entry.cancelled is not None else ()
            allowed += (RequestTimeout,) if entry.request.deadline is not None else ()
            judge(heard[entry.request.id], right[entry.request.id], allowed)
        return refereed.referee.tally


def storms(device, depths, seeds):
    """Play many; returns what happened in all."""
    total = Tally()
    for seed in seeds:
        for depth in depths:
            tally = storm(device, depth, seed)
            for name in ("grammars", "zombies", "parts", "resumed", "resumed_in_rule", "closed"):
                setattr(total, name, getattr(total, name) + getattr(tally, name))
    return total


def test_a_few_storms_leave_every_answer_as_it_is():
    total = storms("sim", (1, 4), (0, 11, 35))
    assert total.grammars > 10 and total.zombies > 10 and total.parts > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "seeds"), [("sim", range(100, 220)), ("host", range(300, 320)), ("cuda", range(400, 420))]
)
def test_many_storms_leave_every_answer_as_it_is(device, seeds):
    total = storms(device, (1, 2, 3, 4), seeds)
    assert total.grammars > 50 and total.resumed_in_rule > 0 and total.closed > 10


def ruled(number, table=0, **changes):
    """A question that is ruled, whose prompt is nobody else's."""
    request = ask(number, ids=(9 + number, 17), max_tokens=14)
    return replace(request, grammar=tables()[table], **changes)


def test_a_table_whose_bringer_left_before_its_prompt_began_is_brought_by_the_next():
    """The bringer's picture is looked at in steps of its own, at any of which it may leave."""
    left = 0
    for at in range(3, 12):
        free = [Entry(ask(n, ids=(40 + n,), max_tokens=35)) for n in (1, 2)]
        first = replace(ask(3, ids=(12, 17), shown=picture(1), max_tokens=14), grammar=tables()[0])
        entries = [
            *free,
            Entry(first, 3, at),
            Entry(ruled(4), at),
            Entry(ruled(5), at + 1),
        ]
        limits, config = limits_of(SPEC, 2, grammars=2, numbers=4096), EngineConfig(lookahead=8, max_step_ms=2.0)
        stage, device = sim_stage(SPEC, limits, config=config, costs=LOOKS)
        heard, right = stage.play(entries), expected(SPEC, entries)
        for entry in entries:
            judge(heard[entry.request.id], right[entry.request.id], (RequestCancelled,) if entry.cancelled else ())
        left += not heard[3].tokens and heard[3].finish.error is not None and device.referee.tally.looks > 0
    assert left > 2


@pytest.mark.parametrize("depth", [2, 4])
def test_who_was_let_in_behind_a_step_that_did_not_bring_the_table_begins_again(depth):
    """It shares nothing with the bringer but the table, and is launched when the step turns out to have failed."""
    again = 0
    for arrives in range(1, 4):
        entries = [Entry(ask(8, ids=(50,), max_tokens=35)), Entry(ruled(1), 2)]
        entries += [Entry(ruled(2), 2 + arrives), Entry(ruled(3), 3 + arrives)]
        for nth in range(1, 5):
            faults = (Fault("device", nth, StepFailed("an injected fault")),)
            limits = limits_of(SPEC, depth, grammars=2, numbers=4096)
            stage, device = sim_stage(SPEC, limits, timing=TIMING, faults=faults)
            heard, right = stage.play(entries), expected(SPEC, entries)
            for entry in entries:
                judge(heard[entry.request.id], right[entry.request.id], (RequestFailed,))
            again += sum(h.finish.error is None for h in heard.values()) == 3 and device.referee.tally.grammars == 2
    assert again > 1
