"""Answers that guides lead: every device says what the oracle says, at every depth; free rows never wait for them."""

import json
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.fakes.guided import LISTS, TREE, guides_of, long_guides, text_of, with_guides
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.host_stage import host_stage
from tests.fakes.inline_stage import inline_stage
from tests.fakes.ruled import with_rules
from tests.fakes.scene import Entry, ask, expected, limits_of, mix_of_requests, sim_stage
from tests.fakes.sim_device import Timing
from tests.fakes.verdict import judge_all

from gapless.errors import InvalidRequest, RequestCancelled
from gapless.records import FinishReason, HostGrammar, StepKind

pytest.importorskip("llguidance")
jsonschema = pytest.importorskip("jsonschema")
SPEC = HashSpec()
AMPLE, TINY = 400, 33
TIMING = Timing(forward=1.0, sampling=0.1, copy=0.05, bookkeeping=0.5)


@contextmanager
def stage_on(device, depth, pages=AMPLE, seed=0, delays=(0.0, 3.0), faults=()):
    sizes = {"pages": pages, "grammars": 4, "numbers": 4096}
    with ExitStack() as stack:
        if device == "sim":
            stage, refereed = sim_stage(
                SPEC, limits_of(SPEC, depth, **sizes), timing=TIMING, delays=delays, faults=faults
            )
        else:
            make = host_stage if device == "host" else inline_stage
            stage, refereed = stack.enter_context(make(HashModel(SPEC), depth, seed=seed, delays=(0.0, 0.001), **sizes))
        refereed.referee.narrower = True
        yield stage, refereed


def said_of(entries, heard):
    """What led requests said behind their reasoning, of those that ended well: (request, ids, reason)."""
    for entry in entries:
        request, told = entry.request, heard[entry.request.id]
        if request.guide is None or told.finish.error is not None:
            continue
        ids = [token.id for token in told.tokens]
        if request.program == "reason":
            ids = ids[ids.index(SPEC.rules.answer) + 1 :] if SPEC.rules.answer in ids else []
        yield request, ids, told.finish.reason


def check_said(entries, heard):
    """Whole answers satisfy their schema. Returns how many whole ones there were."""
    recursive = dict(zip(guides_of()[-2:], (LISTS, TREE), strict=True))
    done = 0
    for request, ids, reason in said_of(entries, heard):
        if reason is FinishReason.STOP and request.guide in recursive:
            jsonschema.validate(json.loads(text_of(ids)), recursive[request.guide])
        done += reason is FinishReason.STOP
    return done


EVERY = [(device, depth) for device in ("sim", "host", "cuda") for depth in (1, 2, 3, 4)]
QUICK = [("sim", 1), ("sim", 2), ("sim", 4), ("host", 2), ("cuda", 3)]


@pytest.mark.parametrize(
    ("device", "depth"), [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in EVERY]
)
def test_led_ruled_free_and_pointing_rows_are_exact(device, depth):
    entries = with_guides(with_rules(mix_of_requests(depth, 20, host=0.1, spread=12), 0.2), 0.5, depth)
    with stage_on(device, depth, seed=depth) as (stage, refereed):
        heard = stage.play(entries)
        judge_all(heard, expected(SPEC, entries), entries)
        refereed.audit()
        assert check_said(entries, heard) >= 3
        assert refereed.referee.tally.closed > 0 or depth == 1


@pytest.mark.parametrize("device", ["sim", "host", "cuda"])
@pytest.mark.parametrize("depth", [1, 3])
def test_rows_that_make_room_go_on_in_their_grammar(device, depth):
    """And tokens that were consumed before are consumed once: the oracle's guide read them once."""
    entries = with_guides(mix_of_requests(7, 16, spread=6), 0.8, 7, 45, long_guides())
    with stage_on(device, depth, TINY) as (stage, refereed):
        heard = stage.play(entries)
        judge_all(heard, expected(SPEC, entries), entries)
        resumed = [request for request, ids, _ in said_of(entries, heard) if ids and _again(heard, request)]
        assert len(resumed) > 1, "no led row was resumed"
        assert refereed.referee.tally.resumed > 1


def _again(heard, request):
    return heard[request.id].finish.metrics.preemptions > 0


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_cancelled_in_the_middle_of_a_grammar(depth):
    entries = [Entry(ask(i, ids=(9 + i,)), cancelled=20 * i) for i in range(1, 7)]
    entries = with_guides(entries, 1.0, guides=long_guides())
    with stage_on("sim", depth) as (stage, refereed):
        heard = stage.play(entries)
        judge_all(heard, expected(SPEC, entries), entries)
        cut = [told for told in heard.values() if isinstance(told.finish.error, RequestCancelled)]
        assert any(len(told.tokens) > 2 for told in cut)
        refereed.audit()
        assert not stage.engine.loop.masking._guided._rows


def test_free_rows_keep_their_order_of_events_beside_a_slow_led_row():
    """The slow row takes part in no step of theirs but those it is ready for; between two of its tokens they say more
    than twenty, and no step of theirs begins later than the one before it ends."""
    spec = HashSpec(end_permille=0, answer_permille=0)
    free = [Entry(ask(i, ids=(10 + i, 20), max_tokens=120)) for i in range(1, 5)]
    slow = Entry(replace(ask(9, ids=(33,), max_tokens=8), host_masked=True, guide=guides_of()[2]))
    stage, device = sim_stage(spec, limits_of(spec, 2), timing=TIMING, delays=(30.0, 30.0))
    device.referee.narrower = True
    judge_all(stage.play([slow, *free]), expected(spec, [slow, *free]), [slow, *free])
    steps = [e for e in device.events if e.name == "forward" and e.kind is StepKind.DECODE and len(e.rows) >= 4]
    parks = [e for e in device.events if e.name == "park"]
    samples = [e for e in device.events if e.name == "sample" and e.kind is StepKind.PARKED]
    assert len(parks) >= 3 and len(samples) >= 3
    for one, other in pairwise(samples[:3]):
        assert sum(one.start < step.start < other.start for step in steps) > 20
    computing = sorted((e.start, e.end) for e in device.events if e.name in ("forward", "sample"))
    gaps = [later[0] - earlier[1] for earlier, later in pairwise(computing[4:120])]
    assert max(gaps) < 1e-9, "the device stood idle"


def test_a_guide_that_fails_fails_its_row_alone():
    """No word of this vocabulary begins with x: nothing can be said. Another grammar cannot be read at all."""
    words = guides_of()[0].words
    broken = (HostGrammar(guides_of()[0].text.partition("\n")[0] + '\nstart: "ab" "x"', words),)
    broken += (HostGrammar("start: nowhere", words),)
    entries = [Entry(replace(ask(i, max_tokens=9), host_masked=True, guide=g)) for i, g in enumerate(broken, 1)]
    entries += with_guides([Entry(ask(i, ids=(9 + i,), max_tokens=20)) for i in range(3, 8)], 0.5)
    for device in ("sim", "host"):
        with stage_on(device, 2) as (stage, refereed):
            heard = stage.play(entries)
            judge_all({i: h for i, h in heard.items() if i > 2}, expected(SPEC, entries[2:]), entries[2:])
            stuck, unread = heard[1].finish.error, heard[2].finish.error
            assert isinstance(stuck, InvalidRequest) and "characters that the model cannot write" in str(stuck)
            assert isinstance(unread, InvalidRequest) and "too large to be followed" in str(unread)
            refereed.audit()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"program": "point"}, "answers in text"),
        ({"host_masked": False}, "built on the host"),
        ({"guide": HostGrammar("start: /a/", guides_of(70)[0].words)}, "70 ids, but the model has 64"),
    ],
)
def test_a_guide_that_cannot_lead_is_refused(change, why):
    request = replace(ask(1), host_masked=True, guide=guides_of()[0])
    with stage_on("sim", 2) as (stage, _):
        heard = stage.play([Entry(replace(request, **change))])
        assert isinstance(heard[1].finish.error, InvalidRequest) and why in str(heard[1].finish.error)
