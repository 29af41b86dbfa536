"""Pictures resized and cut into crops, to the byte as Pillow does it: Lanczos in fixed-point numbers, in plain torch.

In: upright pixels uint8 [H, W, 3]. Out: crops uint8 [n, side, side, 3]. Each axis has its table: for every line that
comes out, which lines go in and with which weight. Weights are worked out in float64, made to sum to one and rounded to
22 bits behind the point; sums are int32. What the first axis gives is rounded and clipped to bytes before the second
follows; which one is first, says the Pillow that is installed. All on the pixels' device; nothing is read on the host.
"""

from __future__ import annotations

import math
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

POINT = 22
"""Bits behind the point of a weight: 32 less 8 of a pixel and 2 for sums beyond it (Pillow, `Resample.c`)."""
LOBES = 3
"""Half the width of the filter, in lines of the coarser side."""


def _turns() -> bool:
    """Whether the Pillow of this process, or of the one that hands pictures over, may begin with the height."""
    try:
        return int(version("pillow").partition(".")[0]) >= 13
    except (PackageNotFoundError, ValueError):
        return True


TURNS = _turns()


def taps(size: int, out: int) -> int:
    """The most lines of `size` that one of `out` lines is made of."""
    return 2 * math.ceil(LOBES * max(1.0, size / out)) + 1


def lanczos_table(size: int, out: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """From `size` lines to `out`: the first line that goes in, int64 [out], and the weights from there on, int32
    [out, taps], 0 beyond the last."""
    scale = size / out
    wide = max(1.0, scale)
    centre = (torch.arange(out, dtype=torch.float64, device=device) + 0.5) * scale
    first = (centre - LOBES * wide + 0.5).to(torch.int64).clamp(min=0)
    end = (centre + LOBES * wide + 0.5).to(torch.int64).clamp(max=size)
    line = first[:, None] + torch.arange(taps(size, out), device=device)
    away = (line - centre[:, None] + 0.5) * (1.0 / wide)
    weights = _lanczos(away).masked_fill(line >= end[:, None], 0.0)
    weights = weights / weights.sum(dim=1, keepdim=True)
    rounded = (weights * 2**POINT + torch.where(weights < 0, -0.5, 0.5)).to(torch.int32)  # towards zero
    return first, rounded


def _lanczos(x: Tensor) -> Tensor:
    inside = (x >= -LOBES) & (x < LOBES)
    return torch.where(inside, torch.sinc(x) * torch.sinc(x / LOBES), 0.0)


def height_first(height: int, width: int, out_height: int, out_width: int) -> bool:
    """Whether the height is changed before the width: Pillow's choice since 13.0, where that saves work."""
    return TURNS and out_height < height and height - out_height > 2 * (width - out_width)


def resize(pixels: Tensor, width: int, height: int) -> Tensor:
    """Uint8 [H, W, C] -> uint8 [height, width, C]."""
    if height_first(pixels.shape[0], pixels.shape[1], height, width):
        return _along(_along(pixels, height).transpose(0, 1), width).transpose(0, 1).contiguous()
    return _along(_along(pixels.transpose(0, 1), width).transpose(0, 1), height).contiguous()


def _along(pixels: Tensor, out: int) -> Tensor:
    """Uint8 [size, n, C] -> uint8 [out, n, C]."""
    size = pixels.shape[0]
    first, weights = lanczos_table(size, out, pixels.device)
    total = torch.full((out, *pixels.shape[1:]), 1 << (POINT - 1), dtype=torch.int32, device=pixels.device)
    for tap in range(weights.shape[1]):
        total += pixels[(first + tap).clamp(max=size - 1)].int() * weights[:, tap, None, None]
    return (total >> POINT).clamp_(0, 255).to(torch.uint8)


def cut_crops(pixels: Tensor, tiling: tuple[int, int], step: int, out: Tensor) -> None:
    """Pixels uint8 [H, W, 3] -> `out` uint8 [1 + rows * columns, side, side, 3]: the whole picture, then the tiles of a
    copy of it, `step` pixels apart, row by row."""
    rows, columns = tiling
    side = out.shape[1]
    out[0] = resize(pixels, side, side)
    copy = out[0]
    if tiling != (1, 1):
        copy = resize(pixels, (columns - 1) * step + side, (rows - 1) * step + side)
    for index in range(rows * columns):
        i, j = divmod(index, columns)
        out[1 + index] = copy[i * step : i * step + side, j * step : j * step + side]
