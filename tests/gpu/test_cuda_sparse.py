"""The fused step with scaled attention and experts on a GPU: against float64, in a graph, the same bits every time."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from tests.kernels.drawn_sparse import MOONDREAM_3, ODD, Sizes, Sparse, draw, step

from gapless.kernels.choose import choose
from gapless.models.registry import random_model

pytestmark = pytest.mark.gpu

GLINT = Sizes(dim=256, ff=512, vocab=2048, gelu="tanh")
ROWS, SOME = (1, 2, 4, 8, 16, 24, 64, 96), (1, 3, 33)
"""Numbers of rows of different tiles: at full size, and at sizes that a test alone has."""
BF16_ERROR = 1e-2


def error(found, right):
    assert torch.isfinite(found).all()
    return float((found.double() - right).norm() / right.norm())


def opened(scene: Sparse):
    """As a model on this GPU has it; `launches` counts its kernels."""
    fused = choose(torch.device("cuda")).fuse_sparse(scene.decoder)
    assert fused is not None and type(fused).__name__ == "TritonSparseStep"
    poison(fused)
    return fused


def poison(fused) -> None:
    """NaN, or the largest number there is, wherever a step leaves something for a later kernel."""
    for name, room in vars(fused._room).items():
        if isinstance(room, torch.Tensor) and name != "arrived":
            room.fill_(torch.nan if room.is_floating_point() else 2**31 - 1)


def run(fused, scene: Sparse):
    keys, values = scene.keys.clone(), scene.values.clone()
    hidden = fused.forward(scene.x, scene.positions, scene.tables, keys, values)
    return hidden, fused.logits(hidden), keys, values


def choices(fused, of: Sizes, rows: int):
    """Who took which expert of the last layer, bool [rows, experts], as the step has it."""
    chosen = fused._room.chosen[: rows * of.share].view(rows, of.share).long()
    return torch.zeros(rows, of.experts, dtype=torch.bool, device="cuda").scatter_(1, chosen, True)


@pytest.mark.parametrize(
    ("of", "page", "dtype", "narrow", "rows"),
    [
        pytest.param(*how, rows, id=f"{name}-{rows}")
        for name, how, counts in (
            ("moondream-3 bf16", (MOONDREAM_3, 16, torch.bfloat16, False), ROWS),
            ("moondream-3 fp8", (MOONDREAM_3, 64, torch.bfloat16, True), ROWS),
            ("glint fp16", (GLINT, 32, torch.float16, False), SOME),
            ("glint fp8", (GLINT, 16, torch.bfloat16, True), SOME),
            ("odd fp8", (ODD, 16, torch.float16, True), SOME),
        )
        for rows in counts
    ],
)
def test_a_step_against_float64(of, page, dtype, narrow, rows):
    scene = draw(rows, 7 * rows + page, of, narrow=narrow, page=page, dtype=dtype, device="cuda", longest=160)
    fused = opened(scene)
    with torch.inference_mode():
        hidden, logits, keys, values = run(fused, scene)
        mine = choices(fused, of, rows)
        cut = rows > 1 and fused.choice(rows).cut
        assert fused.launches == (3 + 3 + 1 if rows == 1 else 1 + 4 + 5 - cut + 2)
        free = step(copy.deepcopy(scene))[2]
        right_hidden, right_logits, _ = step(scene, forced=[free[0], mine])
    assert (mine.sum(1) == of.share).all() and (mine != free[1]).sum() <= 0.02 * mine.sum() + 2  # near-ties
    assert torch.equal(fused.taken[1].long(), mine.sum(0))
    assert error(hidden, right_hidden) < BF16_ERROR
    assert error(logits, right_logits) < BF16_ERROR
    for own, right in ((keys, scene.keys), (values, scene.values)):
        assert torch.equal(own.isnan(), right.isnan())
        assert error(own.nan_to_num(), right.nan_to_num().double()) < BF16_ERROR


@pytest.mark.parametrize("narrow", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("rows", ROWS)
def test_a_hundred_relaunches_are_the_same_bits(rows, narrow):
    """A race can stay far below any tolerance; it shows as bits that move."""
    scene = draw(rows, rows, MOONDREAM_3, narrow=narrow, dtype=torch.bfloat16, device="cuda", longest=900)
    fused = opened(scene)
    with torch.inference_mode():
        first_hidden, first_logits = (part.clone() for part in run(fused, scene)[:2])
        for _ in range(100):
            hidden = fused.forward(scene.x, scene.positions, scene.tables, scene.keys, scene.values)
            assert torch.equal(hidden, first_hidden)
            assert torch.equal(fused.logits(hidden), first_logits)


@pytest.mark.parametrize("rows", [1, 8, 33, 64])
def test_a_graph_follows_positions_tables_and_inputs(rows):
    """Captured over one scene's memory, replayed with another's numbers in it."""
    scene, other = (draw(rows, seed, GLINT, dtype=torch.bfloat16, device="cuda") for seed in (1, 2))
    fused = opened(scene)
    held = copy.deepcopy(dataclasses.replace(scene, decoder=None))
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode():
        run(fused, scene)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            hidden = fused.forward(held.x, held.positions, held.tables, held.keys, held.values)
            logits = fused.logits(hidden)
        for numbers in (other, scene, other):
            for name in ("x", "positions", "tables", "keys", "values"):
                getattr(held, name).copy_(getattr(numbers, name))
            logits.fill_(torch.nan)
            graph.replay()
            torch.cuda.synchronize()
            right = run(fused, dataclasses.replace(numbers, decoder=scene.decoder))
            assert torch.equal(hidden, right[0]) and torch.equal(logits, right[1])


@pytest.mark.parametrize(("rows", "narrow"), [(8, False), (40, False), (8, True)])
def test_experts_that_all_rows_take_and_that_none_does(rows, narrow):
    """A router that gives every row the same experts, and NaN in all others."""
    scene = draw(rows, 5, MOONDREAM_3, narrow=narrow, dtype=torch.bfloat16, device="cuda")
    mixture = scene.decoder.blocks[1].mlp
    mixture.router.bias[:8] = 100.0
    up, down = ((of.scales if narrow else of.values)[8:] for of in (mixture.up, mixture.down))
    up[:], down[:] = torch.nan, torch.nan
    fused = opened(scene)
    with torch.inference_mode():
        hidden = run(fused, scene)[0]
        assert fused.taken[1].tolist() == [rows] * 8 + [0] * 56
        up[:], down[:] = 0.0, 0.0
        assert error(hidden, step(scene)[0]) < BF16_ERROR


@pytest.mark.parametrize("narrow", [False, True])
def test_a_row_that_is_not_finite_stays_alone(narrow):
    scene = draw(8, 3, GLINT, narrow=narrow, dtype=torch.bfloat16, device="cuda")
    fused = opened(scene)
    with torch.inference_mode():
        right = run(fused, scene)[1]
        scene.x[3] = torch.nan
        found = run(fused, scene)[1]
    others = torch.arange(8, device="cuda") != 3
    assert torch.isnan(found[3]).all() and torch.equal(found[others], right[others])


@pytest.mark.parametrize("size", ["small-3", "small-3.1"])
def test_a_model_goes_this_way_and_its_prompts_read_the_same_weights(size):
    """A decode step, and the same tokens as a prompt's: layer by layer, through views of what was laid out anew."""
    model = random_model(size, "cuda", "bfloat16", seed=4).model
    fused = model.text.sparse
    assert type(fused).__name__ == "TritonSparseStep"
    cache, x = model.new_cache(9, 16), torch.randn(4, model.config.text.dim, device="cuda").bfloat16()
    tables = torch.arange(1, 9, device="cuda").view(4, 2)
    for places in (range(3), range(3, 6)):
        for place in places:
            at = torch.full((4,), place, device="cuda")
            with torch.inference_mode():
                before = fused.launches
                hidden = model.forward(x, at, tables, cache)
                assert fused.launches > before
                model.text.sparse = None
                again = model.forward(x, at, tables, cache)
                model.text.sparse = fused
            assert error(hidden, again.double()) < 2 * BF16_ERROR


def test_what_does_not_fit_is_not_fused():
    kernels = choose(torch.device("cuda"))
    whole = draw(1, 1, dtype=torch.float32, device="cuda")
    odd = draw(1, 1, Sizes(dim=96, heads=3), dtype=torch.bfloat16, device="cuda")
    assert kernels.fuse_sparse(whole.decoder) is None and kernels.fuse_sparse(odd.decoder) is None
