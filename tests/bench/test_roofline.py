"""The floor of a decode step, counted by hand and against the model's own tensors."""

from __future__ import annotations

import pytest
from tests.fakes.micro import micro_config, micro_model

from gapless.bench.roofline import Roofline, decode_weight_bytes, gain, kv_token_bytes
from gapless.models.moondream.config import TextConfig, read_config


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


def test_roofline_arithmetic() -> None:
    roofline = Roofline(weight_bytes=2_000_000_000, token_bytes=200_000, bandwidth=4e12)
    assert roofline.step_bytes(8, 800) == 3_280_000_000
    assert roofline.floor_ms(8, 800) == pytest.approx(0.82)
    assert roofline.achieved_gb_per_s(8, 800, 1.64) == pytest.approx(2000)
    assert roofline.share(8, 800, 1.64) == pytest.approx(0.5)


def test_gains_are_fractions_of_the_blocking_throughput() -> None:
    assert gain(120.0, 100.0) == pytest.approx(0.2)
    assert gain(100.0, 100.0) == 0.0
