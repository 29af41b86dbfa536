"""What `gapless tune` computes steps of: a decoder of random numbers with rows in the middle of their answers, and what
is right for them in float32.

In: dimensions, a number format, a device. Out: tensors as a fused step takes them. Norms scale and shift and biases
matter, so that a kernel that leaves one out is wrong; contexts differ in length, so that one that reads too far is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gapless.kernels.fused import Affine, Block, Decoder
from gapless.kernels.graphed import Graphed
from gapless.kernels.reference import LN_EPS
from gapless.kernels.triton.choices import Dims

PAGE = 16
THETA = 10_000.0
AT_ONCE = 16
"""Rows whose contexts are gathered together for what is right."""


def decoder_of(dims: Dims, layers: int, length: int, dtype: torch.dtype, device: torch.device) -> Decoder:
    """A decoder that keeps activations at their size; positions up to `length`."""
    g = torch.Generator(device).manual_seed(0) if device.type != "meta" else None

    def normal(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_(shift, scale, generator=g)

    def linear(out: int, into: int, scale: float = 1.0) -> Affine:
        return Affine(normal(out, into, scale=scale * into**-0.5), normal(out, scale=0.1))

    def norm() -> Affine:
        return Affine(normal(dims.dim, scale=0.2, shift=1.0), normal(dims.dim, scale=0.1))

    def block() -> Block:
        less = (2 * layers) ** -0.5
        qkv, proj = linear(3 * dims.dim, dims.dim), linear(dims.dim, dims.dim, less)
        return Block(norm(), qkv, proj, linear(dims.inner, dims.dim), linear(dims.dim, dims.inner, less))

    cos, sin = Graphed().rope_tables(length, dims.rotary, THETA, device)
    blocks = [block() for _ in range(layers)]
    head = linear(dims.vocab, dims.dim)
    return Decoder(blocks, norm(), head, dims.heads, cos, sin)


@dataclass(frozen=True, slots=True)
class Scene:
    """`rows` rows with a token each to feed, x [B, dim]; `right`: hidden [B, dim] and logits [B, vocab] in float32."""

    x: Tensor
    positions: Tensor
    tables: Tensor
    keys: Tensor
    values: Tensor
    right: tuple[Tensor, Tensor]

    @classmethod
    @torch.inference_mode()
    def of(cls, decoder: Decoder, rows: int, context: int) -> Scene:
        """Rows whose contexts are `context` long on average, each in pages of its own."""
        like = decoder.ln.weight
        device, dim, wide = like.device, len(like), len(like) // decoder.heads
        g = torch.Generator(device).manual_seed(rows)
        low, high = context - context // 8, context + context // 8
        columns = -(-(high + 1) // PAGE)
        positions = torch.randint(low, high + 1, (rows,), generator=g, device=device)
        pages = torch.randperm(rows * columns, generator=g, device=device) + 1
        shape = (len(decoder.blocks), rows * columns + 2, decoder.heads, PAGE, wide)
        keys, values = (torch.empty(shape, dtype=like.dtype, device=device).normal_(generator=g) for _ in range(2))
        x = torch.empty(rows, dim, dtype=like.dtype, device=device).normal_(generator=g)
        tables = pages.view(rows, columns)
        return cls(x, positions, tables, keys, values, _step(decoder, x, positions, tables, keys, values))


def _step(
    decoder: Decoder, x: Tensor, positions: Tensor, tables: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """A step in float32, written out; the caches stay as they are."""
    x, kernels = x.float(), Graphed()
    cos, sin = decoder.cos[positions], decoder.sin[positions]
    for i, block in enumerate(decoder.blocks):
        n = _norm(x, block.ln)
        parts = _linear(n, block.qkv).view(len(x), 3, decoder.heads, -1)
        q, k = (kernels.rope(parts[:, part], cos, sin) for part in range(2))
        like = keys.dtype
        new = k.to(like).float(), parts[:, 2].to(like).float()
        pieces = [slice(first, first + AT_ONCE) for first in range(0, len(x), AT_ONCE)]
        seen = [_attended(q[p], (new[0][p], new[1][p]), positions[p], tables[p], keys[i], values[i]) for p in pieces]
        inner = F.gelu(_linear(n, block.fc1), approximate="tanh")
        x = x + _linear(torch.cat(seen), block.proj) + _linear(inner, block.fc2)
    return x, _linear(_norm(x, decoder.ln), decoder.head)


def _attended(
    q: Tensor, new: tuple[Tensor, Tensor], positions: Tensor, tables: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Some rows' attention over their pages and their own token, [B, dim]."""
    k, v = (_gathered(cache, tables, own, positions) for cache, own in zip((keys, values), new, strict=True))
    scores = torch.einsum("bhd,bthd->bht", q, k) * q.shape[-1] ** -0.5
    beyond = torch.arange(k.shape[1], device=q.device) > positions[:, None]
    weights = torch.softmax(scores.masked_fill(beyond[:, None], -torch.inf), dim=-1)
    return torch.einsum("bht,bthd->bhd", weights, v).flatten(1)


def _gathered(cache: Tensor, tables: Tensor, own: Tensor, positions: Tensor) -> Tensor:
    """[B, T, H, D] float32: what the pages hold, and each row's own at its position."""
    whole = cache[tables].transpose(2, 3).flatten(1, 2).float()
    whole[torch.arange(len(own), device=own.device), positions] = own
    return whole


def _norm(x: Tensor, of: Affine) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], of.weight.float(), of.bias.float(), LN_EPS)


def _linear(x: Tensor, of: Affine) -> Tensor:
    return F.linear(x, of.weight.float(), of.bias.float())
