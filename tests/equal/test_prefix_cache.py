"""The prefix cache: every answer is the cold one's, on every device and at every depth, and what is kept is used.

Scenes of five pictures, three adapters and prompts that begin alike, in conversations that go on from answers, in a
pool of few pages: hits, evictions, copies and preemptions are counted in each.
"""

import random
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from tests.fakes.adapters import HASHED
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.hash_prompts import PackingHashModel
from tests.fakes.host_stage import host_stage
from tests.fakes.inline_stage import inline_stage
from tests.fakes.micro import micro_config, micro_tensors
from tests.fakes.oracle import answer
from tests.fakes.refereed import Refereed
from tests.fakes.scene import Entry, Stage, ask, expected, limits_of, picture, sim_stage, table_of, with_insets
from tests.fakes.sim_clock import SimClock
from tests.fakes.sim_device import Fault
from tests.fakes.verdict import judge, judge_all
from tests.gpu.mixes import mix

from gapless.config import EngineConfig, HostDeviceConfig
from gapless.constrain.masks import TableMasks
from gapless.constrain.table import PROGRAMS, build_table
from gapless.device.host import HostDevice
from gapless.engine.build import Engine
from gapless.engine.mailbox import ThreadMailbox
from gapless.engine.prefix import PrefixCache
from gapless.errors import InvariantBroken, RequestCancelled, RequestFailed
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates
from gapless.records import Prompt, Request, Sampling

SPEC = HashSpec()
TABLE = table_of(SPEC)
ADAPTERS = HASHED[:3]
TINY = 33
SIZE = 4
HOST = 3
"""Pictures whose embeddings have room in host memory, of five."""


def deep(*quick):
    """Depths 1 to 4; all but the `quick` ones are slow."""
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3, 4)]


def subject(rng):
    """One of five pictures or none, one of three adapters."""
    return (picture(rng.randrange(5)) if rng.random() < 0.85 else None), rng.choice(ADAPTERS)


def conversation(rng, number, turns, about, insets):
    """Requests that go on from one another's answers."""
    shown, adapter = about
    ids = [9, 17, 30, 31, 32, 33, 34, 35][: rng.randrange(1, 9)]
    prompt = Prompt(tuple(ids), ((),) * len(ids), shown)
    if shown is None:
        prompt = replace(prompt, ids=(0, *prompt.ids), values=((), *prompt.values))
    if insets and rng.random() < 0.5:
        prompt = with_insets(prompt, [picture(rng.randrange(5))], SPEC.prefix - 1, rng)
    for turn in range(turns):
        sampling = Sampling(
            temperature=rng.choice([0.0, 0.0, 0.8]),
            max_tokens=rng.choice([5, 22, 35, 45]),
            max_objects=rng.choice([2, 4]),
            seed=rng.randrange(3),
        )
        program = rng.choice(["text", "text", "point", "detect", "reason"])
        request = Request(number + turn, prompt, program, sampling, host_masked=rng.random() < 0.15, adapter=adapter)
        yield request
        said = [token for token in answer(SPEC, TABLE, request).tokens if token.id != SPEC.rules.end]
        more = tuple(rng.randrange(40, 44) for _ in range(rng.randrange(1, 4)))
        prompt = replace(
            prompt,
            ids=(*prompt.ids, *(token.id for token in said), *more),
            values=(*prompt.values, *(token.values for token in said), *((),) * len(more)),
        )


def scene(seed, talks=14, pages=TINY, insets=False):
    """Conversations that begin within a few ticks, half of them about what another is about; further turns come when
    the one before may have been answered. All of them fit in the pool, if only just."""
    rng, entries, subjects = random.Random(seed), [], []
    most = (pages - 3) * SIZE
    for talk in range(talks):
        arrives = rng.randrange(12)
        subjects.append(rng.choice(subjects) if talk % 2 else subject(rng))
        for request in conversation(rng, 1 + 10 * talk, rng.randrange(1, 4), subjects[-1], insets):
            block = SPEC.prefix if request.prompt.picture is not None else 0
            if block + len(request.prompt.ids) + request.sampling.max_tokens * 2 > min(most, SPEC.max_context):
                break
            cancelled = arrives + rng.randrange(30) if rng.random() < 0.08 else None
            entries.append(Entry(request, arrives, cancelled))
            arrives += rng.randrange(20, 90)
    return entries


@contextmanager  # "cuda" and "packs" are the CUDA device's code, prompts one by one and side by side
def stage_on(device, depth, pages=TINY, seed=0, faults=(), host=HOST, **settings):
    with ExitStack() as stack:
        if device == "sim":
            limits = limits_of(SPEC, depth, pages=pages, page_size=SIZE, adapters=2, host=host)
            config = EngineConfig(lookahead=8, **settings)
            yield sim_stage(SPEC, limits, delays=(0.0, 3.0), config=config, faults=faults)
        else:
            make, model = (host_stage if device == "host" else inline_stage), HashModel(SPEC)
            if device == "packs":
                model = PackingHashModel(SPEC)
            sizes = {"pages": pages, "page_size": SIZE, "adapters": 2, "host": host}
            made = make(model, depth, seed=seed, delays=(0.0, 0.001), **sizes)
            yield stack.enter_context(made)


def play(device, depth, seed, pages=TINY, insets=False):
    """Judge all answers of a scene; returns what was counted."""
    entries = scene(seed, pages=pages, insets=insets)
    with stage_on(device, depth, pages, seed) as (stage, refereed):
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        return counted(stage, refereed, entries)


def counted(stage, refereed, entries):
    """What happened in a scene, when the stage is empty again."""
    refereed.audit()
    tally, counters = refereed.referee.tally, stage.engine.counters
    assert counters.prefix_hits >= tally.shared_blocks
    assert counters.prefix_copies == tally.copies
    assert counters.host_hits == refereed.referee.slots.brought
    return Counter(
        brought=counters.host_hits,
        pushed_out=counters.host_evictions,
        hits=counters.prefix_hits,
        misses=counters.prefix_misses,
        evictions=counters.prefix_evictions,
        copies=counters.prefix_copies,
        preemptions=counters.preemptions,
        resumed=tally.resumed,
        beyond_blocks=sum(h.finish.metrics.cached_tokens > SPEC.prefix for h in stage.heard.values()),
        of_answers=_of_answers(stage, entries),
    )


def _of_answers(stage, entries):
    """How many turns found more than the prompt of the turn before: pages with what that answer had said."""
    number = {entry.request.id: entry.request for entry in entries}
    count = 0
    for own in number:
        if own % 10 != 1 and own - 1 in number:
            before = number[own - 1].prompt
            block = SPEC.prefix if before.picture is not None else 0
            count += stage.heard[own].finish.metrics.cached_tokens > block + len(before.ids)
    return count


def happened(*runs):
    """Each run has hits, misses, evictions, copies and preemptions, pictures that came back from the host and that made
    room there; in one of them a turn finds what was answered."""
    for run in runs:
        for what in ("hits", "misses", "evictions", "copies", "preemptions", "beyond_blocks", "brought", "pushed_out"):
            assert run[what] > 0, f"no {what} in {run}"
    assert sum(run["of_answers"] for run in runs) > 0


@pytest.mark.parametrize("depth", deep(1, 2))
def test_the_simulated_device_is_exact(depth):
    happened(*(play("sim", depth, seed) for seed in (1, 5)))


@pytest.mark.parametrize("depth", deep(2))
@pytest.mark.parametrize("device", ["host", "cuda", "packs"])
def test_devices_are_exact_with_freed_pages_poisoned(device, depth):
    happened(play(device, depth, 1))


@pytest.mark.parametrize("depth", deep(3))
def test_pictures_further_on_are_shared_as_parts_of_what_came_before(depth):
    run = play("sim", depth, 3, pages=60, insets=True)
    assert min(run[what] for what in ("hits", "evictions", "copies", "beyond_blocks")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("insets", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("device", ["sim", "host", "cuda", "packs"])
def test_many_scenes(device, depth, insets):
    total = Counter()
    for seed in range(100, 120 if device == "sim" else 105):
        total += play(device, depth, seed, pages=46 if insets else TINY, insets=insets)
    names = ("hits", "misses", "evictions", "copies", "preemptions", "resumed", "beyond_blocks", "of_answers")
    for what in (*names, "brought", "pushed_out"):
        assert total[what] > 0, f"no {what} in {total}"


def play_with_faults(depth, seed):
    """A scene with failures all over it: whoever is not told of one has the cold answer, and whoever is, a beginning of
    it. What a failed step was to compute reads as NaN, so nobody may have begun with it. Returns what was counted."""
    rng = random.Random(seed)
    calls = ("launch", "device", "wait")
    faults = tuple(Fault(rng.choice(calls), rng.randrange(1, 120)) for _ in range(6))
    entries = scene(seed)
    with stage_on("sim", depth, faults=faults) as (stage, refereed):
        stage.play(entries)
        right = expected(SPEC, entries)
        for entry in entries:
            judge(stage.heard[entry.request.id], right[entry.request.id], (RequestFailed, RequestCancelled))
        refereed.audit()
        failed = sum(isinstance(heard.finish.error, RequestFailed) for heard in stage.heard.values())
        counters = stage.engine.counters
        return Counter(failed=failed, hits=counters.prefix_hits, retried=counters.retried)


@pytest.mark.parametrize("depth", deep(2))
def test_nothing_that_a_failed_step_was_to_compute_is_ever_used(depth):
    total = sum((play_with_faults(depth, seed) for seed in range(6)), Counter())
    assert total["failed"] > 4 and total["hits"] > 20 and total["retried"] > 0


def test_a_cache_that_keeps_what_failed_is_found_out(monkeypatch):
    """Sabotage: the scenes above do meet what a failed step left behind."""
    monkeypatch.setattr(PrefixCache, "withdraw", lambda self, what: None)
    with pytest.raises((AssertionError, InvariantBroken)):
        for seed in range(20):
            play_with_faults(2, seed)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_nothing_of_failed_steps_is_used_in_many_scenes(depth):
    total = sum((play_with_faults(depth, seed) for seed in range(100, 130)), Counter())
    assert total["failed"] > 50 and total["hits"] > 200


@pytest.mark.parametrize("size", [1, 3, 13, 16])
def test_other_page_sizes_are_exact(size, monkeypatch):
    """13: the block fills its page, so nothing is ever copied."""
    monkeypatch.setitem(globals(), "SIZE", size)
    run = play("sim", 2, 1, pages=2 + 130 // size if size < 13 else 16)
    assert run["hits"] > 0 and run["evictions"] > 0
    assert (run["copies"] > 0) == (SPEC.prefix % size != 0)


def conversations_of_micro(depth, keep, pages, more=()):
    """What the micro model says on the rehearsing CPU device, and how much of each prompt was there already."""
    model = Moondream(read_config(micro_config()), micro_tensors(micro_config(), end_bias=-30.0))
    rules = Templates.of(model.config).rules()
    table = build_table(rules)
    config = EngineConfig(depth, max_rows=4, page_size=16, pages=pages, lookahead=4, prefix_cache=keep)
    clock, mailbox = SimClock(), ThreadMailbox()
    device = Refereed(HostDevice(model, table, config, HostDeviceConfig(threads=1, poison=True)), table)
    entries = mix(model.config, 3, 6, longest=30, spread=2)
    entries = [replace(e, request=replace(e.request, program=PROGRAMS[i % 3])) for i, e in enumerate(entries)]
    try:
        stage = Stage(Engine(device, table, config, TableMasks(), mailbox, clock), mailbox, clock)
        heard = dict(stage.play(entries))
        further = [turned(entry, heard[entry.request.id].tokens, rules.end) for entry in entries]
        heard = stage.play(further)
    finally:
        device.close()
    assert all(one.finish.error is None for one in heard.values())
    return {number: one.tokens for number, one in heard.items()}, {
        number: one.finish.metrics.cached_tokens for number, one in heard.items()
    }


def turned(entry, said, end):
    """A further turn behind an answer."""
    prompt, said = entry.request.prompt, [token for token in said if token.id != end]
    ids = (*prompt.ids, *(token.id for token in said), 30)
    values = (*prompt.values, *(token.values for token in said), ())
    longer = replace(prompt, ids=ids, values=values)
    return Entry(replace(entry.request, id=entry.request.id + 100, prompt=longer, program="text"))


def test_real_arithmetic_is_the_same_to_the_last_bit_with_the_cache_and_without():
    """What a decode step wrote is what a prefill would have: tokens, values and logprobs are equal."""
    right, nothing = conversations_of_micro(1, False, 200)
    assert max(nothing[number] for number in nothing if number > 100) <= 17, "live requests share blocks alone"
    for depth, pages in ((1, 200), (3, 24)):
        again, cached = conversations_of_micro(depth, True, pages)
        assert again == right
        assert max(cached.values()) > 32


def without_adapter(prompt, adapter):
    return ("", "" if prompt.picture is None else prompt.picture.digest)


def without_picture(prompt, adapter):
    return ("" if adapter is None else adapter.key, "some" if prompt.picture else "")


@pytest.mark.parametrize("key", [without_adapter, without_picture])
def test_a_key_that_leaves_something_out_is_found_out(key, monkeypatch):
    """Sabotage: what the scenes above show, they show because of the whole key."""
    monkeypatch.setattr("gapless.engine.admission.space_of", key)
    with pytest.raises((AssertionError, InvariantBroken)):
        for seed in (1, 5):
            play("sim", 2, seed)


def test_ids_without_their_values_are_found_out(monkeypatch):
    """Sabotage: two coordinates are the same id."""
    play_boxes(boxes())
    monkeypatch.setattr("gapless.engine.prefix._item", lambda token, values: token)
    with pytest.raises(AssertionError):
        play_boxes(boxes())


def boxes():
    """Prompts of four references each, which differ in their coordinates alone."""
    entries = []
    for number in range(1, 5):
        where = (number / 1024,)
        prompt = Prompt((5, 5, 5, 5, 20, 21), (where, where, where, where, (), ()), picture(1))
        entries.append(Entry(replace(ask(number, max_tokens=9), prompt=prompt), arrives=8 * number))
    return entries


def play_boxes(entries):
    with stage_on("sim", 2, pages=60) as (stage, _):
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
