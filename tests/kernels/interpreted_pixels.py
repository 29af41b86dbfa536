"""Run by itself, with TRITON_INTERPRET=1: pictures cut by the kernels on the CPU, beside the plain way."""

from __future__ import annotations

import sys

import torch

from gapless.kernels import pixels as plain
from gapless.kernels.triton import pixels, pixels_jit

CASES = [((30, 41), (1, 1)), ((9, 70), (2, 1)), ((90, 20), (1, 2)), ((33, 33), (2, 2)), ((500, 3), (1, 1))]
"""Heights and widths (the last is reduced by more than the kernels take), and tilings."""
SIDE, STEP = 12, 6


def main() -> None:
    """One line a case: whether the crops are the same; then whether patches are."""
    source = torch.Generator().manual_seed(3)
    for size, tiling in CASES:
        picture = torch.randint(0, 256, (*size, 3), generator=source, dtype=torch.uint8)
        found, right = (torch.full((1 + tiling[0] * tiling[1], SIDE, SIDE, 3), n, dtype=torch.uint8) for n in (7, 8))
        pixels.cut_crops(picture, tiling, STEP, found)
        plain.cut_crops(picture, tiling, STEP, right)
        print("crops", torch.equal(found, right), flush=True)
    crops = torch.randint(0, 256, (2, 12, 12, 3), generator=source, dtype=torch.uint8)
    levels, out = torch.randn(256, generator=source), torch.full((18, 56), torch.nan)
    pixels_jit.patches[(18,)](crops, levels, out, 18, 12, 3, 4, 56, 64)
    cut = crops.view(2, 3, 4, 3, 4, 3).permute(0, 1, 3, 5, 2, 4).reshape(18, 48).int()
    print("patches", torch.equal(out, torch.cat((levels[cut], torch.zeros(18, 8)), dim=1)))


if __name__ == "__main__":
    sys.exit(main())
