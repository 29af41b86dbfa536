"""Rules as token tables: every device says what the oracle says, at every depth, beside rows that are free or point.

The GPU's own code runs here without a GPU, graphs and all.
"""

from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.host_stage import host_stage
from tests.fakes.inline_stage import inline_stage
from tests.fakes.ruled import LONG, tables, with_rules
from tests.fakes.scene import Entry, ask, expected, limits_of, mix_of_requests, sim_stage
from tests.fakes.sim_device import Fault
from tests.fakes.verdict import judge, judge_all

from gapless.config import EngineConfig
from gapless.constrain.table import Walker
from gapless.constrain.tokens import TokenWalker
from gapless.costs import Costs
from gapless.engine import sequence
from gapless.engine.grammars import GrammarPool, Seated
from gapless.errors import (
    InvalidRequest,
    InvariantBroken,
    RequestCancelled,
    RequestFailed,
    RequestTooLarge,
    StepFailed,
)
from gapless.records import FinishReason

SPEC = HashSpec()
AMPLE, TINY = 400, 33
ROOM = 4096
LARGEST = max(table.numbers for table in tables())


def scene(seed, count=20, host=0.15):
    return with_rules(mix_of_requests(seed, count, host=host, spread=12, inset=SPEC.prefix - 1), 0.6, seed)


@contextmanager
def stage_on(device, depth, slots=8, room=ROOM, pages=AMPLE, seed=0, faults=()):
    with ExitStack() as stack:
        if device == "sim":
            limits = limits_of(SPEC, depth, pages=pages, grammars=slots, numbers=room)
            yield sim_stage(SPEC, limits, faults=faults, delays=(0.0, 3.0))
        else:
            make = host_stage if device == "host" else inline_stage
            sizes = {"pages": pages, "grammars": slots, "numbers": room}
            yield stack.enter_context(make(HashModel(SPEC), depth, seed=seed, delays=(0.0, 0.001), **sizes))


def check_rules(entries, heard):
    """What was said follows the rule, to its end, whatever the oracle says. Returns how many answers that were."""
    done = 0
    for entry in entries:
        request, told = entry.request, heard[entry.request.id]
        if request.grammar is None or told.finish.error is not None:
            continue
        ids = [token.id for token in told.tokens]
        ids = ids[ids.index(SPEC.rules.answer) + 1 :] if request.program == "reason" else ids
        state = 0
        for token in ids:
            assert request.grammar.following[state, request.grammar.classes[token]] >= 0
            state = int(request.grammar.following[state, request.grammar.classes[token]])
        assert ids[-1] == SPEC.rules.end and told.finish.reason is FinishReason.STOP
        assert len(ids) <= request.sampling.max_tokens
        done += 1
    return done


EVERY = [(device, depth) for device in ("sim", "host", "cuda") for depth in (1, 2, 3, 4)]
QUICK = [("sim", 1), ("sim", 2), ("sim", 4), ("host", 2), ("cuda", 2), ("cuda", 4)]


@pytest.mark.parametrize(
    ("device", "depth"), [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in EVERY]
)
def test_free_ruled_and_pointing_rows_are_exact(device, depth):
    """Two slots for five tables, with room for the largest and hardly another."""
    entries = scene(depth)
    with stage_on(device, depth, 2, LARGEST + 60, seed=depth) as (stage, refereed):
        heard = stage.play(entries)
        judge_all(heard, expected(SPEC, entries), entries)
        refereed.audit()
        assert check_rules(entries, heard) >= 5
        assert refereed.referee.tally.grammars > 3, "no slot was taken over"
        assert not stage.engine.ledgers.grammars.held()
        if depth > 1:
            assert refereed.referee.tally.zombies > 0


@pytest.mark.parametrize(
    ("device", "depth"),
    [
        *(("sim", 1), ("sim", 3), ("host", 3), ("cuda", 3)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("host", 1), ("cuda", 1), ("cuda", 4))),
    ],
)
def test_rows_that_make_room_go_on_in_their_rule(device, depth):
    entries = []
    for entry in scene(5, count=14, host=0.0):
        request, long = entry.request, replace(entry.request.sampling, max_tokens=35, max_objects=10)
        table = request.grammar and tables(rules=LONG)[request.id % 2]
        entries.append(replace(entry, request=replace(request, sampling=long, grammar=table)))
    with stage_on(device, depth, pages=TINY) as (stage, refereed):
        heard = stage.play(entries)
        judge_all(heard, expected(SPEC, entries), entries)
        refereed.audit()
        assert check_rules(entries, heard) >= 4
        assert refereed.referee.tally.resumed_in_rule > 0


def ruled(number, table=0, **sampling):
    return replace(ask(number, **{"max_tokens": 14, **sampling}), grammar=tables()[table])


def test_a_request_that_can_never_be_ruled_is_refused_alone():
    """Too large a table, too few tokens, and none of it touches who can."""
    entries = [Entry(ruled(1)), Entry(ruled(2, table=3)), Entry(ruled(3, table=3, max_tokens=11)), Entry(ask(4))]
    small = sorted(table.numbers for table in tables())[-2]
    with stage_on("sim", 2, 2, small) as (stage, refereed):
        heard, right = stage.play(entries), expected(SPEC, [entries[0], entries[3]])
        judge(heard[1], right[1])
        judge(heard[4], right[4])
        assert isinstance(heard[2].finish.error, RequestTooLarge) and "1064 bytes" in str(heard[2].finish.error)
        assert isinstance(heard[3].finish.error, RequestTooLarge | InvalidRequest)
        refereed.audit()


def test_only_requests_without_a_table_pass_one_that_waits_for_room():
    """One slot, held: the second table waits, a request for the first one may not pass it, one for none may."""
    entries = [Entry(replace(ask(1, max_tokens=35), grammar=tables(rules=LONG)[0]))]
    entries += [Entry(ruled(2, 1), arrives=3), Entry(entries[0].request, arrives=3), Entry(ask(4), arrives=3)]
    entries[2] = replace(entries[2], request=replace(entries[2].request, id=3))
    order = []
    with stage_on("sim", 2, 1) as (stage, refereed):
        launch = refereed.launch

        def noted(step):
            order.extend((p.start.grammar, p.grammar is not None) for p in step.prefills)
            launch(step)

        refereed.launch = noted
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        refereed.audit()
    assert order == [(1, True), (0, False), (1, True), (1, True)]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_step_that_should_bring_a_table_and_fails_leaves_nobody_with_it(depth):
    entries = [Entry(ruled(n, table)) for n, table in ((1, 0), (2, 0), (3, 1))] + [Entry(ask(4, max_tokens=9))]
    entries += [Entry(ruled(n, 0), arrives=1) for n in (5, 6)]
    faults = (Fault("device", 0, StepFailed("an injected fault")), Fault("device", 2, StepFailed("and another")))
    with stage_on("sim", depth, 2, faults=faults) as (stage, refereed):
        heard, right = stage.play(entries), expected(SPEC, entries)
        for entry in entries:
            judge(heard[entry.request.id], right[entry.request.id], (RequestFailed,))
        assert sum(h.finish.error is None for h in heard.values()) >= 4
        refereed.audit()


class Fragile(HashModel):
    """Fails in forwards that Python runs, those that are told."""

    fails = ()

    def forward(self, *arguments):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls in self.fails:
            raise ValueError("an injected fault")
        return super().forward(*arguments)


@pytest.mark.parametrize("device", ["host", "cuda"])
def test_a_table_that_never_came_harms_nobody_else(device):
    """The step fails before its table is there; a row of the next one walks on what the slot holds."""
    make = host_stage if device == "host" else inline_stage
    entries = [Entry(ruled(n, n % 3)) for n in range(1, 4)]
    entries += [Entry(ruled(n, 1 + n % 2), arrives=6 + n % 3) for n in range(4, 9)] + [Entry(ask(9), arrives=7)]
    model = Fragile(SPEC)
    with make(model, 3, grammars=2, numbers=LARGEST + 60, delays=(0.0, 0.0)) as (stage, refereed):
        model.fails = {model.calls + n for n in (5, 9, 12, 14, 15)} if hasattr(model, "calls") else {4, 9, 12, 15}
        heard, right = stage.play(entries), expected(SPEC, entries)
        for entry in entries:
            judge(heard[entry.request.id], right[entry.request.id], (RequestFailed,))
        assert any(h.finish.error is not None for h in heard.values()), "nothing failed"
        assert sum(h.finish.error is None for h in heard.values()) >= 2
        refereed.audit()


COSTS = Costs(((2, 2e-3), (4, 3e-3)), ((4, 1e-3), (8, 1.5e-3), (16, 3e-3)), whole=True)


@pytest.mark.parametrize("device", ["sim", pytest.param("host", marks=pytest.mark.slow), "cuda"])
def test_a_prompt_in_parts_brings_its_table_once(device):
    entries = []
    for entry in scene(7, count=12, host=0.0):
        prompt = entry.request.prompt
        ids, values = (*prompt.ids, *range(20, 44)), (*prompt.values, *((),) * 24)
        entries.append(replace(entry, request=replace(entry.request, prompt=replace(prompt, ids=ids, values=values))))
    limited = {"max_step_ms": 2.0, "costs": COSTS}
    with ExitStack() as stack:
        if device == "sim":
            config = EngineConfig(lookahead=8, max_step_ms=2.0)
            limits = limits_of(SPEC, 2, grammars=3, numbers=ROOM)
            stage, refereed = sim_stage(SPEC, limits, config=config, costs=COSTS)
        else:
            make = host_stage if device == "host" else inline_stage
            stage, refereed = stack.enter_context(make(HashModel(SPEC), 2, grammars=3, numbers=ROOM, **limited))
        heard = stage.play(entries)
        judge_all(heard, expected(SPEC, entries), entries)
        refereed.audit()
        assert refereed.referee.tally.parts > 5 and refereed.referee.tally.grammars >= 3
        assert check_rules(entries, heard) >= 4


def broken_state(request, table, tokens):
    return 0


def unruled_reasoning(walker):
    return True


def greedy_room(self, left=None):
    return TRUE_MASK(self)


TRUE_MASK = TokenWalker.mask
MUTANTS = {
    "a row that made room begins its rule anew": (sequence, "state_after", broken_state),
    "reasoning is ruled": (Walker, "answers", property(unruled_reasoning)),
    "no room is left for the end": (TokenWalker, "mask", greedy_room),
    "a table is written over that a row has": (GrammarPool, "_gap", lambda self, numbers, gone: 0),
    "a table that is there is not brought": (Seated, "load", lambda self: None),
}


@pytest.mark.parametrize("name", [None, *MUTANTS])
def test_what_is_wrong_is_seen(name, monkeypatch):
    """Each of these would go wrong in silence; the oracle is asked before. None: nothing is wrong."""
    entries = []
    for entry in [*scene(5, count=14, host=0.0), Entry(ruled(90, 3, max_tokens=12)), Entry(ruled(91, 2))]:
        long = replace(entry.request.sampling, max_tokens=35) if entry.request.id < 90 else entry.request.sampling
        table = entry.request.grammar and tables(rules=LONG)[entry.request.id % 2]
        table = entry.request.grammar if entry.request.id >= 90 else table
        entries.append(replace(entry, request=replace(entry.request, sampling=long, grammar=table)))
    right = expected(SPEC, entries)
    if name is not None:
        monkeypatch.setattr(*MUTANTS[name])
    seen = nullcontext() if name is None else pytest.raises((AssertionError, InvariantBroken))
    with stage_on("sim", 2, slots=2, pages=TINY) as (stage, refereed), seen:
        heard = stage.play(entries)
        assert all(h.finish.error is None or isinstance(h.finish.error, RequestCancelled) for h in heard.values())
        judge_all(heard, right, entries)
        refereed.audit()
