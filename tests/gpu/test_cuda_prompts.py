"""Prompts side by side on a GPU: against float64, the same bits every time, inside a graph, and through the engine."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_prompts import PackingHashModel
from tests.fakes.scene import expected, mix_of_requests, table_of
from tests.fakes.verdict import judge_all
from tests.gpu.mixes import mix
from tests.gpu.stage import PINNED, answers, cuda_stage, prove
from tests.gpu.test_cuda_equality import table_for
from tests.kernels.drawn_prompts import Piece, PromptScene, copied_tails, draw_prompts, feed_plainly, off
from tests.models.packed_scene import Scene

from gapless.kernels.choose import choose
from gapless.models.moondream.prompts import PackedText
from gapless.models.registry import random_model

if not torch.cuda.is_available():  # then Triton, where it is installed, is not to be imported either
    pytest.skip("needs a GPU", allow_module_level=True)
pytest.importorskip("triton")
from gapless.kernels.triton.prompts import TritonPrompts

pytestmark = pytest.mark.gpu
MOONDREAM = {"dim": 2048, "heads": 32, "fed": 8192}
GLINT = {"dim": 256, "heads": 4, "fed": 512}
SPEC = HashSpec()
BF16_ERROR = 1e-2


def kernels() -> TritonPrompts:
    """As a model on this GPU has them."""
    found = choose(torch.device("cuda")).prompts
    assert isinstance(found, TritonPrompts)
    return found


def mixed(seed: int) -> list[Piece]:
    """Runs of random lengths and places: with and without pictures, behind pages of their own and behind others'."""
    g = torch.Generator().manual_seed(seed)

    def up_to(most: int) -> int:
        return int(torch.randint(1, most, (), generator=g))

    pieces = []
    for _ in range(up_to(7)):
        position = (0, up_to(300))[up_to(3) - 1]
        count = up_to(400)
        begin = position + up_to(count + 1) - 1
        blocks = ((begin, begin + up_to(position + count - begin + 1)),) if up_to(3) == 1 else ()
        pieces.append(Piece(count, position, blocks, tail=position if up_to(3) == 1 else 0))
    return pieces


def look(given: TritonPrompts, scene: PromptScene, last: bool) -> None:
    given.place(scene.up, scene.keys, scene.values, scene.runs, scene.turns, scene.inner)
    given.attend(scene.up, scene.keys, scene.values, scene.runs, scene.turns, scene.inner, last)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("dims", "page", "dtype", "tau"),
    [
        (MOONDREAM, 16, torch.bfloat16, False),
        (MOONDREAM, 64, torch.float16, True),
        (GLINT, 32, torch.bfloat16, True),
        (GLINT, 16, torch.float16, False),
    ],
    ids=["moondream bf16 16", "moondream fp16 64 tau", "glint bf16 32 tau", "glint fp16 16"],
)
@pytest.mark.parametrize("last", [False, True])
def test_kernels_against_float64(seed, dims, page, dtype, tau, last):
    given = kernels()
    scene = draw_prompts(
        mixed(seed), seed, **dims, page=page, dtype=dtype, tau=tau, tile=given.tile, spare=seed, runs=9, device="cuda"
    )
    keys, values, inner = feed_plainly(scene, last)
    launched = given.launches
    look(given, scene, last)
    assert given.launches == launched + 2
    assert max(off(scene.keys, keys), off(scene.values, values), off(scene.inner, inner)) < BF16_ERROR
    copied = copied_tails(scene)
    given.tails(scene.keys[None], scene.values[None], scene.runs)
    assert torch.equal(scene.keys.nan_to_num(7.0), copied.nan_to_num(7.0))


@pytest.mark.parametrize("bulk", [None, False])
@pytest.mark.parametrize("last", [False, True])
def test_a_hundred_relaunches_are_the_same_bits_and_right(last, bulk):
    """With the copy engine, if there is one, and without."""
    given = TritonPrompts(bulk=bulk)
    scene = draw_prompts(
        [Piece(760, blocks=((0, 730),), tail=730), Piece(30, 730, tail=730), Piece(1)], 1, **MOONDREAM,
        dtype=torch.bfloat16, tile=given.tile, spare=3, device="cuda",
    )  # fmt: skip
    up, right = scene.up.clone(), feed_plainly(scene, last)[2]
    look(given, scene, last)
    assert off(scene.inner, right) < BF16_ERROR
    first = [room.clone() for room in (scene.keys, scene.values, scene.inner)]
    for _ in range(100):
        scene.up.copy_(up)
        scene.inner.fill_(torch.nan)
        look(given, scene, last)
        for room, before in zip((scene.keys, scene.values, scene.inner), first, strict=True):
            assert torch.equal(room.nan_to_num(7.0), before.nan_to_num(7.0))


@pytest.mark.parametrize(("name", "dtype"), [("small", "bfloat16"), ("small-3", "float16")])
@torch.inference_mode()
def test_a_whole_pass_is_what_one_after_the_other_leaves_and_says(name, dtype):
    """Eager, and in a graph over other sequences' numbers; a hundred replays are the same bits. With experts the
    coarser roundings of bfloat16 would now and then swap the last one that a token takes."""
    model = random_model(name, "cuda:0", dtype).model
    prompts = PackedText.of(model.text, 0, 16, 256, 5)
    assert prompts is not None
    graph, pool = torch.cuda.CUDAGraph(), None
    for seed in (1, 2, 3):
        scene = Scene.draw(model, prompts, seed, spare=11)
        hidden, right = prompts.forward(scene.tokens, scene.runs, scene.cache), scene.one_after_the_other()
        scene.check(hidden, right, BF16_ERROR)
        if pool is None:
            held, pool = scene, torch.cuda.graph_pool_handle()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, pool=pool):
                out = prompts.forward(held.tokens, held.runs, held.cache)
        held.take(scene)
        first = None
        for _ in range(100):
            prompts.x[: scene.tokens] = scene.x
            graph.replay()
            first = out.clone() if first is None else first
            assert torch.equal(out, first)
        assert torch.equal(first, hidden)


@pytest.mark.parametrize("pages", [400, 27])
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_hash_language_side_by_side_is_exact(depth, graphs, pages):
    entries = mix_of_requests(depth, 18, host=0.2, spread=4)
    model = PackingHashModel(SPEC, device=torch.device("cuda"))
    stage = partial(cuda_stage, model, table_of(SPEC), depth, buckets=PINNED, page_size=4, lookahead=8, seed=depth)
    with stage(graphs=graphs, pages=pages) as played:
        judge_all(played.play(entries), expected(SPEC, entries), entries)
        prove(played, depth, graphs)
        assert (replays_of(played)["together"] >= played.stage.engine.counters.prefill_steps) == graphs
        assert graphs or len(model.made.passes) >= played.stage.engine.counters.prefill_steps


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("name", ["small", "small-3"])
def test_the_engine_feeds_prompts_with_these_kernels(name, graphs):
    """And with no others: what goes one by one is not called."""
    loaded = random_model(name, "cuda:0", end_bias=0.0)
    model, given = loaded.model, loaded.model.kernels.prompts
    entries = mix(loaded.config, 5, 12, greedy=True, insets=True)
    with cuda_stage(model, table_for(model), 2, graphs=graphs, rows=8, pages=400) as played:
        launched = given.launches
        with pytest.MonkeyPatch.context() as patch:
            patch.delattr(type(model), "prefill_prefix")
            patch.delattr(type(model), "prefill_inset")
            answers(played.play(entries))
        steps = played.stage.engine.counters.prefill_steps
        assert (replays_of(played)["together"] >= steps > 0) == graphs
        assert (given.launches == launched) == graphs


def replays_of(played):
    return played.device.device.device.graphs.replays
