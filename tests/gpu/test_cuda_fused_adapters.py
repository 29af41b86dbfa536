"""Adapters in the fused step on a GPU: against float64, plain rows untouched, the same bits every time, in a graph."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.test_cuda_fused import BF16_ERROR, GLINT, MOONDREAM_2, ROWS, error, opened
from tests.kernels.drawn_decoder import draw, draw_adapters, step

from gapless.kernels.fused import StepAdapters

pytestmark = pytest.mark.gpu

by_rows = pytest.mark.parametrize("rows", ROWS, ids=lambda rows: f"rows-{rows}-")


def mixed(rows: int, adapters: int) -> list[int]:
    """Slots in no order; every third row has none."""
    return [0 if row % 3 == 2 else (5 * row + 3) % adapters + 1 for row in range(rows)]


def run(fused, scene, adapters=None):
    keys, values = scene.keys.clone(), scene.values.clone()
    return fused.forward(scene.x, scene.positions, scene.tables, keys, values, adapters), keys, values


@by_rows
@pytest.mark.parametrize(
    ("dims", "page", "dtype", "ranks", "room"),
    [
        (MOONDREAM_2, 16, torch.bfloat16, [16] * 8, 16),
        (GLINT, 64, torch.float16, [8, 64, 16, 33, 1], 64),
        (GLINT, 16, torch.bfloat16, [8, 3], 8),
    ],
    ids=["moondream-2", "many ranks", "low rank"],
)
def test_a_step_with_adapters_against_float64(rows, dims, page, dtype, ranks, room):
    scene = draw(rows, 3 * rows, **dims, page=page, dtype=dtype, device="cuda", longest=160)
    adapters = draw_adapters(scene, rows, ranks, mixed(rows, len(ranks)), room)
    fused = opened(scene)
    launched = fused.launches
    with torch.inference_mode():
        plain, plain_keys, _ = run(fused, scene)
        hidden, keys, values = run(fused, scene, adapters)
    assert fused.launches - launched == 2 * (1 + 3 * len(scene.decoder.blocks)) + 1, "layers were not fused"
    right = step(scene, adapters)[0]
    assert error(hidden, right) < BF16_ERROR
    for mine, others in ((keys, scene.keys), (values, scene.values)):
        assert torch.equal(mine.isnan(), others.isnan())
        assert error(mine.nan_to_num(), others.nan_to_num().double()) < BF16_ERROR
    without = adapters.slots == 0
    assert torch.equal(hidden[without], plain[without]), "an adapter shows in a row that has none"
    assert not torch.equal(keys.nan_to_num(), plain_keys.nan_to_num()) or bool(without.all())
    changed = (hidden[~without].double() - plain[~without].double()).norm() / plain[~without].double().norm()
    assert bool(without.all()) or changed > 0.1


@by_rows
def test_a_hundred_relaunches_with_adapters_are_the_same_bits(rows):
    scene = draw(rows, rows, **MOONDREAM_2, dtype=torch.bfloat16, device="cuda", longest=900)
    adapters = draw_adapters(scene, 1, [16] * 8, mixed(rows, 8), 16)
    fused = opened(scene)
    with torch.inference_mode():
        fused._adapters.ready.fill_(999)  # as a step leaves it that broke off
        first = run(fused, scene, adapters)[0].clone()
        assert torch.isfinite(first).all()
        for _ in range(100):
            hidden = fused.forward(scene.x, scene.positions, scene.tables, scene.keys, scene.values, adapters)
            assert torch.equal(hidden, first)


@pytest.mark.parametrize("rows", [1, 8, 33, 64], ids=lambda rows: f"rows-{rows}-")
def test_a_graph_follows_slots_and_what_is_loaded_into_them(rows):
    """One graph: which rows have which adapter changes, all or none of them, and another adapter comes to a slot that
    no row of the step has, while graphs are replayed."""
    scene = draw(rows, rows, **GLINT, dtype=torch.bfloat16, device="cuda")
    adapters = draw_adapters(scene, 1, [16, 8, 64, 16], [0] * rows, 64)
    other = draw_adapters(scene, 2, [64, 16, 8, 16], [0] * rows, 64).bank.flat
    fused, graph = opened(scene), torch.cuda.CUDAGraph()
    held = (scene.x, scene.positions, scene.tables, scene.keys.clone(), scene.values.clone())
    with torch.inference_mode():
        fused.forward(*held, adapters)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            hidden = fused.forward(*held, adapters)
        for number, slots in enumerate([mixed(rows, 3), [0] * rows, [3] * rows, mixed(rows, 2), mixed(rows, 4)]):
            adapters.slots.copy_(torch.tensor(slots))
            hidden.fill_(torch.nan)
            graph.replay()
            if number == 3:
                adapters.bank.flat[4].copy_(other[4])
            torch.cuda.synchronize()
            own = StepAdapters(adapters.bank, torch.tensor(slots, device="cuda"))
            assert torch.equal(hidden, run(fused, scene, own)[0])
            if not any(slots):
                assert torch.equal(hidden, run(fused, scene)[0])


def test_a_row_with_an_adapter_that_is_not_finite_stays_alone():
    scene = draw(8, 3, **GLINT, dtype=torch.bfloat16, device="cuda")
    adapters = draw_adapters(scene, 1, [16, 16], [1, 2, 0, 1, 2, 0, 1, 1], 16)
    fused = opened(scene)
    with torch.inference_mode():
        right = run(fused, scene, adapters)[0]
        scene.x[3] = torch.nan
        found = run(fused, scene, adapters)[0]
    others = torch.arange(8, device="cuda") != 3
    assert torch.isnan(found[3]).all() and torch.equal(found[others], right[others])
