"""Kernels that resize and cut a picture: `kernels.pixels` in parallel, to the byte.

Sizes change from picture to picture, so no kernel is compiled anew for some of them: they are arguments that nothing is
specialised on. Weights are worked out in float64; sums are int32.
"""

import triton
import triton.language as tl

_SIZES = ("width", "height", "side", "wide", "tall", "taps")


@triton.jit
def _sinc(x):
    """sin(pi x) / (pi x) in float64, 1 at 0."""
    angle = x * 3.141592653589793
    return tl.where(x == 0.0, 1.0, tl.sin(angle) / tl.where(x == 0.0, 1.0, angle))


@triton.jit(do_not_specialize=_SIZES)
def tables(first, weights, width, height, side, wide, tall, taps, BR: tl.constexpr, BT: tl.constexpr):
    """Tables of four axes, one below the other: `width` to `side`, `height` to `side`, `width` to `wide`, `height` to
    `tall` -> first int32 [rows], weights int32 [rows, taps], taps <= BT. BR rows a program."""
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    rows = 2 * side + wide + tall
    is_wide = (row < side) | ((row >= 2 * side) & (row < 2 * side + wide))
    size = tl.where(is_wide, width, height)
    out = tl.where(row < 2 * side, side, tl.where(row < 2 * side + wide, wide, tall))
    begin = tl.where(row < side, 0, tl.where(row < 2 * side, side, tl.where(row < 2 * side + wide, 2 * side,
                                                                            2 * side + wide)))
    scale = size.to(tl.float64) / out.to(tl.float64)
    broad = tl.maximum(scale, 1.0)
    centre = ((row - begin).to(tl.float64) + 0.5) * scale
    start = tl.maximum((centre - broad * 3.0 + 0.5).to(tl.int32), 0)
    end = tl.minimum((centre + broad * 3.0 + 0.5).to(tl.int32), size)
    tap = tl.arange(0, BT)
    line = start[:, None] + tap[None, :]
    away = (line.to(tl.float64) - centre[:, None] + 0.5) / broad[:, None]
    inside = (away >= -3.0) & (away < 3.0) & (line < end[:, None])
    weight = tl.where(inside, _sinc(away) * _sinc(away / 3.0), 0.0)
    whole = tl.sum(weight, 1)
    weight = weight / tl.where(whole == 0.0, 1.0, whole)[:, None]
    rounded = (weight * 4194304.0 + tl.where(weight < 0.0, -0.5, 0.5)).to(tl.int32)
    there = row < rows
    tl.store(first + row, start, mask=there)
    tl.store(weights + row[:, None] * taps + tap[None, :], rounded, mask=there[:, None] & (tap < taps)[None, :])


@triton.jit(do_not_specialize=("width", "out_width", "count", "taps"))
def across(src, dst, first, weights, width, out_width, count, taps, BLOCK: tl.constexpr):
    """src uint8 [n, width, 3] -> dst uint8 [n, out_width, 3]; `count` of `taps` weights are used. A row and BLOCK
    bytes of it a program."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < out_width * 3
    x = at // 3
    channel = at - 3 * x
    start = tl.load(first + x, mask=there, other=0)
    total = tl.full([BLOCK], 2097152, tl.int32)
    for tap in range(count):
        column = tl.minimum(start + tap, width - 1)
        pixel = tl.load(src + (row * width + column) * 3 + channel, mask=there, other=0).to(tl.int32)
        total += pixel * tl.load(weights + x * taps + tap, mask=there, other=0)
    tl.store(dst + row * out_width * 3 + at, _byte(total), mask=there)


@triton.jit(do_not_specialize=("height", "width", "count", "taps"))
def down(src, dst, first, weights, height, width, count, taps, BLOCK: tl.constexpr):
    """src uint8 [height, width, 3] -> dst uint8 [n, width, 3]. A row of dst and BLOCK bytes of it a program."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < width * 3
    start = tl.load(first + row)
    total = tl.full([BLOCK], 2097152, tl.int32)
    for tap in range(count):
        line = tl.minimum(start + tap, height - 1)
        pixel = tl.load(src + line * width * 3 + at, mask=there, other=0).to(tl.int32)
        total += pixel * tl.load(weights + row * taps + tap)
    tl.store(dst + row * width * 3 + at, _byte(total), mask=there)


@triton.jit
def _byte(total):
    return tl.minimum(tl.maximum(total >> 22, 0), 255).to(tl.uint8)


@triton.jit(do_not_specialize=("columns", "width"))
def tiles(copy, crops, columns, step, width, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """copy uint8 [height, width, 3] -> crops uint8 [1 + n, SIDE, SIDE, 3] from the second on. A row of a tile and
    BLOCK bytes of it a program."""
    line, tile = tl.program_id(0), tl.program_id(1)
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    there = at < SIDE * 3
    i, j = tile // columns, tile % columns
    value = tl.load(copy + ((i * step + line) * width + j * step) * 3 + at, mask=there, other=0)
    tl.store(crops + ((1 + tile) * SIDE + line) * (SIDE * 3) + at, value, mask=there)


@triton.jit
def patches(crops, levels, out, total, SIDE: tl.constexpr, GRID: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
            BLOCK: tl.constexpr):
    """crops uint8 [n, SIDE, SIDE, 3], levels [256] -> out [n GRID^2, WIDE]: patches row by row, in each channel, row,
    column, then zeros. `total` patches; one a program."""
    patch = tl.program_id(0)
    crop = (patch // (GRID * GRID)).to(tl.int64)
    row, column = (patch % (GRID * GRID)) // GRID, patch % GRID
    at = tl.arange(0, BLOCK)
    channel, y, x = at // (SIZE * SIZE), (at // SIZE) % SIZE, at % SIZE
    real = at < 3 * SIZE * SIZE
    source = crops + ((crop * SIDE + row * SIZE + y) * SIDE + column * SIZE + x) * 3 + channel
    level = tl.load(source, mask=real, other=0).to(tl.int32)
    value = tl.where(real, tl.load(levels + level), 0.0)
    tl.store(out + patch.to(tl.int64) * WIDE + at, value.to(out.dtype.element_ty), mask=at < WIDE)
