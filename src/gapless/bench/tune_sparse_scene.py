"""What `gapless tune` computes steps with experts of: a decoder of random numbers, and rows whose choice of experts no
rounding can change.

In: dimensions, a number format, a device. Out: a `SparseDecoder`, and a `Scene` as `tune_scene` has it. Near-ties of
the router would make right tiles look wrong, so that of several inputs each row takes the one that is farthest from
any.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from gapless.bench.tune_scene import THETA, Scene, attention, drawn_affine, drawn_norm, linear, normed, numbers
from gapless.kernels import reference
from gapless.kernels.fused import Affine
from gapless.kernels.graphed import Graphed
from gapless.kernels.sparse import Dense, Mixture, ScaledBlock, Scaling, SparseDecoder
from gapless.kernels.stacks import FP8, Stack
from gapless.kernels.triton.sparse_choices import SparseDims

DRAWS = 4
"""Inputs of a row to choose from."""


def sparse_decoder_of(
    dims: SparseDims, dense: int, mixed: int, length: int, dtype: torch.dtype, device: torch.device
) -> SparseDecoder:
    """So many layers without experts, then so many with them; positions up to `length`."""
    normal = numbers(dtype, device)
    less, heads = (2 * (dense + mixed)) ** -0.5, dims.heads

    def matrix(out: int, into: int, scale: float = 1.0) -> Affine:
        return drawn_affine(normal, out, into, scale)

    def stack(out: int, into: int, scale: float = 1.0) -> Stack:
        values = normal(dims.experts, out, into, scale=scale * into**-0.5)
        if dims.expert_itemsize > 1:
            return Stack(values)
        scales = values.abs().amax(-1).float() / torch.finfo(FP8).max
        return Stack((values / scales[..., None].to(dtype)).to(FP8), scales)

    def mlp(routed: bool) -> Dense | Mixture:
        if not routed:
            return Dense(matrix(dims.ff, dims.dim), matrix(dims.dim, dims.ff, less))
        up, down = stack(2 * dims.expert_inner, dims.dim), stack(dims.dim, dims.expert_inner, less)
        return Mixture(matrix(dims.experts, dims.dim), up, down, dims.share)

    def block(routed: bool) -> ScaledBlock:
        scale = (3 * dims.dim) ** -0.5
        levels = reference.tau_levels(normal(heads), length)
        scaling = Scaling(normal(2 * heads, 3 * dims.dim, scale=scale), levels, "erf")
        qkv, proj = matrix(3 * dims.dim, dims.dim), matrix(dims.dim, dims.dim, less)
        return ScaledBlock(drawn_norm(normal, dims.dim), qkv, proj, scaling, mlp(routed))

    cos, sin = Graphed().rope_tables(length, dims.rotary, THETA, device)
    blocks = [block(layer >= dense) for layer in range(dense + mixed)]
    return SparseDecoder(blocks, drawn_norm(normal, dims.dim), matrix(dims.vocab, dims.dim), heads, cos, sin)


@torch.inference_mode()
def sparse_scene(decoder: SparseDecoder, rows: int, context: int) -> Scene:
    """See `Scene.of`, and the module."""
    scene = Scene.drawn(decoder.ln.weight, len(decoder.blocks), decoder.heads, rows, context)
    g = torch.Generator(scene.x.device).manual_seed(rows + 1)
    hidden, logits, sure = step(decoder, scene)
    best = replace(scene, right=(hidden, logits))
    for _ in range(DRAWS - 1):
        drawn = replace(scene, x=torch.empty_like(scene.x).normal_(generator=g))
        hidden, logits, margin = step(decoder, drawn)
        better = (margin > sure)[:, None]
        x = torch.where(better, drawn.x, best.x)
        right = torch.where(better, hidden, best.right[0]), torch.where(better, logits, best.right[1])
        best, sure = replace(best, x=x, right=right), torch.maximum(margin, sure)
    return best


def step(decoder: SparseDecoder, scene: Scene) -> tuple[Tensor, Tensor, Tensor]:
    """A step in float32, written out: hidden [B, D], logits [B, vocab], and by how much the last expert that a row
    takes is liked better than the first that it does not, at least [B]. The caches stay as they are."""
    x, kernels, positions = scene.x.float(), Graphed(), scene.positions
    cos, sin = decoder.cos[positions], decoder.sin[positions]
    margin = torch.full((len(x),), torch.inf, device=x.device)
    for i, block in enumerate(decoder.blocks):
        n, of, mlp = normed(x, block.ln), block.scaling, block.mlp
        qkv = reference.tau(linear(n, block.qkv), of.weight.float(), of.levels[positions].float(), of.gelu)
        parts = qkv.view(len(x), 3, decoder.heads, -1)
        q, k = (kernels.rope(parts[:, part], cos, sin) for part in range(2))
        seen = attention(q, k, parts[:, 2], scene, i)
        if isinstance(mlp, Dense):
            said = linear(F.gelu(linear(n, mlp.fc1), approximate="tanh"), mlp.fc2)
        else:
            logits = linear(n, mlp.router)
            said, margin = _mixed(n, logits, mlp), torch.minimum(margin, _margin(logits, mlp.count))
        x = x + linear(seen, block.proj) + said
    return x, linear(normed(x, decoder.ln), decoder.head), margin


def _mixed(n: Tensor, logits: Tensor, mlp: Mixture) -> Tensor:
    weights, chosen = reference.route(logits, mlp.count)
    said = torch.zeros_like(n)
    for expert in sorted(set(chosen.flatten().tolist())):
        row, place = (chosen == expert).nonzero(as_tuple=True)
        up, down = (stack.wide(expert, torch.float32).float() for stack in (mlp.up, mlp.down))
        said[row] += weights[row, place, None] * reference.gated(n[row], up, down)
    return said


def _margin(logits: Tensor, count: int) -> Tensor:
    """Of each row; without an expert that is left there is no doubt."""
    if count >= logits.shape[1]:
        return torch.full_like(logits[:, 0], torch.inf)
    best = logits.topk(count + 1, dim=1).values
    return best[:, count - 1] - best[:, count]
