"""Experts in FP8 that are multiplied as they are: the one launch by itself, with any numbers, and in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import gelu

from gapless.kernels.stacks import FP8, Stack
from gapless.kernels.triton import narrow_jit
from gapless.kernels.triton.choices import padded
from gapless.kernels.triton.cut_jit import put
from gapless.kernels.triton.sparse_choices import CUT
from gapless.kernels.triton.sparse_room import CUT as PIECE
from gapless.kernels.triton.tiles import CUTS, Tiles

STEPS = torch.tensor([16.0, 2.0, 0.25, 0.03125], dtype=torch.float64)
"""What a token's cuts count."""


@triton.jit
def cutting(x, out, COUNT: tl.constexpr):
    """Row `program_id` of x [any, COUNT], cut -> out [any, CUTS, COUNT]."""
    row, k = tl.program_id(0), tl.arange(0, COUNT)
    put(out, tl.load(x + row * COUNT + k).to(tl.float32), row, k, k >= 0, COUNT)


def cuts_of(x: Tensor) -> Tensor:
    """x [B, D], D a power of two, -> e5m2 [B, CUTS, D]."""
    out = torch.zeros(len(x), CUTS, x.shape[1], dtype=PIECE, device=x.device)
    cutting[(len(x),)](x.contiguous(), out, x.shape[1])
    return out


def joined(cuts: Tensor) -> Tensor:
    """cuts e5m2 [B, CUTS, D] -> float64 [B, D]."""
    return (cuts.float().double() * STEPS.to(cuts.device)[:, None]).sum(1)


@dataclass
class Narrow:
    """Tokens n [B, D] and who takes which experts, `picks` int64 [B, SHARE], all different in a row; experts in FP8."""

    n: Tensor
    picks: Tensor
    up: Stack
    down: Stack


def draw_narrow(
    rows: int, seed: int, dim: int, inner: int, experts: int, share: int, dtype: torch.dtype, device: str = "cpu"
) -> Narrow:
    """Numbers like those behind a norm, and any experts."""
    g = torch.Generator(device).manual_seed(seed)

    def stack(out: int, into: int) -> Stack:
        values = torch.randn(experts, out, into, generator=g, device=device) * into**-0.5
        scales = values.abs().amax(-1) / 448
        return Stack((values / scales[..., None]).to(FP8), scales)

    n = torch.randn(rows, dim, generator=g, device=device).to(dtype)
    picks = torch.rand(rows, experts, generator=g, device=device).topk(share, dim=1).indices
    return Narrow(n, picks, stack(2 * inner, dim), stack(dim, inner))


@dataclass
class Said:
    """`gated` e5m2 [B SHARE, CUTS, I] and `said` [B SHARE, D], by pair; `parts` float32 [1, BM, D], what proj says;
    how many programs of `up` counted themselves, `done` [E]."""

    gated: Tensor
    said: Tensor
    parts: Tensor
    done: Tensor


class Launch:
    """One launch over memory of its own, poisoned wherever it writes. `pdl` as `choices` has it; what is said comes in
    float32, so that it is not rounded once more."""

    def __init__(self, of: Narrow, tiles: Tiles = CUT[8], pdl: int = 0) -> None:
        device, (rows, dim), share = of.n.device, of.n.shape, of.picks.shape[1]
        self.of, self.tiles, self.pdl, self.most = of, tiles, pdl, padded(max(2, rows))
        self.inner, self.experts = of.down.values.shape[2], of.up.count
        self.cuts = torch.full((self.most, CUTS, dim), torch.nan, device=device).to(PIECE)
        self.cuts[:rows] = cuts_of(of.n)
        self.lists = torch.full((self.experts, self.most), 2**31 - 1, dtype=torch.int32, device=device)
        self.counts = torch.zeros(self.experts, dtype=torch.int32, device=device)
        for expert in range(self.experts):
            pairs = (of.picks.flatten() == expert).nonzero()[:, 0].int()
            self.counts[expert] = len(pairs)
            self.lists[expert, : len(pairs)] = pairs
        g = torch.Generator(device).manual_seed(1)
        self.attended = torch.randn(self.most, dim, generator=g, device=device).to(of.n.dtype)
        self.proj = torch.randn(dim, dim, generator=g, device=device).to(of.n.dtype)
        self.out = Said(
            torch.full((rows * share, CUTS, self.inner), torch.nan, device=device).to(PIECE),
            torch.full((rows * share, dim), torch.nan, device=device),
            torch.full((1, self.most, dim), torch.nan, device=device),
            torch.zeros(self.experts, dtype=torch.int32, device=device),
        )

    def __call__(self) -> Said:
        of, out, dim, up, down = self.of, self.out, self.of.n.shape[1], self.tiles.up, self.tiles.down
        programs = self.experts * (self.inner // up.lines + dim // down.lines) + dim // 64
        launched = {"launch_pdl": True} if self.pdl else {}
        out.done.zero_()
        narrow_jit.experts[(programs,)](
            self.cuts, out.gated, self.attended, self.proj, self.lists, self.counts, out.done, of.up.values,
            of.up.scales, of.down.values, of.down.scales, of.n, out.said, out.parts, len(of.n), dim, self.inner,
            self.experts, of.picks.shape[1], self.most, up.rows, up.lines, up.deep, up.stages, down.lines, down.deep,
            down.stages, of.n.device.type != "cpu", 1, 64, 64, 3, 1, self.pdl, num_warps=up.warps, **launched,
        )  # fmt: skip
        return out


def gated_of(of: Narrow) -> tuple[Tensor, Tensor]:
    """In float64 by pair [B SHARE, I]: what is gated, and the most that a sum of such numbers can be off by, as a part
    of how large they are."""
    rows, chosen = of.n.double().repeat_interleave(of.picks.shape[1], 0), of.picks.flatten()
    out, size = [], []
    for row, expert in zip(rows, chosen, strict=True):
        own = wide(of.up, int(expert))
        a, g = (own @ row).chunk(2)
        spread_a, spread_g = (own.abs() @ row.abs()).chunk(2)
        out.append(gelu(a) * (g + 1))
        size.append(1.13 * spread_a * (g.abs() + 1) + gelu(a).abs() * spread_g)
    return torch.stack(out), torch.stack(size)


def said_of(of: Narrow, gated: Tensor) -> tuple[Tensor, Tensor]:
    """In float64 by pair [B SHARE, D], of what was gated: what is said, and how large its terms are."""
    out, size = [], []
    for row, expert in zip(gated, of.picks.flatten(), strict=True):
        own = wide(of.down, int(expert))
        out.append(own @ row)
        size.append(own.abs() @ row.abs())
    return torch.stack(out), torch.stack(size)


def wide(stack: Stack, expert: int) -> Tensor:
    """An expert's matrix in float64."""
    assert stack.scales is not None
    return stack.values[expert].float().double() * stack.scales[expert, :, None].double()
