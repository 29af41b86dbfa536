"""The floor of a decode step, counted by hand and against the model's own tensors."""

from __future__ import annotations

import pytest
from tests.fakes.micro import micro_config, micro_model

from gapless.bench.roofline import Roofline, decode_weight_bytes, experts_read, gain, kv_token_bytes
from gapless.models.moondream.config import REVISIONS, TextConfig, read_config


def test_moondream_2_reads_2_6_gb_of_weights_and_196608_bytes_a_position() -> None:
    assert decode_weight_bytes(TextConfig(), 2) == 2 * 1_313_413_120
    assert kv_token_bytes(TextConfig(), 2) == 196_608


def test_weight_bytes_are_those_of_the_tensors_a_step_reads() -> None:
    model, text = micro_model(), read_config(micro_config()).text
    tensors = [model.text.post_ln.weight, model.text.post_ln.bias, model.text.lm_head.weight, model.text.lm_head.bias]
    for block in model.text.blocks:
        for part in (block.ln, block.qkv, block.proj, block.mlp.fc1, block.mlp.fc2):
            tensors += [part.weight, part.bias]
    assert decode_weight_bytes(text, 4) == sum(t.numel() * t.element_size() for t in tensors)
    assert kv_token_bytes(text, 4) * 16 == model.page_bytes(16)


def test_weight_bytes_with_experts_are_those_of_the_tensors_a_step_reads() -> None:
    """Six experts of which two are chosen: one row reads two, and very many rows read all."""
    raw = micro_config(third=True)
    model, text = micro_model(third=True), read_config(raw).text
    tensors = [model.text.post_ln.weight, model.text.post_ln.bias, model.text.lm_head.weight, model.text.lm_head.bias]
    for block in model.text.blocks:
        dense = (block.mlp.fc1, block.mlp.fc2) if hasattr(block.mlp, "fc1") else (block.mlp.router,)
        tensors += [t for part in (block.ln, block.qkv, block.proj, *dense) for t in (part.weight, part.bias)]
        tensors.append(block.tau.weight)
    size = sum(t.numel() * t.element_size() for t in tensors) + text.n_layers * text.n_heads * 4  # alpha
    assert decode_weight_bytes(text, 4) == size
    roofline = Roofline.of(text, 4, 1e12)
    assert roofline.step_bytes(1, 0) == size + 2 * 3 * 64 * 24 * 4
    assert roofline.step_bytes(200, 0) == pytest.approx(size + 6 * 3 * 64 * 24 * 4)
    assert roofline.step_bytes(2, 10) - roofline.step_bytes(2, 0) == 2 * 10 * kv_token_bytes(text, 4)


def test_moondream_3_by_hand() -> None:
    """24 layers of 16.78 M attention and 0.39 M tau, 4 of 33.55 M feed-forward, 20 routers of 0.13 M, a head of
    104.9 M: 654 M. With 8 of 64 experts of 6.29 M in 20 layers: 1.66 G for one row, the published 1.766 G less
    the word table.
    """
    text = REVISIONS["moondream3"].text
    roofline = Roofline.of(text, 2, 1e12)
    assert roofline.step_bytes(1, 0) == pytest.approx(2 * (1.766e9 - 104.9e6), rel=1e-3)
    assert roofline.expert_bytes == 2 * 6_291_456
    narrow = Roofline.of(text, 2, 1e12, 1)
    assert narrow.expert_bytes == 6_291_456
    assert roofline.step_bytes(1, 9) - narrow.step_bytes(1, 9) == pytest.approx(20 * 8 * 6_291_456)
    assert roofline.weight_bytes == pytest.approx(2 * (1.766e9 - 104.9e6 - 20 * 8 * 6_291_456), rel=1e-3)
    assert experts_read(text, 1) == pytest.approx(8)
    assert experts_read(text, 2) == pytest.approx(8 + 8 * 7 / 8)  # each of the second's is new in 56 of 64 cases
    assert experts_read(text, 1000) == pytest.approx(64)
    assert experts_read(TextConfig(), 5) == 0


def test_roofline_arithmetic() -> None:
    roofline = Roofline(weight_bytes=2_000_000_000, token_bytes=200_000, bandwidth=4e12)
    assert roofline.step_bytes(8, 800) == 3_280_000_000
    assert roofline.floor_ms(8, 800) == pytest.approx(0.82)
    assert roofline.achieved_gb_per_s(8, 800, 1.64) == pytest.approx(2000)
    assert roofline.share(8, 800, 1.64) == pytest.approx(0.5)


def test_gains_are_fractions_of_the_blocking_throughput() -> None:
    assert gain(120.0, 100.0) == pytest.approx(0.2)
    assert gain(100.0, 100.0) == 0.0
