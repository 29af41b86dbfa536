"""What the numbers of a config may be, and the length of its templates.

In: a field's name and its value as a file gives it. Out: what it should have been, or None. Every number has a least
and a most, so nothing a file says is counted to, allocated or looped over without bound. The limits are far beyond any
of the family; what is published is in brackets at the larger ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MOST_CONTEXT = 32768
"""The longest context any of the family was made for."""
MOST_IDS = 64
"""Of a template's part (5)."""
MOST_CAPTIONS = 16
"""Lengths of a caption (3)."""

_WIDTH, _INNER, _LAYERS, _HEADS, _SIDE, _VOCAB = 2**14, 2**16, 256, 256, 4096, 2**20
_MOST: Mapping[str, float] = {
    "dim": _WIDTH,  # 2048
    "ff_dim": _INNER,  # 8192
    "n_layers": _LAYERS,  # 24
    "vocab_size": _VOCAB,  # 51200
    "max_context": MOST_CONTEXT,
    "n_heads": _HEADS,  # 32
    "n_kv_heads": _HEADS,
    "prefix_attn": MOST_CONTEXT,  # 730
    "rope_theta": 1e12,  # 1.5e6
    "num_experts": 1024,  # 64
    "start_layer": _LAYERS,  # 4
    "experts_per_token": 64,  # 8
    "expert_inner_dim": _INNER,  # 1024
    "enc_dim": _WIDTH,  # 1152
    "enc_patch_size": 256,  # 14
    "enc_n_layers": _LAYERS,  # 27
    "enc_ff_dim": _INNER,  # 4304
    "enc_n_heads": _HEADS,  # 16
    "proj_inner_dim": _INNER,  # 8192
    "proj_out_dim": _WIDTH,  # 2048
    "crop_size": _SIDE,  # 378
    "in_channels": 3,
    "max_crops": 64,  # 12
    "overlap_margin": 256,  # 4
    "coord_feat_dim": _WIDTH,  # 256
    "coord_out_dim": _INNER,  # 1024
    "size_feat_dim": _WIDTH,  # 512
    "size_out_dim": _INNER,  # 2048
    "inner_dim": _INNER,  # 8192
}


def bounds(name: str) -> tuple[int, float]:
    """The least and the most of a field that is a number. Raises `KeyError` for one without."""
    if name.endswith("_id"):
        return 0, _VOCAB
    return 0 if name in ("overlap_margin", "start_layer") else 1, _MOST[name]


def expected(name: str, kind: str, choices: tuple[str, ...] | None, value: Any) -> str | None:
    """What a field's value should have been; None if it is that. `kind`: "int" or "float"."""
    if choices is not None:
        return None if isinstance(value, str) and value in choices else f"one of {', '.join(choices)}"
    low, high = bounds(name)
    allowed = (int, float) if kind == "float" else (int,)
    right = isinstance(value, allowed) and not isinstance(value, bool) and low <= value <= high
    whole = "number" if kind == "float" else "whole number"
    return None if right and math.isfinite(value) else f"a {whole} from {low} to {high:.15g}"
