"""Prompts side by side say exactly what the oracle says: on the CUDA device's own code, without a GPU."""

from dataclasses import replace

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_prompts import PackingHashModel
from tests.fakes.inline_stage import inline_stage
from tests.fakes.scene import Entry, ask, expected, mix_of_requests
from tests.fakes.scene import picture as pictured
from tests.fakes.verdict import judge_all

from gapless.records import Adapter

SPEC = HashSpec()
INSET = SPEC.prefix - 1
AMPLE, TINY = 400, 27
SMALL = ((8, 4), (64, 8))


@pytest.fixture(params=[None, 2 * SPEC.prefix], ids=["large", "small"])
def most(request, monkeypatch):
    """Small packs hold two blocks and no more, so that prompts are cut and steps take several packs."""
    if request.param is not None:
        monkeypatch.setattr("gapless.device.packs.MOST_TOKENS", request.param)
        monkeypatch.setattr("gapless.device.packs.MOST_RUNS", 3)
        monkeypatch.setattr("gapless.device.packing.STEPS", SMALL)
    return request.param


@pytest.mark.parametrize("pages", [AMPLE, TINY])
@pytest.mark.parametrize(
    ("depth", "size"), [(1, 13), (2, 4), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((1, 4), (2, 13)))]
)
def test_packs_are_exact(depth, size, pages, most):
    entries = mix_of_requests(depth, 18, host=0.2, spread=4)
    if pages == TINY:
        pages = 2 + 110 // size
    model = PackingHashModel(SPEC)
    with inline_stage(model, depth, pages=pages, page_size=size, seed=depth) as (stage, device):
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        device.audit()
        counters, replays = stage.engine.counters, device.device.graphs.replays
        assert replays["together"] >= counters.prefill_steps > 0
        assert (replays["together"] > counters.prefill_steps) or most is None


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("pages", [AMPLE, 40])
def test_prompts_with_several_pictures_are_exact(pages, graphs, most):
    entries = mix_of_requests(3, 10, host=0.0, spread=2, inset=INSET)
    assert sum(len(entry.request.prompt.insets) for entry in entries) > 3
    model = PackingHashModel(SPEC)
    with inline_stage(model, 2, pages=pages, graphs=graphs, seed=3) as (stage, device):
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        device.audit()
        assert (device.device.graphs.replays["together"] > 0) == graphs


def test_adapters_go_one_by_one_beside_packs():
    adapters = [None, None, Adapter("a1", 1, 0x51ED_2701), Adapter("a2", 2, 0x51ED_7919)]
    entries = [
        replace(entry, request=replace(entry.request, adapter=adapters[i % 4]))
        for i, entry in enumerate(mix_of_requests(5, 16, host=0.1, spread=3))
    ]
    model = PackingHashModel(SPEC)
    with inline_stage(model, 2, adapters=2, seed=5) as (stage, device):
        told, launch = [], device.launch

        def watched(step):
            told.extend(step.prefills)
            launch(step)

        device.launch = watched
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        device.audit()
        assert any(p.start.adapter for p in told) and not all(p.start.adapter for p in told)
        assert device.device.graphs.replays["together"] > 0


def test_pictures_that_are_shared_in_one_step_are_exact():
    """The block of a picture and several texts behind it, all in one pack."""
    entries = mix_of_requests(9, 12, host=0.0, spread=1)
    first = next(entry.request.prompt.picture for entry in entries if entry.request.prompt.picture is not None)
    same = []
    for entry in entries:
        prompt = entry.request.prompt
        if prompt.picture is not None:
            prompt = replace(prompt, picture=first)
        same.append(replace(entry, request=replace(entry.request, prompt=prompt)))
    with inline_stage(PackingHashModel(SPEC), 2, seed=9) as (stage, device):
        shared, launch = [], device.launch

        def watched(step):
            shared.append(sum(p.picture is None and p.tail is not None for p in step.prefills) * any(
                p.picture is not None for p in step.prefills))  # fmt: skip
            launch(step)

        device.launch = watched
        judge_all(stage.play(same), expected(SPEC, same), same)
        device.audit()
        assert max(shared) > 0


@pytest.mark.parametrize("picture", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
def test_questions_that_begin_alike_in_one_step_are_exact(depth, picture):
    """A prompt stands behind pages of another one of the same step, the first of which begins with a picture's end."""
    ids = tuple(range(10, 10 + 12))
    shown = pictured(1) if picture else None
    entries = [Entry(ask(n, ids=(*ids, 40 + n % 3), shown=shown, max_tokens=9), arrives=n // 4) for n in range(1, 12)]
    with inline_stage(PackingHashModel(SPEC), depth, seed=2) as (stage, device):
        deep, launch = [], device.launch

        def watched(step):
            made = {page for p in step.prefills for page in p.pages[p.position // 4 :]}
            deep.extend(p for p in step.prefills if made & set(p.pages[: p.position // 4]))
            launch(step)

        device.launch = watched
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        device.audit()
        assert deep, "nobody stands behind what its own step computes"
        assert device.device.graphs.replays["together"] > 0
