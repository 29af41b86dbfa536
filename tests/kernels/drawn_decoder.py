"""A dense decoder of random numbers with a paged cache, and one decode step of it in plain torch, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tests.kernels.drawn_kept import draw_scales, rounded, told
from torch import Tensor

from gapless.kernels import reference
from gapless.kernels.fused import Affine, Bank, Block, Branch, Branches, Decoder, StepAdapters
from gapless.kernels.graphed import Graphed


@dataclass
class Scene:
    """A decoder, its caches, and rows with a token each to feed."""

    decoder: Decoder
    keys: Tensor
    values: Tensor
    x: Tensor
    positions: Tensor
    tables: Tensor
    scales: Tensor | None = None
    """Of caches that are kept in FP8: what keys and values are, stands in them all the same."""


def draw(
    rows: int,
    seed: int,
    *,
    dim: int = 128,
    inner: int = 256,
    heads: int = 4,
    vocab: int = 512,
    layers: int = 2,
    page: int = 16,
    longest: int = 96,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    fp8: bool = False,
) -> Scene:
    """Norms that scale and shift, biases that matter, pages in random order, NaN wherever nothing was written."""
    g = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        return (torch.randn(shape, generator=g, device=device) * scale + shift).to(dtype)

    def linear(out: int, into: int) -> Affine:
        return Affine(normal(out, into, scale=into**-0.5), normal(out, scale=0.1))

    def norm() -> Affine:
        return Affine(normal(dim, scale=0.2, shift=1.0), normal(dim, scale=0.1))

    def block() -> Block:
        return Block(norm(), linear(3 * dim, dim), linear(dim, dim), linear(inner, dim), linear(dim, inner))

    wide = dim // heads
    cos, sin = Graphed().rope_tables(longest, wide // 2, 10_000.0, torch.device(device))
    decoder = Decoder([block() for _ in range(layers)], norm(), linear(vocab, dim), heads, cos, sin)
    columns = -(-longest // page)
    pages = rows * columns + 1
    tables = torch.randperm(pages - 1, generator=g, device=device)[: rows * columns].view(rows, columns) + 1
    positions = torch.randint(0, longest, (rows,), generator=g, device=device)
    positions[0] = longest - 1
    if rows > 1:
        positions[1] = 0
    if rows > 2:
        positions[2] = (longest - 1) // page * page  # the first of a page
    shape = (2 * layers, pages + 1, heads, page, wide)
    caches = torch.full(shape, torch.nan, dtype=dtype, device=device)
    t = torch.arange(longest, device=device).expand(rows, -1)
    row, t = torch.nonzero(t < positions[:, None], as_tuple=True)[0], t[t < positions[:, None]]
    for cache in caches:
        cache[tables[row, t // page], :, t % page] = normal(len(t), heads, wide)
    scales = draw_scales(layers, heads, g) if fp8 else None
    keys, values = (rounded(c, scales if scales is None else scales[:, i]) for i, c in enumerate(caches.chunk(2)))
    return Scene(decoder, keys, values, normal(rows, dim), positions, tables, scales)


def draw_adapters(scene: Scene, seed: int, ranks: list[int], slots: list[int], rank: int = 64) -> StepAdapters:
    """Adapters of those ranks in slots 1, 2, ... with room for `rank`, and which slot each row has. What a slot does
    not use is zero, and what lies between the matrices NaN."""
    like = scene.x
    g = torch.Generator(like.device).manual_seed(seed)
    block = scene.decoder.blocks[0]
    parts: list[tuple[int, int, int, int]] = []  # where A and B begin, in, out
    at = 64
    for linear in (block.qkv, block.proj, block.fc1, block.fc2) * len(scene.decoder.blocks):
        out, into = linear.weight.shape
        parts.append((at, at + rank * into + 64, into, out))
        at = -(-(at + rank * (into + out) + 128) // 64) * 64
    flat = torch.full((len(ranks) + 1, at), torch.nan, dtype=like.dtype, device=like.device)
    for slot, own in enumerate([0, *ranks]):
        flat[slot, 0] = own
        for a, b, into, out in parts:
            for begin, shape, scale in ((a, (rank, into), into**-0.5), (b, (out, rank), max(own, 1) ** -0.5)):
                drawn = torch.randn(shape, generator=g, device=like.device) * scale
                used = torch.arange(rank, device=like.device) < own
                drawn *= used[:, None] if begin == a else used
                flat[slot, begin : begin + drawn.numel()] = drawn.to(like.dtype).flatten()
    each = [Branch(a, b) for a, b, *_ in parts]
    blocks = [Branches(*each[i : i + 4]) for i in range(0, len(each), 4)]
    return StepAdapters(Bank(flat, rank, 0, blocks), torch.tensor(slots, device=like.device))


def _added(y: Tensor, x: Tensor, adapters: StepAdapters | None, layer: int, name: str) -> Tensor:
    """What adapters add to a linear that said y [B, out]; x [B, in] is what they read."""
    if adapters is None:
        return y
    at, rank = getattr(adapters.bank.blocks[layer], name), adapters.bank.rank
    said = []
    for row, slot in enumerate(adapters.slots.tolist()):
        flat = adapters.bank.flat[slot].double()
        a = flat[at.a : at.a + rank * x.shape[1]].view(rank, -1)
        b = flat[at.b : at.b + rank * y.shape[1]].view(-1, rank)
        said.append(y[row] + b @ (a @ x[row]) if slot else y[row])
    return torch.stack(said)


def step(scene: Scene, adapters: StepAdapters | None = None) -> tuple[Tensor, Tensor]:
    """Hidden [B, D] and logits [B, vocab] in float64; the caches of the scene get the new keys and values. The adapter
    of proj reads the block's normed input, as it was trained to."""
    decoder = scene.decoder
    x = scene.x.double()
    cos, sin = decoder.cos[scene.positions].double(), decoder.sin[scene.positions].double()
    for i, (block, keys, values) in enumerate(zip(decoder.blocks, scene.keys, scene.values, strict=True)):
        n = _norm(x, block.ln)
        qkv = _added(_linear(n, block.qkv), n, adapters, i, "qkv")
        q, k, v = qkv.view(len(x), 3, decoder.heads, -1).unbind(1)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        by = (None, None) if scene.scales is None else scene.scales[i].unbind()
        seen = torch.stack(
            [_attend(scene, r, q[r], told(k[r], by[0]), told(v[r], by[1]), keys, values) for r in range(len(x))]
        )
        thought = _added(_linear(n, block.fc1), n, adapters, i, "fc1")
        inner = torch.nn.functional.gelu(thought, approximate="tanh")
        attended = _added(_linear(seen, block.proj), n, adapters, i, "proj")
        x = x + attended + _added(_linear(inner, block.fc2), inner, adapters, i, "fc2")
    return x, _linear(_norm(x, decoder.ln), decoder.head)


def _linear(x: Tensor, of: Affine) -> Tensor:
    return x @ of.weight.double().T + of.bias.double()


def _norm(x: Tensor, of: Affine) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], of.weight.double(), of.bias.double(), reference.LN_EPS)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = cos.shape[1]
    turning, rest = x[..., :width], x[..., width:]
    swapped = torch.cat((turning[..., width // 2 :], turning[..., : width // 2]), dim=-1)
    return torch.cat((turning * cos[:, None] + swapped * sin[:, None], rest), dim=-1)


def _attend(scene: Scene, row: int, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    page, own = keys.shape[2], int(scene.positions[row])
    at = torch.arange(own + 1, device=q.device)
    pages, offsets = scene.tables[row, at // page], at % page
    keys[pages[-1], :, offsets[-1]] = k.to(keys.dtype)
    values[pages[-1], :, offsets[-1]] = v.to(values.dtype)
    seen_k, seen_v = keys[pages, :, offsets].double(), values[pages, :, offsets].double()
    scores = torch.einsum("hd,thd->ht", q, seen_k) * q.shape[-1] ** -0.5
    return torch.einsum("ht,thd->hd", torch.softmax(scores, dim=-1), seen_v).flatten()
