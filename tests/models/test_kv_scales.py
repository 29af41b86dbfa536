"""Caches in FP8: their scales hold for whatever a model may say, and a page takes a quarter of one in float32."""

from __future__ import annotations

import math

import pytest
import torch
from tests.fakes.micro import micro_config, micro_tensors

from gapless.kernels.kept import LARGEST
from gapless.models.moondream.config import read_config
from gapless.models.moondream.kv_scales import MOST_TAU, SPARE, bounds, kv_scales
from gapless.models.moondream.model import Moondream


def model(third: bool, kv_dtype: str = "fp8") -> Moondream:
    raw = micro_config(third=third)
    return Moondream(read_config(raw), micro_tensors(raw, seed=3), kv_dtype=kv_dtype)


@pytest.mark.parametrize("third", [False, True])
@torch.inference_mode()
def test_no_token_can_say_more_than_a_bound_and_one_comes_near(third) -> None:
    """Each row of keys and values is given the very input that it answers loudest."""
    m = model(third)
    for block, scales in zip(m.text.blocks, kv_scales(m.text), strict=True):
        dim, heads, most = m.config.text.dim, m.config.text.n_heads, bounds(block, m.config.text.n_heads)
        weight = block.qkv.weight[dim:] * block.ln.weight
        signs = (weight @ torch.zeros(dim) + block.qkv.bias[dim:] + block.qkv.weight[dim:] @ block.ln.bias).sign()
        loudest = (weight - weight.mean(1, keepdim=True)) * signs[:, None] * 1e4
        said = block.qkv(block.ln(torch.cat((loudest, torch.randn(200, dim)))))[:, dim:]
        largest = said.abs().view(-1, 2, heads, dim // heads).amax((0, 3))
        exact = most / torch.tensor([[math.sqrt(2.0)], [MOST_TAU if third else 1.0]])
        assert (largest <= exact * 1.0001).all() and (largest >= exact * 0.99).all()
        assert (SPARE * most <= LARGEST * scales).all() and torch.equal(scales.log2(), scales.log2().round())


def test_a_page_takes_a_byte_a_number_and_is_copied_and_poisoned_whole() -> None:
    m, plain = model(False), model(False, "auto")
    assert 4 * m.page_bytes(16) == plain.page_bytes(16)
    cache = m.new_cache(4, 16)
    assert cache.keys.nbytes + cache.values.nbytes == 5 * m.page_bytes(16)
    for stored in (cache.keys, cache.values):
        stored.view(torch.uint8)[:, 1] = torch.randint(0, 120, stored[:, 1].shape, dtype=torch.uint8)
    cache.copy_page(1, 3)
    cache.poison((1, 2))
    for stored in (cache.keys, cache.values):
        assert stored[:, 1:3].float().isnan().all() and not stored[:, 3].float().isnan().any()
        assert stored[:, 3].float().count_nonzero() > 0 == stored[:, 4].float().count_nonzero()
