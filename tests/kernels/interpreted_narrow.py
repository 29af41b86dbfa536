"""Run by itself, with TRITON_INTERPRET=1: tokens cut into FP8, and the one launch of experts in FP8, in float16.

Triton's interpreter takes e5m2's subnormals for less than they are, by 2^-15 at most, which counts 2^-11: so tokens are
multiples of 1/16, which have none, and gated numbers are large.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from tests.kernels.drawn_narrow import Launch, Narrow, cuts_of, draw_narrow, gated_of, joined, said_of
from torch import Tensor

from gapless.kernels.stacks import FP8, Stack
from gapless.kernels.triton.sparse_jit import begin
from gapless.kernels.triton.sparse_room import CUT as PIECE
from gapless.kernels.triton.tiles import CUTS, Tile, Tiles

DIM, INNER, ROWS = 128, 64, 8
WIDE = Tiles(Tile(ROWS, 32, 64, 4, 2), Tile(ROWS, 64, 64, 4, 2))
LESS = 2.0**-11
"""What the interpreter may take from a number."""


def exact() -> tuple[float, bool, bool]:
    """Of all numbers of two bytes: how far their cuts are from them from 2^-11 on, whether by 2^-21 at most below, and
    whether what is not finite, or 2^20 and more, is NaN."""
    off, near, lost = 0.0, True, True
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).float().view(64, -1)
        found, right = joined(cuts_of(x)), x.double()
        said = right.abs() < 2.0**20
        away = (found - right).abs()
        off = max(off, float(away[said & (right.abs() >= LESS)].max()))
        near &= bool((away[said & (right.abs() < LESS)] <= 2.0**-21).all())
        lost &= bool(found[~said].isnan().all())
    return off, near, lost


def twelve_bits() -> float:
    """Of float32: how far a number's cuts are from it, as a part of it, times 2^12."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(64, 1024, generator=g) * torch.exp2(torch.randint(4, 16, (64, 1024), generator=g).float())
    right = x.double()
    away = (joined(cuts_of(x)) - right).abs() / right.abs()
    return float(away[right.abs() > 1].max()) * 2**12


def norms_are_cut_as_they_are_kept() -> bool:
    """To the bit: both kinds of kernels are told the same."""
    g = torch.Generator().manual_seed(4)
    given, weight = torch.randn(5, DIM, generator=g).half(), torch.randn(DIM, generator=g).half()
    x, n, cuts = torch.zeros(5, DIM), torch.zeros_like(given), torch.zeros(5, CUTS, DIM, dtype=PIECE)
    begin[(5,)](given, x, n, cuts, weight, weight / 8, DIM, DIM, 0)
    told = n.abs() >= LESS
    return bool(told.any()) and torch.equal(joined(cuts)[told], n[told].double())


def drawn(rows: int, experts: int, share: int, inner: int = INNER) -> Narrow:
    """Tokens of eight bits, large enough that what they say is large."""
    of = draw_narrow(rows, rows, DIM, inner, experts, share, torch.float16)
    return replace(of, n=(of.n * 160).round().clamp(-255, 255) / 16)


def odd(of: Narrow) -> Narrow:
    """The same with a token of zeros, weights of all kinds, scales of 0, and NaN in experts that nobody takes."""
    of.n[1] = -0.0
    g = torch.Generator().manual_seed(1)
    stored = torch.randint(0, 256, of.up.values.shape, generator=g).to(torch.uint8)
    stored = torch.where((stored & 127) == 127, stored - 1, stored)  # no NaN: the largest, 448
    scales = torch.full_like(of.up.scales, 2.0**-9)
    scales[:, 1::3] = 0
    nobody = torch.ones(of.up.count, dtype=torch.bool)
    nobody[of.picks.flatten()] = False
    assert nobody.any()
    scales[nobody], of.down.scales[nobody] = torch.nan, torch.nan
    return replace(of, up=Stack(stored.view(FP8), scales))


def of_one_kind(of: Narrow) -> Narrow:
    """The same where all rows take the same experts."""
    return replace(of, picks=of.picks[:1].expand(len(of.picks), -1).contiguous())


def last_apart(of: Narrow) -> Narrow:
    """The same with tokens that are not finite, and one too large."""
    of.n[2], of.n[5, 3], of.n[-1, 0] = torch.nan, torch.inf, -torch.inf
    return of


SCENES = {
    "few": (drawn(2, 3, 1), WIDE),
    "two lines": (drawn(5, 2, 2, 192), Tiles(Tile(ROWS, 64, 128, 4, 3), Tile(ROWS, 128, 64, 4, 2))),
    "one expert": (drawn(17, 1, 1), WIDE),
    "same": (of_one_kind(drawn(20, 6, 3)), WIDE),
    "odd": (odd(drawn(9, 8, 2)), WIDE),
    "not finite": (last_apart(drawn(11, 4, 4)), Tiles(Tile(16, 32, 32, 4, 2), Tile(16, 64, 32, 4, 2))),
    "wide": (drawn(33, 64, 8), WIDE),
}


def most(away: Tensor, bound: Tensor, real: Tensor) -> float:
    """The largest part of what a number may be off by."""
    return float((away / bound)[real].max())


def main(only: list[str]) -> None:
    """First what cutting does; then one line a scene: how much of what they may be off by gated numbers, what experts
    say, and proj's parts are; whether what is gated was rounded as tokens are; whether what is not finite stays alone;
    whether everybody was waited for."""
    print("cut", *exact(), twelve_bits(), norms_are_cut_as_they_are_kept(), flush=True)
    for name in only or SCENES:
        of, tiles = SCENES[name]
        launch = Launch(of, tiles)
        out, share, rows = launch(), of.picks.shape[1], len(of.n)
        real = of.n.isfinite().all(1).repeat_interleave(share)
        right, size = gated_of(of)
        gated = joined(out.gated)
        first = most((gated - right).abs(), 2.0**-11 * right.abs() + 2.0**-20 * size + 2.0**-24, real)
        right, size = said_of(of, gated)
        lost = said_of(of, torch.full_like(gated, LESS))[1]
        second = most((out.said.double() - right).abs(), 2.0**-20 * size + lost + 1e-30, real)
        attended = launch.attended[:rows].double()
        proj = (out.parts[0, :rows].double() - attended @ launch.proj.double().T).abs().max()
        alone = bool(out.said[~real].isnan().any(1).all()) and bool(out.parts[0, rows:].isnan().all())
        kept = torch.equal(gated[real], gated[real].to(of.n.dtype).double())
        waited = torch.equal(out.done, torch.where(launch.counts > 0, launch.inner // tiles.up.lines, 0).int())
        print(name.replace(" ", "-"), first, second, float(proj), kept, alone, waited, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
