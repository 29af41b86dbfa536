"""A decoder's weights as the fused step reads them: norms folded into what follows, and products side by side.

In: a `Decoder` as the checkpoint has it. Out: `Packed`: per layer [W_qkv; W_fc1] with the norm folded in and
[W_proj | W_fc2], and the same numbers as a `Decoder` of views whose norms scale nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gapless.kernels.fused import Affine, Block, Decoder

AT_ONCE = 1024
"""Rows that are widened together: what that takes would otherwise stay reserved beside the weights, in parts."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A product behind a norm: w [N, D] scaled by the norm, its bias float32 [N], and the sums of its rows [N]."""

    w: Tensor
    bias: Tensor
    sums: Tensor

    @classmethod
    def of(cls, norm: Affine, linears: Sequence[Affine]) -> Folded:
        """W' = W gamma rounded to the weights' dtype, b' = b + W beta, and rowsum(W') of what was rounded."""
        w = torch.cat([linear.weight for linear in linears])
        bias = torch.cat([linear.bias for linear in linears]).float()
        scale, shift = norm.weight.float(), norm.bias.float()
        for rows, its in zip(torch.split(w, AT_ONCE), torch.split(bias, AT_ONCE), strict=True):
            wide = rows.float()
            its.add_(wide @ shift)
            rows.copy_(wide.mul_(scale))
        return cls(w, bias, w.sum(dim=1, dtype=torch.float32))

    def linears(self, sizes: list[int]) -> list[Affine]:
        """The products it is made of: views of w, biases in its dtype."""
        biases = torch.split(self.bias.to(self.w.dtype), sizes)
        return [Affine(w, bias) for w, bias in zip(torch.split(self.w, sizes), biases, strict=True)]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: `up` [3 D + FF, D]; `down` [D, D + FF] and the sum of both biases float32 [D]."""

    up: Folded
    down: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """A decoder laid out anew; `decoder` is made of views of it."""

    layers: list[Layer]
    head: Folded
    decoder: Decoder


@torch.inference_mode()
def pack(decoder: Decoder) -> Packed:
    """Lay out a decoder. What is not packed yet and what is already are in memory together, layer by layer."""
    like = decoder.ln.weight
    plain = Affine(torch.ones_like(like), torch.zeros_like(like))
    layers, blocks = [], []
    for block in decoder.blocks:
        layer = _layer(block)
        qkv, fc1 = layer.up.linears([len(block.qkv.bias), len(block.fc1.bias)])
        proj, fc2 = torch.split(layer.down, [len(block.proj.bias), len(block.fc1.bias)], dim=1)
        layers.append(layer)
        blocks.append(Block(plain, qkv, Affine(proj, block.proj.bias), fc1, Affine(fc2, block.fc2.bias)))
    head = Folded.of(decoder.ln, [decoder.head])
    whole = Decoder(blocks, plain, head.linears([len(head.bias)])[0], decoder.heads, decoder.cos, decoder.sin)
    return Packed(layers, head, whole)


def _layer(block: Block) -> Layer:
    up = Folded.of(block.ln, [block.qkv, block.fc1])
    down = torch.cat([block.proj.weight, block.fc2.weight], dim=1)
    return Layer(up, down, block.proj.bias.float() + block.fc2.bias.float())
