"""A picture resized and cut in a few kernels: what `kernels.pixels` says, to the byte."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from gapless.kernels import pixels as plain
from gapless.kernels.triton import pixels_jit

MOST_TAPS = 128
"""Lines that one line is made of, at most; a picture that is reduced further goes the plain way."""
BLOCK = 1024
ROWS = 8


def cut_crops(pixels: Tensor, tiling: tuple[int, int], step: int, out: Tensor) -> None:
    """See `kernels.pixels.cut_crops`."""
    (height, width, _), side, (rows, columns) = pixels.shape, out.shape[1], tiling
    tall, wide = (rows - 1) * step + side, (columns - 1) * step + side
    axes = ((width, side), (height, side), (width, wide), (height, tall))
    taps = [plain.taps(*axis) for axis in axes]
    if max(taps) > MOST_TAPS or pixels.numel() >= 2**31:
        plain.cut_crops(pixels, tiling, step, out)
        return
    lines, most = 2 * side + wide + tall, max(taps)
    first = torch.empty(lines, dtype=torch.int32, device=pixels.device)
    weights = torch.empty(lines, most, dtype=torch.int32, device=pixels.device)
    pixels_jit.tables[(triton.cdiv(lines, ROWS),)](
        first, weights, width, height, side, wide, tall, most, ROWS, MOST_TAPS, num_warps=4, enable_fp_fusion=False
    )
    firsts, all_weights = torch.split(first, [side, side, wide, tall]), torch.split(weights, [side, side, wide, tall])
    tables = list(zip(firsts, all_weights, taps, strict=True))
    _resize(pixels, tables[0], tables[1], out[0])
    if tiling == (1, 1):
        out[1] = out[0]
        return
    copy = torch.empty(tall, wide, 3, dtype=torch.uint8, device=pixels.device)
    _resize(pixels, tables[2], tables[3], copy)
    grid = (side, rows * columns, triton.cdiv(side * 3, BLOCK))
    pixels_jit.tiles[grid](copy, out, columns, step, wide, side, BLOCK, num_warps=4)


Table = tuple[Tensor, Tensor, int]
"""The first line that goes in, int32 [out]; weights int32 [out, most]; how many of them count."""


def _resize(pixels: Tensor, across: Table, down: Table, out: Tensor) -> None:
    """Pixels uint8 [H, W, 3] -> out uint8 [height, width, 3]."""
    height, width = pixels.shape[:2]
    if plain.height_first(height, width, out.shape[0], out.shape[1]):
        between = pixels.new_empty(out.shape[0], width, 3)
        _down(pixels, down, between)
        _across(between, across, out)
    else:
        between = pixels.new_empty(height, out.shape[1], 3)
        _across(pixels, across, between)
        _down(between, down, out)


def _across(source: Tensor, table: Table, out: Tensor) -> None:
    first, weights, count = table
    height, width = out.shape[:2]
    pixels_jit.across[(height, triton.cdiv(width * 3, BLOCK))](
        source, out, first, weights, source.shape[1], width, count, weights.shape[1], BLOCK, num_warps=4
    )


def _down(source: Tensor, table: Table, out: Tensor) -> None:
    first, weights, count = table
    height, width = out.shape[:2]
    pixels_jit.down[(height, triton.cdiv(width * 3, BLOCK))](
        source, out, first, weights, source.shape[0], width, count, weights.shape[1], BLOCK, num_warps=4
    )
