"""A full-size Moondream 3 of random weights in bf16: what is asked of Moondream 2, with experts read as chosen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.gpu.mixes import mix
from tests.gpu.stage import Played, prove
from tests.gpu.test_cuda_moondream2 import (
    END_BIAS,
    ROWS,
    block_pages,
    counted,
    decode_ticks,
    end,
    few_pages,
    open_stage,
    play_200,
    settle_down,
)

from gapless.kernels import reference
from gapless.kernels.graphed import Graphed
from gapless.kernels.grouped import has_grouped
from gapless.kernels.stacks import Stack
from gapless.models.moondream.model import Moondream
from gapless.models.registry import random_model

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def loaded() -> tuple[Moondream, int]:
    """The model, and how many bytes it took."""
    before = torch.cuda.memory_allocated()
    made = random_model("moondream-3", "cuda", "bfloat16", end_bias=END_BIAS).model
    assert isinstance(made, Moondream)
    return made, torch.cuda.memory_allocated() - before


@pytest.fixture(scope="module")
def model(loaded) -> Moondream:
    return loaded[0]


@pytest.fixture(scope="module")
def ample(model) -> Iterator[Played]:
    with open_stage(model, ROWS * (block_pages(model) + 20)) as played:
        yield played


def test_its_memory_is_the_plans(loaded):
    """Weights, 18.54 GB, a few small tables, and what lies between a step's kernels, 22 MB."""
    model, taken = loaded
    assert 2 * 9_268_626_928 <= taken < 2 * 9_268_626_928 + 75e6
    assert model.page_bytes(16) == 16 * 196_608


def test_200_requests_with_ample_pages(ample, model):
    play_200(ample, model, seed=11, first=1)


def test_200_requests_with_few_pages(model):
    with open_stage(model, few_pages(model), lookahead=8) as played:
        play_200(played, model, seed=12, first=1)
        assert played.stage.engine.counters.preemptions > 0
        assert played.device.referee.tally.resumed > 0


def test_decode_allocates_nothing(ample, model):
    settle_down(ample, model, first=10_001)
    decode_ticks(ample, 5)
    before, replays = counted(), ample.proof.replays
    launched = decode_ticks(ample, 40)
    after = counted()
    assert launched >= 20 and ample.proof.replays - replays >= 2 * launched
    assert after == before
    end(ample)


def test_a_whole_mix_never_waits_for_the_device(ample, model):
    entries = mix(model.config, 19, 30, first=30_001, cancels=0.2, host=0.2, spread=30, longest=30)
    torch.cuda.set_sync_debug_mode("error")
    try:
        ample.play(entries)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    prove(ample, 2, True)


@pytest.mark.parametrize("case", ["random", "all to one", "few"])
@pytest.mark.parametrize("tokens", [1, 24, 730])
def test_grouped_experts_are_the_references(model, case, tokens):
    """On the GPU's own product, inside a graph, with inputs that come after the capture."""
    if not has_grouped(model.device):
        pytest.skip("this GPU has no grouped product")
    kernels = Graphed(grouped=True)
    layer = model.text.blocks[-1].mlp
    x = torch.zeros(tokens, 2048, dtype=torch.bfloat16, device="cuda")
    weights = torch.zeros(tokens, 8, dtype=torch.bfloat16, device="cuda")
    chosen = torch.zeros(tokens, 8, dtype=torch.int64, device="cuda")
    with torch.inference_mode():
        kernels.experts(x, weights, chosen, layer.up, layer.down)  # libraries load before a capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = kernels.experts(x, weights, chosen, layer.up, layer.down)
        x.normal_()
        weights.copy_(torch.rand(tokens, 8).softmax(dim=-1))
        low, high = {"random": (0, 64), "all to one": (5, 6), "few": (60, 64)}[case]
        chosen.copy_(torch.randint(low, high, (tokens, 8)))
        graph.replay()
        wide = (Stack(stack.values.float()) for stack in (layer.up, layer.down))
        right = reference.experts(x.float(), weights.float(), chosen, *wide)
    assert float((out.float() - right).norm()) < 2**-6 * float(right.norm())
