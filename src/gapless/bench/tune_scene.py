"""What `gapless tune` computes steps of: a decoder of random numbers with rows in the middle of their answers, and what
is right for them in float32.

In: dimensions, a number format, a device. Out: tensors as a fused step takes them. Norms scale and shift and biases
matter, so that a kernel that leaves one out is wrong; contexts differ in length, so that one that reads too far is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

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


class Normal(Protocol):
    """Draws normal numbers of some shape."""

    def __call__(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        """So many, of that deviation around `shift`."""
        ...


def numbers(dtype: torch.dtype, device: torch.device) -> Normal:
    """The same ones each time; on a device without memory, none."""
    g = torch.Generator(device).manual_seed(0) if device.type != "meta" else None

    def normal(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_(shift, scale, generator=g)

    return normal


def drawn_affine(normal: Normal, out: int, into: int, scale: float = 1.0) -> Affine:
    """One that keeps numbers at their size times `scale`, with a bias that matters."""
    return Affine(normal(out, into, scale=scale * into**-0.5), normal(out, scale=0.1))


def drawn_norm(normal: Normal, dim: int) -> Affine:
    """One that scales and shifts."""
    return Affine(normal(dim, scale=0.2, shift=1.0), normal(dim, scale=0.1))


def decoder_of(dims: Dims, layers: int, length: int, dtype: torch.dtype, device: torch.device) -> Decoder:
    """A decoder that keeps activations at their size; positions up to `length`."""
    normal = numbers(dtype, device)

    def matrix(out: int, into: int, scale: float = 1.0) -> Affine:
        return drawn_affine(normal, out, into, scale)

    def block() -> Block:
        less, norm = (2 * layers) ** -0.5, drawn_norm(normal, dims.dim)
        qkv, proj = matrix(3 * dims.dim, dims.dim), matrix(dims.dim, dims.dim, less)
        return Block(norm, qkv, proj, matrix(dims.inner, dims.dim), matrix(dims.dim, dims.inner, less))

    cos, sin = Graphed().rope_tables(length, dims.rotary, THETA, device)
    blocks = [block() for _ in range(layers)]
    return Decoder(blocks, drawn_norm(normal, dims.dim), matrix(dims.vocab, dims.dim), dims.heads, cos, sin)


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
        scene = cls.drawn(decoder.ln.weight, len(decoder.blocks), decoder.heads, rows, context)
        return replace(scene, right=_step(decoder, scene))

    @classmethod
    def drawn(cls, like: Tensor, layers: int, heads: int, rows: int, context: int) -> Scene:
        """The same for a norm like the decoder's, and of what is right only the place."""
        device, dim, wide = like.device, len(like), len(like) // heads
        g = torch.Generator(device).manual_seed(rows)
        low, high = context - context // 8, context + context // 8
        columns = -(-(high + 1) // PAGE)
        positions = torch.randint(low, high + 1, (rows,), generator=g, device=device)
        pages = torch.randperm(rows * columns, generator=g, device=device) + 1
        shape = (layers, rows * columns + 2, heads, PAGE, wide)
        keys, values = (torch.empty(shape, dtype=like.dtype, device=device).normal_(generator=g) for _ in range(2))
        x = torch.empty(rows, dim, dtype=like.dtype, device=device).normal_(generator=g)
        tables = pages.view(rows, columns)
        nothing = torch.empty(0, device=device)
        return cls(x, positions, tables, keys, values, (nothing, nothing))


def _step(decoder: Decoder, scene: Scene) -> tuple[Tensor, Tensor]:
    """A step in float32, written out; the caches stay as they are."""
    x, kernels, positions = scene.x.float(), Graphed(), scene.positions
    cos, sin = decoder.cos[positions], decoder.sin[positions]
    for i, block in enumerate(decoder.blocks):
        n = normed(x, block.ln)
        parts = linear(n, block.qkv).view(len(x), 3, decoder.heads, -1)
        q, k = (kernels.rope(parts[:, part], cos, sin) for part in range(2))
        seen = attention(q, k, parts[:, 2], scene, i)
        inner = F.gelu(linear(n, block.fc1), approximate="tanh")
        x = x + linear(seen, block.proj) + linear(inner, block.fc2)
    return x, linear(normed(x, decoder.ln), decoder.head)


def attention(q: Tensor, k: Tensor, v: Tensor, scene: Scene, layer: int) -> Tensor:
    """Rows' attention over their pages of one layer and their own token, q, k, v [B, H, D] -> [B, H D]."""
    keys, values = scene.keys[layer], scene.values[layer]
    new = k.to(keys.dtype).float(), v.to(keys.dtype).float()
    pieces = [slice(first, first + AT_ONCE) for first in range(0, len(q), AT_ONCE)]
    positions, tables = scene.positions, scene.tables
    seen = [_attended(q[p], (new[0][p], new[1][p]), positions[p], tables[p], keys, values) for p in pieces]
    return torch.cat(seen)


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


def normed(x: Tensor, of: Affine) -> Tensor:
    """LayerNorm in float32."""
    return F.layer_norm(x, x.shape[-1:], of.weight.float(), of.bias.float(), LN_EPS)


def linear(x: Tensor, of: Affine) -> Tensor:
    """x [.., into] -> [.., out] in float32."""
    return F.linear(x, of.weight.float(), of.bias.float())
