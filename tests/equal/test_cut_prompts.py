"""Prompts and pictures in parts: every answer is the cold one's, no step takes longer than it may, rows decode between.

Costs are told, never timed. Scenes have long prompts, pictures of up to 13 crops, further pictures inside prompts,
conversations that share prefixes, three adapters and little room, and are cancelled and preempted where it hurts.
"""

import random
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from tests.fakes.adapters import HASHED
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_tower import PackingTowerModel, TowerModel
from tests.fakes.host_stage import host_stage
from tests.fakes.inline_stage import inline_stage
from tests.fakes.scene import Entry, ask, expected, limits_of, sim_stage, with_insets
from tests.fakes.sim_device import Fault
from tests.fakes.verdict import judge, judge_all

from gapless.config import EngineConfig
from gapless.costs import Costs
from gapless.engine.admission import Admission
from gapless.engine.feeding import Feeder
from gapless.errors import InvariantBroken, RequestCancelled, RequestFailed
from gapless.records import Picture, Prompt, Request, Sampling, StepKind

SPEC = HashSpec()
ENDLESS = HashSpec(end_permille=0, answer_permille=0)
SIZE = 4
TINY, AMPLE = 40, 400
CROPS = ((2, 2e-3), (4, 3e-3), (7, 5e-3), (13, 9e-3), (18, 12e-3))
TOKENS = ((4, 1e-3), (8, 1.5e-3), (16, 2e-3), (32, 4e-3), (64, 8e-3))
COSTS = Costs(CROPS, TOKENS, picture=2e-4, step=1e-4, behind=1e-6)
TILINGS = ((1, 1), (1, 1), (2, 2), (2, 4), (3, 4))
LIMITS = (1.0, 3.0, 5.5, 9.0)


def deep(*quick):
    """Depths 1 to 4; all but the `quick` ones are slow."""
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3, 4)]


def shown(number):
    """One of five pictures, of 2 to 13 crops."""
    tiling = TILINGS[number % 5]
    crops = np.random.default_rng(number).integers(0, 256, (1 + tiling[0] * tiling[1], 4, 4, 3), dtype=np.uint8)
    return Picture(f"{number:064x}", crops, tiling, 4, 4)


def scene(seed, count=16, pages=TINY, cancels=0.25):
    """Requests that arrive in the first ticks, most of them cut somewhere; all fit in the pool, if only just."""
    rng, entries, most = random.Random(seed), [], (pages - 3) * SIZE
    while len(entries) < count:
        front = shown(rng.randrange(5)) if rng.random() < 0.7 else None
        ids = [
            *[9, 17, 30, 31, 32, 33][: rng.randrange(1, 7)],
            *(rng.randrange(40, 44) for _ in range(rng.choice([0, 9, 40]))),
        ]
        ids = ids if front is not None else [0, *ids]
        prompt = Prompt(tuple(ids), ((),) * len(ids), front)
        if rng.random() < 0.3:
            inside = [shown(rng.randrange(5)) for _ in range(rng.randrange(1, 3))]
            prompt = with_insets(prompt, inside, SPEC.prefix - 1, rng)
        sampling = Sampling(
            temperature=rng.choice([0.0, 0.0, 0.8]), max_tokens=rng.choice([1, 9, 35, 45]), seed=rng.randrange(3)
        )
        number, program = len(entries) + 1, rng.choice(["text", "text", "point", "detect", "reason"])
        adapter = rng.choice([None, None, *HASHED[:3]])
        request = Request(number, prompt, program, sampling, host_masked=rng.random() < 0.2, adapter=adapter)
        fed = len(prompt.ids) + (SPEC.prefix if front is not None else 0)
        if fed + 2 * sampling.max_tokens <= min(most, SPEC.max_context - 1):
            arrives = rng.randrange(40)
            cancelled = arrives + rng.randrange(30) if rng.random() < cancels else None
            entries.append(Entry(request, arrives, cancelled))
    return entries


@contextmanager  # "cuda" and "packs" are the CUDA device's code, prompts one by one and side by side
def stage_on(device, depth, limit, pages=TINY, seed=0, faults=()):
    config = EngineConfig(lookahead=8, max_step_ms=limit)
    if device == "sim":
        limits = limits_of(SPEC, depth, pages=pages, page_size=SIZE, adapters=2, host=2)
        yield sim_stage(SPEC, limits, delays=(0.0, 3.0), config=config, faults=faults, costs=COSTS)
        return
    make = host_stage if device == "host" else inline_stage
    model = PackingTowerModel(SPEC) if device == "packs" else TowerModel(SPEC)
    told = {"pages": pages, "page_size": SIZE, "seed": seed, "delays": (0.0, 0.001), "adapters": 2, "host": 2}
    with make(model, depth, max_step_ms=limit, costs=COSTS, **told) as made:
        yield made


class Notes:
    """What happened while a prompt was cut, and what each step takes by the costs, from the steps alone."""

    def __init__(self, stage, device, limit, calm=False):
        self.dropped, self.limit, self.steps = Counter(), limit / 1e3, []
        self.launch, device.launch = device.launch, self
        self.feeder, drop = stage.engine.feeder, stage.engine.feeder.drop

        def noted():
            before = self.feeder._admitted
            drop()
            if before is not None and self.feeder.row is None:
                self.dropped["cancelled" if before.seq.finalized else "preempted"] += 1

        self.feeder.drop = noted
        self.stage, self.rng, self.cancelled = stage, random.Random(len(stage.heard)), set()
        stage.before_tick = None if calm else self.disturb

    def disturb(self, tick):
        """Now and then whoever is in the middle of its prompt is cancelled, or makes room."""
        cut, what = self.feeder._admitted, self.rng.random()
        if cut is None or cut.seq.finalized or cut.seq.preempting:
            return
        if what < 0.1:
            self.cancelled.add(cut.seq.history.request.id)
            self.stage.mailbox.cancel(cut.seq.history.request.id)
        elif what < 0.2:
            cut.seq.preempting = True
            self.stage.engine.loop.planner.places.leave(cut.seq.ref.row)

    def __call__(self, step):
        self.launch(step)
        if step.kind is StepKind.PREFILL:
            places, own = self.stage.engine.loop.planner.places, step.rows.numbers
            company = np.delete(places.cap, own).any()
            self.steps.append((step, company))

    def wrong(self):
        """Steps with company that take longer than they may, but are more than one piece that cannot be cut; and parts
        that hold nobody up, but are cut."""
        long = [s for s, company in self.steps if company and seconds(s) > self.limit and pieces(s) > 1]
        return long + [s for s, company in self.steps if not company and s.fed]


def fresh_of(prefill):
    """How many crops a prefill encodes, and how many pictures it feeds."""
    pictures = [prefill.picture] if prefill.picture is not None else []
    pictures += [inset.picture for inset in prefill.insets]
    places = prefill.places or (None,) * len(pictures)
    counts = [one.count for one, place in zip(pictures, places, strict=True) if place is None or not place.there]
    return sum(counts) - prefill.looked, len(pictures)


def pieces(step):
    """How many pieces a step has that could be steps of their own."""
    count = 0 if step.look is None else -(-(step.look.end - step.look.begin) // CROPS[0][0])
    for prefill in step.prefills:
        fresh, pictures = fresh_of(prefill)
        text = len(prefill.ids) - (SPEC.prefix - 1) * len(prefill.insets)
        count += pictures + -(-text // TOKENS[0][0]) + -(-fresh // CROPS[0][0])
    return count


def seconds(step):
    """What a step takes by the costs, from the step alone."""
    crops, pictures, tokens, behind = 0, 0, 0, 0
    for prefill in step.prefills:
        fresh, shown_here = fresh_of(prefill)
        count = len(prefill.ids) + (SPEC.prefix if prefill.picture is not None else 0)
        crops, pictures, tokens = crops + fresh, pictures + shown_here, tokens + count
        behind += len(prefill.ids) * prefill.position
    if step.look is not None:
        crops, pictures = crops + step.look.end - step.look.begin, pictures + (step.look.begin == 0)
    return COSTS.of(crops, pictures, tokens, behind)


def play(device, depth, seed, limit=5.5, pages=TINY, **more):
    """Judge all answers of a scene; returns what was counted."""
    entries = scene(seed, pages=pages, **more)
    with stage_on(device, depth, limit, pages, seed) as (stage, refereed):
        notes = Notes(stage, refereed, limit)
        heard = stage.play(entries)
        entries = [replace(e, cancelled=0) if e.request.id in notes.cancelled else e for e in entries]
        judge_all(heard, expected(SPEC, entries), entries)
        assert not notes.wrong()
        refereed.audit()
        tally, counters = refereed.referee.tally, stage.engine.counters
        assert counters.prompt_parts == tally.parts
        return Counter(
            parts=tally.parts,
            looks=tally.looks,
            looked=tally.looked,
            resumed=tally.resumed,
            hits=counters.prefix_hits,
            long=counters.long_steps,
            host=counters.host_hits,
            **notes.dropped,
        )


def happened(run, *what):
    for name in ("parts", "looks", "looked", *what):
        assert run[name] > 0, f"no {name} in {run}"


@pytest.mark.parametrize("depth", deep(1, 2))
def test_the_simulated_device_is_exact(depth):
    runs = [play("sim", depth, seed, limit) for seed, limit in ((1, 1.0), (5, 3.0), (3, 9.0))]
    happened(sum(runs, Counter()), "hits", "host", "long", "resumed", "cancelled", "preempted")
    for run in runs:
        happened(run)


@pytest.mark.parametrize("depth", deep(2))
@pytest.mark.parametrize("device", ["host", pytest.param("cuda", marks=pytest.mark.slow), "packs"])
def test_devices_are_exact_with_freed_pages_poisoned(device, depth):
    happened(play(device, depth, 1))


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("device", ["sim", "host", "cuda", "packs"])
def test_many_scenes(device, depth, limit):
    total = Counter()
    for seed in range(100, 125 if device == "sim" else 106):
        for pages in (TINY, AMPLE):
            total += play(device, depth, seed, limit, pages)
    happened(total, "hits", "host", "cancelled", "preempted", *(("resumed",) if device == "sim" else ()))


def talkers(count, first=1):
    """Streams that say a lot about nothing."""
    return [ask(first + n, ids=(20 + n,), max_tokens=60) for n in range(count)]


def large(number, ids=60):
    """A question of many words about a picture of 13 crops."""
    prompt = Prompt(tuple(range(30, 34)) * (ids // 4), ((),) * ids, shown(4))
    return replace(ask(number), prompt=prompt, sampling=Sampling(max_tokens=3))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_whoever_runs_has_a_step_between_the_parts_of_a_prompt(depth):
    """By the order of steps: two parts never follow one another, and every decode between them has all streams."""
    entries = [*map(Entry, talkers(3)), Entry(large(9), arrives=12)]
    limits = limits_of(ENDLESS, depth, page_size=SIZE)
    stage, device = sim_stage(ENDLESS, limits, config=EngineConfig(max_step_ms=3.0), costs=COSTS)
    notes = Notes(stage, device, 3.0, calm=True)
    launch, steps = device.launch, []
    device.launch = lambda step: (launch(step), steps.append(step))
    judge_all(stage.play(entries), expected(ENDLESS, entries), entries)
    device.audit()
    streams = {ref.row for step in steps[:3] for ref in step.rows}
    parts = [at for at, step in enumerate(steps) if step.fed]
    assert len(parts) > 8 and not notes.wrong()
    for before, after in pairwise(parts):
        between = steps[before + 1 : after]
        assert [step.kind for step in between] == [StepKind.DECODE] and streams <= {r.row for r in between[0].rows}


def test_a_prompt_goes_whole_while_nobody_decodes_and_where_no_limit_is():
    for limit, costs in ((3.0, COSTS), (3.0, None), (None, COSTS)):
        entries = [Entry(large(1)), *([] if costs and limit else map(Entry, talkers(2, first=2)))]
        limits, config = limits_of(SPEC, 2, page_size=SIZE), EngineConfig(max_step_ms=limit)
        stage, device = sim_stage(SPEC, limits, config=config, costs=costs)
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        assert device.referee.tally.parts == 0 == stage.engine.counters.long_steps


def test_what_cannot_be_cut_goes_alone_and_is_said_once(caplog):
    entries = [*map(Entry, talkers(2)), *(Entry(large(n, ids=8), arrives=10) for n in (5, 6, 7))]
    config, costs = EngineConfig(max_step_ms=4.0), replace(COSTS, whole=True)
    stage, device = sim_stage(ENDLESS, limits_of(ENDLESS, 2, page_size=SIZE), config=config, costs=costs)
    notes = Notes(stage, device, 4.0, calm=True)
    judge_all(stage.play(entries), expected(ENDLESS, entries), entries)
    long = [step for step, company in notes.steps if company and seconds(step) > 4e-3]
    assert len(long) == stage.engine.counters.long_steps == 1, "the others share its block"
    assert all(len(step.prefills) == 1 and step.prefills[0].picture is not None for step in long)
    assert [record.message for record in caplog.records] == [
        "a step of 11.3 ms (13 crops, 13 tokens) is longer than max_step_ms, but cannot be cut; further ones are only "
        "counted"
    ]


def play_with_faults(depth, seed):
    """Parts fail all over a scene: whoever is not told of it has the cold answer, and whoever is, a beginning of it."""
    rng = random.Random(seed)
    faults = tuple(Fault(rng.choice(("launch", "device", "wait")), rng.randrange(1, 120)) for _ in range(8))
    entries = scene(seed)
    with stage_on("sim", depth, 9.0, faults=faults) as (stage, refereed):
        stage.play(entries)
        right = expected(SPEC, entries)
        for entry in entries:
            judge(stage.heard[entry.request.id], right[entry.request.id], (RequestFailed, RequestCancelled))
        refereed.audit()
        failed = sum(isinstance(heard.finish.error, RequestFailed) for heard in stage.heard.values())
        return Counter(failed=failed, parts=refereed.referee.tally.parts, retried=stage.engine.counters.retried)


@pytest.mark.parametrize("depth", deep(2))
def test_nothing_of_a_prompt_that_failed_in_the_middle_is_ever_used(depth):
    total = sum((play_with_faults(depth, seed) for seed in range(5)), Counter())
    assert total["failed"] > 3 and total["parts"] > 20 and total["retried"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_nothing_of_failed_parts_is_used_in_many_scenes(depth):
    total = sum((play_with_faults(depth, seed) for seed in range(100, 130)), Counter())
    assert total["failed"] > 30 and total["parts"] > 150


def lets_it_stay(self, seq):
    """What was to come with a first part that never came is left to be found."""
    seq.begun = True


def test_a_beginning_that_never_came_and_is_found_is_found_out(monkeypatch):
    """Sabotage: the scenes above do cancel prompts before anything of them was fed."""
    monkeypatch.setattr(Admission, "abandon", lets_it_stay)
    with pytest.raises((AssertionError, InvariantBroken)):
        for seed in range(1, 30):
            play("sim", 2, seed, 3.0)


def test_a_row_that_decodes_before_its_prompt_is_there_is_found_out(monkeypatch):
    """Sabotage: the planner must know whose prompt is cut."""
    monkeypatch.setattr(Feeder, "row", None)
    with pytest.raises((AssertionError, InvariantBroken)):
        for seed in range(1, 30):
            play("sim", 2, seed, 3.0)
