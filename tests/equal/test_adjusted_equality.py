"""Penalties, biases, bans and held-back ends, on every device: what the naive formulas over the whole of what was said
make of it, at any depth, after aborts and preemption, with rows beside them that want none of it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
from tests.equal.test_rules_equality import check_rules, stage_on
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.hash_tower import TowerModel
from tests.fakes.host_stage import host_stage
from tests.fakes.inline_stage import inline_stage
from tests.fakes.ruled import with_rules
from tests.fakes.scene import ask, expected, limits_of, mix_of_requests, sim_stage
from tests.fakes.verdict import judge_all

from gapless.costs import Costs
from gapless.errors import InvalidRequest
from gapless.records import Sampling

SPEC = HashSpec()
AMPLE, TINY = 400, 27


@contextmanager
def sim(depth, pages, seed):
    yield sim_stage(SPEC, limits_of(SPEC, depth, pages=pages), delays=(0.0, 3.0))


@contextmanager
def host(depth, pages, seed):
    with host_stage(HashModel(SPEC), depth, pages=pages, seed=seed) as (stage, device):
        yield stage, device


@contextmanager
def inline(depth, pages, seed):
    with inline_stage(HashModel(SPEC), depth, pages=pages, seed=seed) as (stage, device):
        yield stage, device


def play(device, depth, pages, masked, seed, count=18, inset=0):
    """Play a scene; returns how many adjusted requests were preempted and yet said what was expected."""
    wishes = {"host": masked, "spread": 12, "inset": inset}
    entries = mix_of_requests(seed, count, adjusted=0.75, **wishes)
    right, plain = expected(SPEC, entries), expected(SPEC, mix_of_requests(seed, count, **wishes))
    assert sum(right[i].tokens != plain[i].tokens for i in right) >= count // 4, "hardly an answer is another one"
    assert 1 < sum(e.request.sampling.adjusts for e in entries) <= count
    with device(depth, pages, seed) as (stage, refereed):
        heard = stage.play(entries)
        judge_all(heard, right, entries)
        refereed.audit()
    said = {e.request.id: right[e.request.id].tokens != plain[e.request.id].tokens for e in entries}
    return sum(heard[i].finish.metrics.preemptions > 0 and said[i] for i in heard)


@pytest.mark.parametrize("pages", [pytest.param(AMPLE, marks=pytest.mark.slow), TINY])
@pytest.mark.parametrize("masked", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("depth", [1, 2, pytest.param(3, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("device", [sim, host, inline], ids=["sim", "host", "cuda"])
def test_answers_are_those_of_the_formulas(device, depth, masked, pages):
    resumed = play(device, depth, pages, masked, seed=20 if depth % 2 else 32)
    assert pages == AMPLE or resumed > 0, "nobody who is adjusted was preempted"


@pytest.mark.parametrize("device", [sim, host, inline], ids=["sim", "host", "cuda"])
def test_rows_with_host_masks_are_adjusted_once(device):
    play(device, 2, TINY, 1.0, seed=31)


def test_what_fills_a_picture_in_a_prompt_is_no_word():
    play(host, 2, AMPLE, 0.0, seed=5, inset=12)


@pytest.mark.parametrize(
    ("device", "depth"), [("sim", 4), ("host", 2), ("cuda", 3), pytest.param("sim", 1, marks=pytest.mark.slow)]
)
def test_rows_with_rules_are_adjusted_and_keep_to_them(device, depth):
    """Bans and held-back ends give way where a rule has nothing else: no answer fails, and each follows its rule."""
    drawn = mix_of_requests(depth + 7, 20, adjusted=0.9, spread=12, inset=SPEC.prefix - 1)
    entries = with_rules(drawn, 0.8, depth)
    bare = [replace(e, request=replace(e.request, sampling=unadjusted(e.request.sampling))) for e in entries]
    right, plain = expected(SPEC, entries), expected(SPEC, bare)
    ruled = [e.request for e in entries if e.request.grammar is not None]
    assert sum(r.sampling.adjusts and right[r.id].tokens != plain[r.id].tokens for r in ruled) >= 3
    with stage_on(device, depth, seed=depth) as (stage, refereed):
        heard = stage.play(entries)
        judge_all(heard, right, entries)
        refereed.audit()
    assert check_rules(entries, heard) >= 5


@pytest.mark.parametrize(
    ("device", "depth"), [("host", 2), *(pytest.param(*c, marks=pytest.mark.slow) for c in (("sim", 4), ("cuda", 3)))]
)
def test_rows_that_the_host_leads_are_adjusted_and_keep_to_their_grammar(device, depth):
    pytest.importorskip("llguidance")
    from tests.equal import test_guided_equality as guided
    from tests.fakes.guided import with_guides

    entries = with_guides(with_rules(mix_of_requests(depth, 20, adjusted=0.8, spread=12), 0.2), 0.6, depth)
    right = expected(SPEC, entries)
    assert sum(e.request.guide is not None and e.request.sampling.adjusts for e in entries) >= 3
    with guided.stage_on(device, depth, seed=depth) as (stage, refereed):
        heard = stage.play(entries)
        judge_all(heard, right, entries)
        refereed.audit()
    assert guided.check_said(entries, heard) >= 2


def unadjusted(sampling):
    plain = Sampling()
    names = ("logit_bias", "banned", "min_tokens", "repetition_penalty", "presence_penalty", "frequency_penalty")
    return replace(sampling, **{name: getattr(plain, name) for name in names})


@pytest.mark.slow
@pytest.mark.parametrize("device", [sim, host, inline], ids=["sim", "host", "cuda"])
def test_many_seeds(device):
    for seed in range(40, 60):
        for depth in (1, 2, 3, 4):
            play(device, depth, TINY if seed % 2 else AMPLE, seed % 3 / 2, seed)


def test_a_prompt_in_parts_counts_as_a_whole():
    """Its row begins anew with each part, and what was there of it stays the same."""
    costs = Costs(((2, 2e-3), (18, 9e-3)), ((4, 1e-3), (64, 8e-3)), picture=2e-4, step=1e-4, behind=1e-6)
    entries = mix_of_requests(6, 14, adjusted=1.0, spread=9, cancels=0.0)
    with host_stage(TowerModel(SPEC), 2, seed=6, max_step_ms=1.5, costs=costs) as (stage, device):
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        device.audit()
        assert device.referee.tally.parts > 5


@pytest.mark.parametrize(
    ("wrong", "param", "said"),
    [
        ({"logit_bias": ((64, 1.0),)}, "logit_bias", "names the id 64, but ids are 0 to 63"),
        ({"banned": (-1,)}, "banned", "names the id -1"),
        ({"logit_bias": tuple((i, 1.0) for i in range(301))}, "logit_bias", "names the id"),
    ],
)
def test_ids_that_there_are_not_are_refused_by_the_engine(wrong, param, said):
    stage, _ = sim_stage(SPEC, limits_of(SPEC, 1))
    stage.mailbox.submit(ask(1, **wrong))
    while stage.tick():
        pass
    error = stage.heard[1].finish.error
    assert isinstance(error, InvalidRequest) and error.param == param and said in str(error)


def test_who_wants_nothing_is_not_adjusted():
    assert not Sampling().adjusts
    for name, value in (("min_tokens", 1), ("banned", (3,)), ("logit_bias", ((3, 0.0),)), ("presence_penalty", 0.1)):
        assert Sampling(**{name: value}).adjusts
