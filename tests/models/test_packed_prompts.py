"""Prompts of several sequences in one pass: the hidden states and the caches are those of one after the other."""

from __future__ import annotations

import pytest
import torch
from tests.fakes.micro import micro_config, micro_tensors
from tests.fakes.plain_prompts import TILE, Packing
from tests.models.packed_scene import Scene

from gapless.config import KVDType
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.prompts import PackedText, beside

ERROR = 1e-5


def model(third: bool, packing: bool = True, kept: KVDType = "auto") -> Moondream:
    raw = micro_config(third=third)
    return Moondream(read_config(raw), micro_tensors(raw), Packing() if packing else None, kept)


@pytest.mark.parametrize(("seed", "kept"), [(1, "auto"), (2, "auto"), (3, "fp8")])
@pytest.mark.parametrize("third", [False, True])
@torch.inference_mode()
def test_pictures_and_a_text_that_shares_one_are_as_one_after_the_other(third, seed, kept):
    packing = model(third, kept=kept)
    prompts = PackedText.of(packing.text, 0, 16, 64, 5)
    assert prompts is not None and prompts.tile == TILE
    scene = Scene.draw(packing, prompts, seed, spare=3)
    hidden = prompts.forward(scene.tokens, scene.runs, scene.cache)
    scene.check(hidden, scene.one_after_the_other(), ERROR)
    assert isinstance(packing.kernels, Packing)
    assert packing.kernels.plain.calls.count("attend") == 2


@torch.inference_mode()
def test_of_the_last_layer_only_what_last_tokens_need_is_computed(monkeypatch):
    packing, taken = model(False), []
    prompts = PackedText.of(packing.text, 0, 16, 64, 5)
    assert prompts is not None
    scene = Scene.draw(packing, prompts, 1, spare=0)
    linear = Packing.linear

    def counted(x, weight, bias):
        taken.append((len(x), len(weight)))
        return linear(x, weight, bias)

    monkeypatch.setattr(Packing, "linear", staticmethod(counted))
    prompts.forward(scene.tokens, scene.runs, scene.cache)
    assert taken == [(5, 96)]
    assert packing.kernels.plain.products == [(53, 3 * 64 + 96), (53, 64), (53, 3 * 64), (5, 64)]


@torch.inference_mode()
def test_weights_are_laid_side_by_side_once_and_kept_once():
    packing = model(third=True)
    dense = packing.text.blocks[0]
    assert beside(dense.qkv.weight, dense.mlp.fc1.weight, 0) is None
    PackedText.of(packing.text, 0, 16, 64, 5)
    laid = packing.text.blocks[0]
    whole = beside(laid.qkv.weight, laid.mlp.fc1.weight, 0)
    assert whole is not None and beside(laid.proj.weight, laid.mlp.fc2.weight, 1) is not None
    assert torch.equal(laid.proj.weight, dense.proj.weight) and torch.equal(laid.mlp.fc2.weight, dense.mlp.fc2.weight)
    PackedText.of(packing.text, 0, 16, 64, 5)
    assert packing.text.blocks[0] is laid


def test_matrices_that_do_not_lie_side_by_side_are_not_taken_for_one():
    whole = torch.arange(48.0).view(6, 8)
    upper, lower = whole[:2], whole[2:]
    left, right = whole[:, :3], whole[:, 3:]
    for pair, dim in (((upper, lower), 0), ((left, right), 1)):
        found = beside(*pair, dim)
        assert found is not None and torch.equal(found, whole)
        assert beside(*pair[::-1], dim) is None and beside(*pair, 1 - dim) is None
    assert beside(upper, lower.clone(), 0) is None and beside(whole[:2], whole[3:], 0) is None


def test_without_kernels_for_prompts_there_is_no_packing():
    assert PackedText.of(model(False, packing=False).text, 0, 16, 64, 5) is None
    assert PackedText.of(model(False).text, 0, 16, 64, 5) is not None
