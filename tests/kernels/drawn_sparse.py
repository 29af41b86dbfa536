"""A decoder with scaled attention and experts, of random numbers, with a paged cache, and one step of it in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from tests.kernels.drawn_kept import draw_scales, rounded, told
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from gapless.kernels import reference
from gapless.kernels.fused import Affine
from gapless.kernels.graphed import Graphed
from gapless.kernels.sparse import Dense, Mixture, ScaledBlock, Scaling, SparseDecoder
from gapless.kernels.stacks import FP8, Stack


@dataclass
class Sparse:
    """A decoder, its caches, and rows with a token each to feed."""

    decoder: SparseDecoder
    keys: Tensor
    values: Tensor
    x: Tensor
    positions: Tensor
    tables: Tensor
    scales: Tensor | None = None
    """As `drawn_decoder.Scene.scales`."""


@dataclass(frozen=True)
class Sizes:
    """Of a decoder; the first `dense` layers have no experts."""

    dim: int = 128
    ff: int = 256
    heads: int = 4
    vocab: int = 512
    experts: int = 8
    share: int = 2
    inner: int = 64
    dense: int = 1
    layers: int = 2
    gelu: str = "erf"


MOONDREAM_3 = Sizes(dim=2048, ff=8192, heads=32, vocab=51200, experts=64, share=8, inner=1024)
ODD = Sizes(dim=192, ff=320, heads=6, vocab=448, experts=7, share=3, inner=48, gelu="tanh")
"""Nothing is a power of two that need not be."""


class Drawing:
    """Norms that scale and shift, biases that matter."""

    def __init__(self, seed: int, dtype: torch.dtype, device: str) -> None:
        self.generator = torch.Generator(device).manual_seed(seed)
        self.dtype, self.device = dtype, device

    def normal(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        drawn = torch.randn(shape, generator=self.generator, device=self.device)
        return (drawn * scale + shift).to(self.dtype)

    def linear(self, out: int, into: int, scale: float = 1.0) -> Affine:
        return Affine(self.normal(out, into, scale=scale * into**-0.5), self.normal(out, scale=0.1))

    def norm(self, dim: int) -> Affine:
        return Affine(self.normal(dim, scale=0.2, shift=1.0), self.normal(dim, scale=0.1))

    def stack(self, count: int, out: int, into: int, narrow: bool) -> Stack:
        values = self.normal(count, out, into, scale=into**-0.5)
        if not narrow:
            return Stack(values)
        scales = values.abs().amax(-1).float() / 448
        return Stack((values.float() / scales[..., None]).to(FP8), scales)

    def block(self, of: Sizes, narrow: bool, mixed: bool, longest: int) -> ScaledBlock:
        levels = reference.tau_levels(self.normal(of.heads), longest)
        scaling = Scaling(self.normal(2 * of.heads, 3 * of.dim, scale=(3 * of.dim) ** -0.5), levels, of.gelu)
        linears = self.norm(of.dim), self.linear(3 * of.dim, of.dim), self.linear(of.dim, of.dim), scaling
        if not mixed:
            return ScaledBlock(*linears, Dense(self.linear(of.ff, of.dim), self.linear(of.dim, of.ff)))
        stacks = (
            self.stack(of.experts, 2 * of.inner, of.dim, narrow),
            self.stack(of.experts, of.dim, of.inner, narrow),
        )
        return ScaledBlock(*linears, Mixture(self.linear(of.experts, of.dim, 2.0), *stacks, of.share))


def draw(
    rows: int,
    seed: int,
    of: Sizes = Sizes(),
    *,
    narrow: bool = False,
    page: int = 16,
    longest: int = 96,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    fp8: bool = False,
) -> Sparse:
    """Pages in random order, NaN wherever nothing was written. `narrow`: experts are FP8."""
    drawn = Drawing(seed, dtype, device)
    wide = of.dim // of.heads
    cos, sin = Graphed().rope_tables(longest, wide // 2, 10_000.0, torch.device(device))
    blocks = [drawn.block(of, narrow, layer >= of.dense, longest) for layer in range(of.layers)]
    decoder = SparseDecoder(blocks, drawn.norm(of.dim), drawn.linear(of.vocab, of.dim), of.heads, cos, sin)
    columns = -(-longest // page)
    pages = rows * columns + 1
    tables = torch.randperm(pages - 1, generator=drawn.generator, device=device)[: rows * columns] + 1
    tables = tables.view(rows, columns)
    positions = torch.randint(0, longest, (rows,), generator=drawn.generator, device=device)
    positions[0] = longest - 1
    positions[1:2] = 0
    positions[2:3] = (longest - 1) // page * page  # the first of a page
    caches = torch.full((2 * of.layers, pages + 1, of.heads, page, wide), torch.nan, dtype=dtype, device=device)
    t = torch.arange(longest, device=device).expand(rows, -1)
    row, t = torch.nonzero(t < positions[:, None], as_tuple=True)[0], t[t < positions[:, None]]
    for cache in caches:
        cache[tables[row, t // page], :, t % page] = drawn.normal(len(t), of.heads, wide)
    scales = draw_scales(of.layers, of.heads, drawn.generator) if fp8 else None
    keys, values = (rounded(c, scales if scales is None else scales[:, i]) for i, c in enumerate(caches.chunk(2)))
    return Sparse(decoder, keys, values, drawn.normal(rows, of.dim), positions, tables, scales)


def step(scene: Sparse, forced: list[Tensor] | None = None) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Hidden [B, D] and logits [B, vocab] in float64, and who took which expert, bool [B, E] a layer; the caches of the
    scene get the new keys and values. `forced`: who takes which, instead of those whose logits are largest."""
    decoder, x, taken = scene.decoder, scene.x.double(), []
    cos, sin = decoder.cos[scene.positions].double(), decoder.sin[scene.positions].double()
    for number, (block, keys, values) in enumerate(zip(decoder.blocks, scene.keys, scene.values, strict=True)):
        n = _norm(x, block.ln)
        q, k, v = _scaled(_linear(n, block.qkv), block.scaling, scene.positions, decoder.heads)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        by = (None, None) if scene.scales is None else scene.scales[number].unbind()
        seen = torch.stack(
            [_attend(scene, i, q[i], told(k[i], by[0]), told(v[i], by[1]), keys, values) for i in range(len(x))]
        )
        mlp = block.mlp
        if isinstance(mlp, Dense):
            said = _linear(gelu(_linear(n, mlp.fc1), approximate="tanh"), mlp.fc2)
            taken.append(torch.zeros(len(x), 0, dtype=torch.bool))
        else:
            said, who = _mixed(n, mlp, None if forced is None else forced[number])
            taken.append(who)
        x = x + _linear(seen, block.proj) + said
    return x, _linear(_norm(x, decoder.ln), decoder.head), taken


def _mixed(n: Tensor, mlp: Mixture, forced: Tensor | None) -> tuple[Tensor, Tensor]:
    logits = _linear(n, mlp.router)
    who = torch.zeros_like(logits, dtype=torch.bool)
    who.scatter_(1, logits.topk(mlp.count, dim=1).indices, True)
    who = who if forced is None else forced
    weights = torch.softmax(logits.masked_fill(~who, -math.inf), dim=1)
    out = torch.zeros_like(n)
    for expert in range(mlp.up.count):
        rows = who[:, expert].nonzero()[:, 0]
        up, down = (_wide(stack, expert) for stack in (mlp.up, mlp.down))
        a, g = (n[rows] @ up.T).chunk(2, dim=1)
        out[rows] += weights[rows, expert, None] * ((gelu(a) * (g + 1)) @ down.T)
    return out, who


def _wide(stack: Stack, expert: int) -> Tensor:
    own = stack.values[expert].float().double()
    return own if stack.scales is None else own * stack.scales[expert, :, None].double()


def _scaled(qkv: Tensor, of: Scaling, positions: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    active = gelu(qkv, approximate="none" if of.gelu == "erf" else "tanh")
    by = torch.tanh(active @ of.weight.double().T).view(len(qkv), 2, heads) + of.levels[positions].double()[:, None]
    q, k, v = qkv.view(len(qkv), 3, heads, -1).unbind(1)
    return q * by[:, 0, :, None], k, v * by[:, 1, :, None]


def _linear(x: Tensor, of: Affine) -> Tensor:
    return x @ of.weight.double().T + of.bias.double()


def _norm(x: Tensor, of: Affine) -> Tensor:
    return layer_norm(x, x.shape[-1:], of.weight.double(), of.bias.double(), reference.LN_EPS)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = cos.shape[1]
    turning, rest = x[..., :width], x[..., width:]
    swapped = torch.cat((turning[..., width // 2 :], turning[..., : width // 2]), dim=-1)
    return torch.cat((turning * cos[:, None] + swapped * sin[:, None], rest), dim=-1)


def _attend(scene: Sparse, row: int, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    page, own = keys.shape[2], int(scene.positions[row])
    at = torch.arange(own + 1, device=q.device)
    pages, offsets = scene.tables[row, at // page], at % page
    keys[pages[-1], :, offsets[-1]] = k.to(keys.dtype)
    values[pages[-1], :, offsets[-1]] = v.to(values.dtype)
    seen_k, seen_v = keys[pages, :, offsets].double(), values[pages, :, offsets].double()
    scores = torch.einsum("hd,thd->ht", q, seen_k) * q.shape[-1] ** -0.5
    return torch.einsum("ht,thd->hd", torch.softmax(scores, dim=-1), seen_v).flatten()
