"""What a Moondream takes in memory, told from its config."""

from __future__ import annotations

from math import prod

from gapless.models.footprint import Footprint
from gapless.models.moondream.config import MoondreamConfig, TextConfig
from gapless.models.moondream.weights_map import tensor_shapes


def token_bytes(text: TextConfig, itemsize: int) -> int:
    """Bytes of one position's keys and values in all layers, numbers of `itemsize` bytes each."""
    return 2 * text.n_layers * text.dim * itemsize


def footprint(config: MoondreamConfig, itemsize: int, weights: int | None = None, kept: int | None = None) -> Footprint:
    """Of a model in numbers of `itemsize` bytes. `weights`: bytes of a checkpoint whose weights are not all of that
    size; None if they are. `kept`: bytes of a number in the KV cache, None if they are as many."""
    if weights is None:
        weights = itemsize * sum(map(prod, tensor_shapes(config).values()))
    text = config.text
    return Footprint(weights, token_bytes(text, kept or itemsize), text.max_context, text.prefix_attn)
