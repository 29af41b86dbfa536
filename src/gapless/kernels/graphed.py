"""Plain-torch kernels for a GPU: a CUDA graph can hold them, and nothing in them asks the device for a number.

In and out as in `kernels.base`. Invariants: every shape, and so every launch, follows from the shapes of the inputs; no
tensor is read on the host and none is made from host data; what a token sees is selected with masks, so pages may hold
NaN. Page tables may be narrower than the longest context, as long as every token's own page is in them: what is
gathered is as wide as the table, so a graph fixes its cost by the table it is given.

With `grouped` the experts of bfloat16 tokens are read as they are chosen, see `kernels.grouped`.

GEMMs run with as many rows as come (a step's bucket, a prompt's tokens). With `rows` they run with that many, always,
and so does attention: in float32 a token's result is then the same bits in whatever company, decoded or prefilled
again, as far as the GEMM library keeps its promise for one shape, and as long as page tables have one width. That is
for tests of equality. They also need TF32 off (the device room sees to it).

Memory: the keys, then the values, of one layer are gathered into one room that all layers share, 4 KiB a position and
row for 32 heads of 64 in bfloat16: 512 MiB for 64 rows of 2048 positions (in FP8 half of that, and as much again where
it is widened). Scores are small beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gapless.kernels import adapted, grouped, reference
from gapless.kernels.base import ExpertAdapters
from gapless.kernels.fused import Decoder, FusedStep, FusedTower, Tower
from gapless.kernels.kept import as_stored
from gapless.kernels.prompts import PromptKernels
from gapless.kernels.region import FusedRegion, Heads
from gapless.kernels.sparse import SparseDecoder, SparseStep
from gapless.kernels.stacks import Stack

ROWS_AT_ONCE = 128
"""Most tokens of a piece with a page table each: it bounds what is gathered."""

PROMPT_AT_ONCE = 512
"""Most tokens of a piece that shares one page table: it bounds the scores."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Where T tokens write and what they see. G page tables, each with Q = T / G tokens (padded, with fixed rows).

    `cell`: (page, offset) of each token, int64 [T]. `gather` int64 [G * H * n]: rows of a cache viewed as
    [pages * H, page_size * D]; columns after the one of a table's last token are the cache's zero page. `edge` int64
    [G * H]: which of those rows hold that column; `after` bool [G, 1, page_size, 1]: its offsets after the last token.
    `hidden` bool [G, 1, Q, n * page_size]: keys after a token's own position. `room`: where keys, then values, are
    gathered, [G * H * n, page_size * D] in the cache's dtype.
    """

    cell: tuple[Tensor, Tensor]
    gather: Tensor
    edge: Tensor
    after: Tensor
    hidden: Tensor
    room: Tensor


class Graphed:
    """The set of kernels. `rows` None: as many rows in a GEMM as there are; a number: always that many."""

    cut_crops = staticmethod(reference.cut_crops)
    layer_norm = staticmethod(reference.layer_norm)
    linear = staticmethod(reference.linear)
    write_kv = staticmethod(reference.write_kv)
    read_kv = staticmethod(reference.read_kv)
    attend_block = staticmethod(reference.attend_block)
    adaptive_average = staticmethod(reference.adaptive_average)
    fourier_features = staticmethod(reference.fourier_features)
    coord_of_bin = staticmethod(reference.coord_of_bin)
    size_of_bin = staticmethod(reference.size_of_bin)
    route = staticmethod(reference.route)
    tau_levels = staticmethod(reference.tau_levels)

    def __init__(self, rows: int | None = None, grouped: bool = False) -> None:
        if rows is not None and rows < 1:
            raise ValueError(f"rows is {rows}: give at least 1, or None for as many as there are")
        self.rows = rows
        self.grouped = grouped
        self.prompts: PromptKernels | None = None

    def fuse(self, decoder: Decoder) -> FusedStep | None:
        """None: layers are computed one function after the other."""
        return None

    def fuse_region(self, heads: Heads) -> FusedRegion | None:
        """None, as above."""
        return None

    def fuse_tower(self, tower: Tower) -> FusedTower | None:
        """None, as `fuse`."""
        return None

    def fuse_sparse(self, decoder: SparseDecoder) -> SparseStep | None:
        """None, as `fuse`."""
        return None

    def compile_ahead(self, step: FusedStep | SparseStep, batches: Sequence[int], page_size: int) -> None:
        """See `Kernels.compile_ahead`."""

    def pieces(self, tokens: int, tables: int) -> list[slice]:
        """Pieces of `rows` tokens, else of as many as fit in memory: a step is one piece, and so are most prompts."""
        longest = self.rows or (PROMPT_AT_ONCE if tables == 1 else ROWS_AT_ONCE)
        return [slice(first, min(first + longest, tokens)) for first in range(0, tokens, longest)]

    def by_rows(self, f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply a row-wise `f` to x [T, ...]: at once, or in chunks of exactly `rows`."""
        if self.rows is None:
            return f(x)
        chunks = [f(self.pad_rows(chunk)) for chunk in torch.split(x, self.rows)]
        return torch.cat(chunks)[: x.shape[0]]

    def pad_rows(self, x: Tensor) -> Tensor:
        """Append zero rows to x [T <= rows, ...] until it has `rows`; x itself if any number will do."""
        if self.rows is None:
            return x
        padded = x.new_zeros((self.rows, *x.shape[1:]))
        padded[: x.shape[0]] = x
        return padded

    def spread(self, slots: Tensor, tokens: int) -> Tensor:
        """See `Kernels.spread`. With fixed rows each token has its own slot, so that prompts compute as decodes do."""
        return slots if self.rows is None else self.pad_rows(slots.expand(tokens))

    def lora(self, y: Tensor, x: Tensor, a: Tensor, b: Tensor, slots: Tensor) -> Tensor:
        """See `Kernels.lora`. One slot for all is looked up; else every adapter takes every token, in products of one
        shape, and each token picks its own: no row shows in another, in any dtype."""
        if slots.shape[0] == 1:
            mine_a, mine_b = a.index_select(0, slots)[0], b.index_select(0, slots)[0]
            delta = F.linear(F.linear(x, mine_a), mine_b)
        else:
            said = torch.bmm(torch.bmm(x.expand(a.shape[0], -1, -1), a.mT), b.mT)
            delta = said[slots, torch.arange(x.shape[0], device=x.device)]
        return torch.where((slots != 0)[:, None], y + delta, y)

    def gelu_tanh(self, x: Tensor) -> Tensor:
        """torch's own: one kernel, which computes in float32 and treats every element alike on a GPU."""
        return F.gelu(x, approximate="tanh")

    def gelu_erf(self, x: Tensor) -> Tensor:
        """torch's own, as `gelu_tanh`."""
        return F.gelu(x)

    def experts(
        self,
        x: Tensor,
        weights: Tensor,
        chosen: Tensor,
        up: Stack,
        down: Stack,
        adapters: ExpertAdapters | None = None,
    ) -> Tensor:
        """See `Kernels.experts`. Grouped where this set and the dtypes have that, else all experts for all tokens."""
        fits = self.grouped and grouped.fits_grouped(x, up, down)
        if adapters is not None:
            way = adapted.grouped if fits else adapted.for_all
            return way(x, weights, chosen, up, down, adapters)
        if fits:
            return grouped.grouped(x, weights, chosen, up, down)
        return grouped.for_all(x, weights, chosen, up, down)

    def tau(self, qkv: Tensor, weight: Tensor, levels: Tensor, gelu: str) -> Tensor:
        """See `Kernels.tau`."""
        activated = {"erf": self.gelu_erf, "tanh": self.gelu_tanh}[gelu](qkv)
        return reference.tau_scaled(qkv, activated, weight, levels)

    def rope_tables(self, length: int, dims: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines float32 [length, dims]: a rotated x is x * cos + swapped(x) * sin."""
        cos, sin = reference.rope_tables(length, dims, theta, device)
        return torch.cat((cos, cos), dim=1), torch.cat((-sin, sin), dim=1)

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate the first 2r of D dimensions of x [T, H, D] by cos, sin float32 [T, 2r]; pairs are (i, i + r)."""
        width = cos.shape[-1]
        turning, rest = x[..., :width], x[..., width:]
        swapped = torch.cat((turning[..., width // 2 :], turning[..., : width // 2]), dim=-1)
        turned = turning * cos[:, None] + swapped * sin[:, None]
        return torch.cat((turned.to(x.dtype), rest), dim=-1)

    def paging(self, positions: Tensor, tables: Tensor, keys: Tensor) -> Reach:
        """See `Kernels.paging`. With fixed rows every token has a table of its own, and the last token fills up."""
        pages, heads, page_size, d = keys.shape
        page = tables.gather(1, (positions // page_size).view(tables.shape[0], -1)).flatten()
        cell = page, positions % page_size
        if self.rows is not None:
            filled = torch.arange(self.rows, device=positions.device).clamp(max=positions.shape[0] - 1)
            tables, positions = tables.expand(positions.shape[0], -1)[filled], positions[filled]
        groups, columns = tables.shape
        own = positions.view(groups, -1, 1)
        last, offset = own[:, -1] // page_size, own[:, -1] % page_size
        column = torch.arange(columns, device=tables.device)
        seen = tables.masked_fill(column > last, pages - 1)
        head = torch.arange(heads, device=tables.device)
        gather = (seen[:, None, :] * heads + head[:, None]).flatten()
        group = torch.arange(groups, device=tables.device)
        return Reach(
            cell=cell,
            gather=gather,
            edge=((group[:, None] * heads + head) * columns + last).flatten(),
            after=(torch.arange(page_size, device=tables.device) > offset)[:, None, :, None],
            hidden=(torch.arange(columns * page_size, device=tables.device) > own)[:, None],
            room=keys.new_empty(gather.shape[0], page_size * d),
        )

    def cells(self, at: Reach) -> tuple[Tensor, Tensor]:
        """(page, offset) int64 [T] each."""
        return at.cell

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, at: Reach, scales: Tensor | None = None) -> Tensor:
        """See `Kernels.attend`. Scores and softmax in float32, weights rounded to the model's dtype; FP8 is widened to
        that."""
        t, h, d = q.shape
        groups, _, queries, reach = at.hidden.shape
        if scales is not None:
            q = (q * scales[0, :, None]).to(q.dtype)
        q = self.pad_rows(q).view(groups, queries, h, d).transpose(1, 2).reshape(-1, queries, d)
        k = _gather(keys, at).to(q.dtype).view(-1, reach, d)
        scores = _product(q, k.transpose(1, 2)).view(groups, h, queries, reach)
        scores = scores.mul_(1.0 / math.sqrt(d)).masked_fill_(at.hidden, -math.inf)
        weights = torch.softmax(scores, dim=-1).to(q.dtype).view(-1, queries, reach)
        v = _gather(values, at).to(q.dtype)
        _clear_edge(v, at, h)
        out = torch.bmm(weights, v.view(-1, reach, d)).view(groups, h, queries, d)
        out = out.transpose(1, 2).reshape(-1, h, d)[:t]
        return out if scales is None else (out * scales[1, :, None]).to(q.dtype)


def _gather(cache: Tensor, at: Reach) -> Tensor:
    """Copy what G tables reach of a layer's keys or values into the room; what was there is overwritten."""
    torch.index_select(as_stored(cache).view(-1, at.room.shape[1]), 0, at.gather, out=as_stored(at.room))
    return at.room


def _clear_edge(v: Tensor, at: Reach, heads: int) -> None:
    """Zero what follows each table's last token in the page it stands in: never written, or another life's."""
    groups, _, page_size, _ = at.after.shape
    edge = v.index_select(0, at.edge).view(groups, heads, page_size, -1)
    v.index_copy_(0, at.edge, edge.masked_fill(at.after, 0.0).view(groups * heads, -1))


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Batched a [N, Q, D] @ b [N, D, K] in float32: half types are summed and kept wide."""
    if a.dtype is torch.float32 or a.device.type == "cpu":  # a CPU has no product with a wider result
        return torch.bmm(a.float(), b.float())
    return torch.bmm(a, b, out_dtype=torch.float32)
