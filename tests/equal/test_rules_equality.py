"""Rules as token tables: every device says what the oracle says, at every depth, beside rows that are free or point.

The GPU's own code runs here without a GPU, graphs and all.
"""

from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.host_stage import host_stage
from tests.fakes.inline_stage import inline_stage
from tests.fakes.ruled import LONG, tables, with_rules
from tests.fakes.scene import expected, limits_of, mix_of_requests, sim_stage
from tests.fakes.verdict import judge_all

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
        assert not stage.engine.grammars.held()
        if depth > 1:
            assert refereed.referee.tally.zombies > 0


@pytest.mark.parametrize("device", ["sim", "host", "cuda"])
@pytest.mark.parametrize("depth", [1, 3])
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
