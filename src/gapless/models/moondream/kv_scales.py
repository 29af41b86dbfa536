"""Scales of keys and values that are kept in FP8: a head's follow from the weights, without a single token.

A LayerNorm's output before its gain has a length of at most sqrt(dim) and a sum of zero, so a row w of the linear
behind it says at most sqrt(dim) |g w - mean(g w)| + |w b + c|, with the norm's gain g and shift b and the linear's bias
c (Cauchy-Schwarz). Turning two numbers of a key makes neither larger than both together, which is sqrt(2) times the
larger at most; tau scales values by tanh + 0.5 + sigmoid, at most 2.5. Whatever is asked, nothing larger is ever kept:
nothing is cut off, and no token's numbers depend on what was asked before or beside it.

The bound is some tens of times what usual tokens have. FP8 pays nothing for that: its relative precision is the same
over a range of 2^15, and beneath it the error stays under 2^-19 of the bound.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gapless.kernels.kept import scales_of
from gapless.models.moondream.text import TextBlock, TextDecoder

SPARE = 2.0
"""Room above the bound: products are rounded, and adapters, which the weights do not know, add to keys and values. What
is larger still is kept as the largest number there is."""
MOST_TAU = 2.5


@torch.inference_mode()
def kv_scales(text: TextDecoder) -> Tensor:
    """Float32 [layers, 2, H]: those of each layer's keys and values."""
    heads = text.config.n_heads
    return torch.stack([scales_of(SPARE * bounds(block, heads)) for block in text.blocks])


def bounds(block: TextBlock, heads: int) -> Tensor:
    """Float32 [2, H]: no number of a head's keys and values is larger."""
    dim = len(block.ln.bias)
    weight, gain, shift = (part.float() for part in (block.qkv.weight[dim:], block.ln.weight, block.ln.bias))
    seen = weight * gain
    most = math.sqrt(dim) * (seen - seen.mean(dim=1, keepdim=True)).norm(dim=1)
    most = (most + (weight @ shift + block.qkv.bias[dim:].float()).abs()).view(2, heads, -1).amax(dim=-1)
    return torch.mul(most, most.new_tensor([[math.sqrt(2.0)], [1.0 if block.tau is None else MOST_TAU]]))
