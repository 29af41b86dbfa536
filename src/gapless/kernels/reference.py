"""Plain-torch kernels: the CPU path, and the truth that every other set of kernels is tested against.

In: activations, weights, and the paged KV cache of one layer. Out: activations of the same dtype; sums, softmax and
rotations run in float32. Nothing here knows a layer, a sequence or a step.

Exactness (float32): what a kernel computes for one row depends on that row alone, bit for bit. Three things secure it:

- a GEMM rounds differently with another number of rows, so callers give `linear` a fixed number (`by_rows`);
- attention runs over key blocks of one fixed size, combined in order, so a longer neighbour or a wider page table only
  appends blocks that add exact zeros;
- only elementwise functions that give one value whatever its place in the tensor are used. torch's fused GELU is not
  among them (its vector body and its scalar tail differ by an ulp), hence the composed one.

Bitwise repeatability also needs a constant torch thread count: BLAS splits its work by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from gapless.kernels import pixels
from gapless.kernels.base import KEY_BLOCK, ExpertAdapters
from gapless.kernels.fused import Decoder, FusedStep, FusedTower, Tower
from gapless.kernels.kept import as_stored, narrowed, plain, widened
from gapless.kernels.prompts import PromptKernels
from gapless.kernels.region import FusedRegion, Heads
from gapless.kernels.sparse import SparseDecoder, SparseStep
from gapless.kernels.stacks import Stack

ROWS = 16
"""Rows of every GEMM over tokens; shorter runs are padded with zero rows."""

LN_EPS = 1e-5

cut_crops = pixels.cut_crops

prompts: PromptKernels | None = None
"""Prompts go through the functions below, one sequence after the other."""


@dataclass(frozen=True, slots=True)
class Paging:
    """Where T tokens write and what they see; computed once per forward, shared by all layers.

    `cell`: (page, offset) of each token's own position, int64 [T]; `column` int64 [T]: that page's place in the table.
    `gather` int64 [T * H * n]: rows of a cache viewed as [pages * H, page_size * D]; n pages make a whole number of key
    blocks, and pages after the token's own are the cache's zero page. `hidden` bool [T, n * page_size]: keys after the
    token's own position. `room`: where `attend` gathers keys and values, so that the layers share two buffers.
    """

    cell: tuple[Tensor, Tensor]
    column: Tensor
    gather: Tensor
    hidden: Tensor
    room: tuple[Tensor, Tensor]


def fuse(decoder: Decoder) -> FusedStep | None:
    """None: layers are computed one function after the other."""
    return None


def fuse_region(heads: Heads) -> FusedRegion | None:
    """None: values are computed one function after the other."""
    return None


def fuse_tower(tower: Tower) -> FusedTower | None:
    """None, as `fuse`."""
    return None


def fuse_sparse(decoder: SparseDecoder) -> SparseStep | None:
    """None, as `fuse`."""
    return None


def compile_ahead(step: FusedStep | SparseStep, batches: Sequence[int], page_size: int) -> None:
    """See `Kernels.compile_ahead`."""


def pieces(tokens: int, tables: int) -> list[slice]:
    """Pieces of `ROWS` tokens, whether or not they share a page table."""
    return [slice(first, min(first + ROWS, tokens)) for first in range(0, tokens, ROWS)]


def by_rows(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a row-wise `f` to x [T, ...] in chunks of exactly `ROWS` rows, padding the last one with zeros."""
    chunks = [pad_rows(chunk) for chunk in torch.split(x, ROWS)]
    return torch.cat([f(chunk) for chunk in chunks])[: x.shape[0]]


def pad_rows(x: Tensor) -> Tensor:
    """Append zero rows to x [T <= ROWS, ...] so that it has `ROWS`; always a tensor of its own memory alignment."""
    padded = x.new_zeros((ROWS, *x.shape[1:]))
    padded[: x.shape[0]] = x
    return padded


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LayerNorm over the last dimension, eps 1e-5. x [..., D] -> [..., D]."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, LN_EPS)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [..., in] @ weight [out, in]^T + bias [out] -> [..., out]."""
    return F.linear(x, weight, bias)


def spread(slots: Tensor, tokens: int) -> Tensor:
    """[1] serves any number of tokens; [T] gets zeros for the rows that fill up."""
    return slots if slots.shape[0] == 1 else pad_rows(slots)


def lora(y: Tensor, x: Tensor, a: Tensor, b: Tensor, slots: Tensor) -> Tensor:
    """y + b[slot] (a[slot] x) for each token, y itself for tokens of slot 0.

    y [T, out], x [T, in], a [slots, rank, in], b [slots, out, rank], slots int64 [T] or [1] -> [T, out]. Every adapter
    that occurs takes all T rows, in GEMMs of one shape, and what is not its own is left out: company does not show.
    """
    for slot in sorted(set(slots.tolist()) - {0}):  # on the host: a kernel set for a GPU must not do that
        delta = F.linear(F.linear(x, a[slot]), b[slot])
        y = torch.where((slots == slot)[:, None], y + delta, y)
    return y


def gelu_tanh(x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), in float32, cast back. Any shape."""
    z = x.float()
    inner = z * z
    inner.mul_(0.044715).add_(1.0).mul_(z).mul_(math.sqrt(2.0 / math.pi))
    return inner.tanh_().add_(1.0).mul_(z).mul_(0.5).to(x.dtype)


def gelu_erf(x: Tensor) -> Tensor:
    """0.5 x (1 + erf(x / sqrt(2))), in float32, cast back. Any shape."""
    z = x.float()
    return (z * math.sqrt(0.5)).erf_().add_(1.0).mul_(z).mul_(0.5).to(x.dtype)


def route(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Logits [T, E] -> weights [T, count], their softmax over the `count` largest, and which those are, int64."""
    largest, chosen = logits.float().topk(count, dim=-1)
    return torch.softmax(largest, dim=-1).to(logits.dtype), chosen


def experts(
    x: Tensor, weights: Tensor, chosen: Tensor, up: Stack, down: Stack, adapters: ExpertAdapters | None = None
) -> Tensor:
    """Sum over each token's experts e of weight * down[e] (gelu_erf(a) * (g + 1)), (a, g) = up[e] x in halves.

    x [T, D], weights [T, k], chosen int64 [T, k], up [E, 2 I, D], down [E, D, I] -> [T, D]. An expert takes its
    tokens in chunks of `ROWS`, and each token's sum runs in the order of its own experts: company does not show. FP8 is
    widened expert by expert, to the numbers that widening all of it beforehand would give. `adapters`: see
    `kernels.base`.
    """
    count, taken = chosen.shape[1], chosen.flatten()
    each = x.new_empty(taken.shape[0], x.shape[1])
    for expert in sorted(set(taken.tolist())):  # on the host: a kernel set for a GPU must not do that
        matrices = up.wide(expert, x.dtype), down.wide(expert, x.dtype)
        for pairs in (taken == expert).nonzero()[:, 0].split(ROWS):
            tokens = pairs // count
            own = None if adapters is None else _of_one(adapters, expert, tokens)
            each[pairs] = gated(pad_rows(x[tokens]), *matrices, own)[: len(pairs)]
    return mix(each.view(*chosen.shape, -1), weights)


def _of_one(adapters: ExpertAdapters, expert: int, tokens: Tensor) -> ExpertAdapters:
    """The adapters of one expert, matrices [slots, ...], for a chunk of its tokens."""
    (up_a, up_b), (down_a, down_b), slots = adapters.up, adapters.down, adapters.slots
    return ExpertAdapters(
        up=(up_a[:, expert], up_b[:, expert]),
        down=(down_a[:, expert], down_b[:, expert]),
        slots=slots if slots.shape[0] == 1 else pad_rows(slots[tokens]),
    )


def gated(x: Tensor, up: Tensor, down: Tensor, adapters: ExpertAdapters | None = None) -> Tensor:
    """One expert: x [T, D], up [2 I, D], down [D, I], its own `adapters` -> [T, D]."""
    if adapters is None:
        return F.linear(gate(F.linear(x, up)), down)
    inner = gate(lora(F.linear(x, up), x, *adapters.up, adapters.slots))
    return lora(F.linear(inner, down), inner, *adapters.down, adapters.slots)


def gate(z: Tensor) -> Tensor:
    """[..., 2 I] -> [..., I]: gelu_erf of the first half times (the second half + 1)."""
    activated, by = z.chunk(2, dim=-1)
    return gelu_erf(activated) * (by + 1.0)


def mix(each: Tensor, weights: Tensor) -> Tensor:
    """What a token's experts say, [T, k, D], by their weights [T, k] -> [T, D]; one after the other, in float32."""
    weighted = each.float() * weights.float()[..., None]
    return reduce(torch.add, weighted.unbind(1)).to(each.dtype)


def tau_levels(alpha: Tensor, length: int) -> Tensor:
    """alpha [H] -> [length, H]: 0.5 + sigmoid(alpha ln(position + 1)), in float32, cast to alpha's dtype."""
    logs = torch.arange(1, length + 1, dtype=torch.float32, device=alpha.device).log()
    return (torch.outer(logs, alpha.float()).sigmoid() + 0.5).to(alpha.dtype)


def tau(qkv: Tensor, weight: Tensor, levels: Tensor, gelu: str) -> Tensor:
    """Scale queries and values by head: by tanh(weight gelu(qkv)) + levels; keys stay. `gelu`: "erf" or "tanh".

    qkv [T, 3 H D], weight [2 H, 3 H D] (for queries, then for values), levels [T, H] -> [T, 3 H D].
    """
    return tau_scaled(qkv, {"erf": gelu_erf, "tanh": gelu_tanh}[gelu](qkv), weight, levels)


def tau_scaled(qkv: Tensor, activated: Tensor, weight: Tensor, levels: Tensor) -> Tensor:
    """`tau` once its GELU is known; a key's scale is 1."""
    of_q, of_v = F.linear(activated, weight).tanh().chunk(2, dim=-1)
    scales = torch.cat((of_q + levels, torch.ones_like(levels), of_v + levels), dim=-1)
    return (qkv.view(*scales.shape, -1) * scales[..., None]).view(qkv.shape)


def rope_tables(length: int, dims: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines float32 [length, dims / 2] for `dims` rotated dimensions: angle = pos * theta^(-2i/dims)."""
    frequency = 1.0 / (theta ** (torch.arange(0, dims, 2, dtype=torch.float32) / dims))
    angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency)
    return angle.cos().to(device), angle.sin().to(device)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first 2r of D dimensions of x [T, H, D] by cos, sin float32 [T, r]; pairs are (i, i + r)."""
    r = cos.shape[-1]
    z = x.float()
    a, b, rest = z[..., :r], z[..., r : 2 * r], z[..., 2 * r :]
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, a * sin + b * cos, rest), dim=-1).to(x.dtype)


def paging(positions: Tensor, tables: Tensor, keys: Tensor) -> Paging:
    """Work out cells and visible keys for tokens at `positions` int64 [T] with page tables int64 [T, n] or [1, n].

    `keys` is any layer's cache [pages + 1, H, page_size, D]; its last page is zero and belongs to nobody. Reads the
    longest position on the host: free on a CPU; a kernel set for a GPU must not do that.
    """
    pages, heads, page_size, d = keys.shape
    tables = tables.expand(positions.shape[0], -1)
    count = _whole_blocks(int(positions.max()) + 1, page_size)
    column = positions // page_size
    columns = torch.arange(count // page_size, device=tables.device)
    seen = tables[:, columns.clamp(max=tables.shape[1] - 1)].masked_fill(columns > column[:, None], pages - 1)
    gather = seen[:, None, :] * heads + torch.arange(heads, device=tables.device)[None, :, None]
    return Paging(
        cell=(tables.gather(1, column[:, None])[:, 0], positions % page_size),
        column=column,
        gather=gather.flatten(),
        hidden=torch.arange(count, device=positions.device) > positions[:, None],
        room=(keys.new_empty(gather.numel(), page_size * d), keys.new_empty(gather.numel(), page_size * d)),
    )


def _whole_blocks(keys: int, page_size: int) -> int:
    """Round a number of keys up to whole key blocks and whole pages."""
    unit = math.lcm(KEY_BLOCK, page_size)
    return -(-keys // unit) * unit


def cells(at: Paging) -> tuple[Tensor, Tensor]:
    """(page, offset) int64 [T] each: where the tokens of `paging` write."""
    return at.cell


def write_kv(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, cell: tuple[Tensor, Tensor], scales: Tensor | None = None
) -> None:
    """Store k, v [T, H, D] into a layer's keys, values [pages + 1, H, page_size, D] at (page, offset), int64 [T].

    `scales` float32 [2, H] of a cache in FP8, see `kernels.kept`.
    """
    page, offset = cell
    if scales is not None:
        k, v = narrowed(k, scales[0]), narrowed(v, scales[1])
    as_stored(keys)[page, :, offset] = as_stored(k)
    as_stored(values)[page, :, offset] = as_stored(v)


def read_kv(
    keys: Tensor, values: Tensor, cell: tuple[Tensor, Tensor], scales: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Load k, v [S, H, D] from a layer's keys, values [pages + 1, H, page_size, D] at (page, offset), int64 [S].

    Nothing else is read: the rest of a page may hold NaN. With `scales` they are float32.
    """
    page, offset = cell
    k, v = (as_stored(cache)[page, :, offset].view(cache.dtype) for cache in (keys, values))
    return (k, v) if scales is None else (widened(k, scales[0]), widened(v, scales[1]))


def attend(q: Tensor, keys: Tensor, values: Tensor, at: Paging, scales: Tensor | None = None) -> Tensor:
    """Paged attention: q [T, H, D] over a layer's keys, values [pages + 1, H, page_size, D] -> [T, H, D].

    Each token sees positions 0..its own of its table. Everything else is selected away, never multiplied by zero:
    freed pages may hold NaN. Scale 1/sqrt(D), softmax in float32. `scales`: as in `write_kv`.
    """
    t, h, d = q.shape
    blocks = at.hidden.shape[1] // KEY_BLOCK
    k = _gather(keys, at.gather, at.room[0]).view(-1, KEY_BLOCK, d)
    scaled = q.float() * (1.0 / math.sqrt(d))
    if scales is not None:
        scaled = scaled * scales[0, :, None]
    scaled = scaled[:, :, None].expand(t, h, blocks, d)
    scores = torch.bmm(scaled.reshape(-1, 1, d), k.transpose(1, 2)).view(t, h, -1)
    scores.masked_fill_(at.hidden[:, None], -math.inf)
    weights = scores.sub_(scores.amax(dim=-1, keepdim=True)).exp_()
    v = _gather(values, at.gather, at.room[1]).view(t, h, -1, keys.shape[2], d)
    _clear_tails(v, at)
    partial = torch.bmm(weights.view(-1, 1, KEY_BLOCK), v.view(-1, KEY_BLOCK, d)).view(t, h, blocks, d)
    total = weights.view(t, h, blocks, KEY_BLOCK).sum(dim=-1)
    out = reduce(torch.add, partial.unbind(2)) / reduce(torch.add, total.unbind(2))[..., None]
    return (out if scales is None else out * scales[1, :, None]).to(q.dtype)


def _gather(cache: Tensor, rows: Tensor, room: Tensor) -> Tensor:
    """Copy the keys or values that T tokens reach, float32 [T * H * n, page_size * D]."""
    torch.index_select(as_stored(cache).view(-1, room.shape[1]), 0, rows, out=as_stored(room))
    return plain(room)


def _clear_tails(v: Tensor, at: Paging) -> None:
    """Zero what follows each token's own position in the page it stands in. v [T, H, n, page_size, D], in place."""
    rows = torch.arange(v.shape[0], device=v.device)
    after = torch.arange(v.shape[3], device=v.device) > at.cell[1][:, None]
    v[rows, :, at.column] = v[rows, :, at.column].masked_fill(after[:, None, :, None], 0.0)


def attend_block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in which all see all: q [N, T, H, D], k, v [N, S, H, D] -> [N, T, H, D].

    The N blocks do not see each other; S > T where one also sees what is before it. Scale 1/sqrt(D).
    """
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def adaptive_average(x: Tensor, side: int) -> Tensor:
    """Average x [R, C, D] to [side, side, D]: cell r takes rows floor(r R / side) .. ceil((r + 1) R / side), exclusive.

    Sums in float32; the result is rounded to x's dtype once.
    """
    pooled = F.adaptive_avg_pool2d(x.float().permute(2, 0, 1), (side, side))
    return pooled.permute(1, 2, 0).to(x.dtype)


def fourier_features(values: Tensor, frequencies: Tensor) -> Tensor:
    """Cosines, then sines, of (2 pi values) @ frequencies. values [T, d], frequencies [d, n] -> [T, 2n].

    Every step is rounded to the frequencies' dtype: they are large, and a wider phase is a different embedding.
    """
    phase = (values.to(frequencies.dtype) * (2.0 * math.pi)) @ frequencies
    return torch.cat((phase.cos(), phase.sin()), dim=-1)


def coord_of_bin(bins: Tensor, count: int) -> Tensor:
    """Coordinate bins int64 [...] of `count` -> float32 values bin / count."""
    return bins.float() / count


def size_of_bin(bins: Tensor, count: int) -> Tensor:
    """Size bins int64 [...] of `count` -> float32 values 2^(10 bin / (count - 1) - 10), so 1/1024 .. 1.

    The exponent is rounded to float32, as in the reference, whose boxes are compared to the last bit; the power is
    not, so it does not depend on which vector instructions compute it.
    """
    exponent = bins.float() / (count - 1) * 10.0 - 10.0
    return torch.exp2(exponent.double()).float()
