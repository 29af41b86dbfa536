"""The fused decode step on a GPU: against float64, the same bits every time, inside a graph, at every size."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from tests.kernels.drawn_decoder import Scene, draw, step

from gapless.kernels.choose import choose
from gapless.kernels.fused import FusedStep

pytestmark = pytest.mark.gpu

MOONDREAM_2 = {"dim": 2048, "inner": 8192, "heads": 32, "vocab": 51200}
GLINT = {"dim": 256, "inner": 512, "heads": 4, "vocab": 2048}
ROWS = (1, 2, 4, 7, 8, 16, 24, 32, 48, 64, 96, 128)
BF16_ERROR = 1e-2


def error(found, right):
    assert torch.isfinite(found).all()
    return float((found.double() - right).norm() / right.norm())


def opened(scene: Scene) -> FusedStep:
    """As a model on this GPU has it; `launches` counts its kernels."""
    fused = choose(torch.device("cuda")).fuse(scene.decoder)
    assert fused is not None and type(fused).__name__ == "TritonStep"
    return fused


def run(fused: FusedStep, scene: Scene):
    keys, values = scene.keys.clone(), scene.values.clone()
    hidden = fused.forward(scene.x, scene.positions, scene.tables, keys, values)
    return hidden, fused.logits(hidden), keys, values


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    ("dims", "page", "dtype"),
    [
        (MOONDREAM_2, 16, torch.bfloat16),
        (MOONDREAM_2, 64, torch.float16),
        (GLINT, 64, torch.bfloat16),
        (GLINT, 16, torch.float16),
    ],
    ids=["moondream-2 bf16 16", "moondream-2 fp16 64", "glint bf16 64", "glint fp16 16"],
)
def test_a_step_against_float64(rows, dims, page, dtype):
    scene = draw(rows, 7 * rows + page, **dims, page=page, dtype=dtype, device="cuda", longest=160)
    fused = opened(scene)
    launched = fused.launches
    with torch.inference_mode():
        hidden, logits, keys, values = run(fused, scene)
    assert fused.launches - launched == 3 + 3 * len(scene.decoder.blocks)
    right_hidden, right_logits = step(scene)
    assert error(hidden, right_hidden) < BF16_ERROR
    assert error(logits, right_logits) < BF16_ERROR
    for mine, right in ((keys, scene.keys), (values, scene.values)):
        assert torch.equal(mine.isnan(), right.isnan())
        assert error(mine.nan_to_num(), right.nan_to_num().double()) < BF16_ERROR


@pytest.mark.parametrize("rows", ROWS)
def test_a_hundred_relaunches_are_the_same_bits(rows):
    """A race can stay far below any tolerance; it shows as bits that move."""
    scene = draw(rows, rows, **MOONDREAM_2, dtype=torch.bfloat16, device="cuda", longest=900)
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
    scene, other = (draw(rows, seed, **GLINT, dtype=torch.bfloat16, device="cuda") for seed in (1, 2))
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


def test_a_row_that_is_not_finite_stays_alone():
    scene = draw(8, 3, **GLINT, dtype=torch.bfloat16, device="cuda")
    fused = opened(scene)
    with torch.inference_mode():
        right = run(fused, scene)[1]
        scene.x[3] = torch.nan
        found = run(fused, scene)[1]
    others = torch.arange(8, device="cuda") != 3
    assert torch.isnan(found[3]).all() and torch.equal(found[others], right[others])


def test_what_does_not_fit_is_not_fused():
    kernels = choose(torch.device("cuda"))
    whole = draw(1, 1, dtype=torch.float32, device="cuda")
    odd = draw(1, 1, dim=96, heads=3, dtype=torch.bfloat16, device="cuda")
    assert kernels.fuse(whole.decoder) is None and kernels.fuse(odd.decoder) is None
