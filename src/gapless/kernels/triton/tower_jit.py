"""Kernels of the picture tower: attention in which all patches of a crop see each other, and LayerNorm.

Widths are compile-time constants. A head of any width is cut into a part that is a power of two and a narrow rest, so
that no tile is padded to the next power of two. What is masked is selected, never multiplied by zero.
"""

import triton
import triton.language as tl


@triton.jit
def _seen(q, q_rest, k_at, best, total, sums, sums_rest, real, kept, scale, MAIN: tl.constexpr, REST: tl.constexpr,
          WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """One more tile of keys and values: the running maximum, sum and weighted values. `real`: keys that are there."""
    d = tl.arange(0, MAIN)
    there = real[:, None]
    if MASKED:
        k = tl.load(k_at + d[None, :], mask=there, other=0.0)
        v = tl.load(k_at + WIDTH + d[None, :], mask=there, other=0.0)
    else:
        k = tl.load(k_at + d[None, :])
        v = tl.load(k_at + WIDTH + d[None, :])
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if REST > 0:
        e = MAIN + tl.arange(0, REST)
        k_rest = tl.load(k_at + e[None, :], mask=there & kept, other=0.0)
        v_rest = tl.load(k_at + WIDTH + e[None, :], mask=there & kept, other=0.0)
        scores = tl.dot(q_rest, tl.trans(k_rest), scores, input_precision="ieee")
    if MASKED:
        scores = tl.where(real[None, :], scores, float("-inf"))
    now = tl.maximum(best, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - now[:, None])
    shrink = tl.exp2(best - now)
    total = total * shrink + tl.sum(weights, 1)
    narrow = weights.to(v.dtype)
    sums = tl.dot(narrow, v, sums * shrink[:, None], input_precision="ieee")
    if REST > 0:
        sums_rest = tl.dot(narrow, v_rest, sums_rest * shrink[:, None], input_precision="ieee")
    return now, total, sums, sums_rest


@triton.jit
def attend(qkv, out, T, WIDTH: tl.constexpr, D: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, BM: tl.constexpr,
           BN: tl.constexpr, STAGES: tl.constexpr, scale):
    """qkv [N, T, 3 WIDTH], q | k | v by heads of D = MAIN + at most REST -> out [N, T, WIDTH]. `scale`: of scores, in
    base 2, above 0.

    A program takes BM queries of one head of one block, over BN keys at a time: softmax as in "Online normalizer
    calculation for softmax" (Milakov, Gimelshein 2018). Only the last keys can be too few.
    """
    head = tl.program_id(1)
    block = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    d = tl.arange(0, MAIN)
    base = qkv + block * T * (3 * WIDTH) + head * D
    there = (m < T)[:, None]
    q_at = base + m[:, None] * (3 * WIDTH)
    q = tl.load(q_at + d[None, :], mask=there, other=0.0)
    if REST > 0:
        e = MAIN + tl.arange(0, REST)
        kept = (e < D)[None, :]
        q_rest = tl.load(q_at + e[None, :], mask=there & kept, other=0.0)
        sums_rest = tl.zeros([BM, REST], tl.float32)
    else:
        kept, q_rest, sums_rest = there, q, tl.zeros([BM, 1], tl.float32)
    best = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    sums = tl.zeros([BM, MAIN], tl.float32)
    k_at = base + WIDTH + n[:, None] * (3 * WIDTH)
    whole = T // BN * BN
    for first in tl.range(0, whole, BN, num_stages=STAGES):
        best, total, sums, sums_rest = _seen(q, q_rest, k_at + first * (3 * WIDTH), best, total, sums, sums_rest,
                                             n >= 0, kept, scale, MAIN, REST, WIDTH, False)
    if whole < T:
        best, total, sums, sums_rest = _seen(q, q_rest, k_at + whole * (3 * WIDTH), best, total, sums, sums_rest,
                                             whole + n < T, kept, scale, MAIN, REST, WIDTH, True)
    out_at = out + block * T * WIDTH + head * D + m[:, None] * WIDTH
    by = (1.0 / total)[:, None]
    tl.store(out_at + d[None, :], (sums * by).to(out.dtype.element_ty), mask=there)
    if REST > 0:
        tl.store(out_at + e[None, :], (sums_rest * by).to(out.dtype.element_ty), mask=there & kept)


@triton.jit
def norm(x, shift, weight, bias, out, T, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr):
    """LayerNorm of x [T, D] + shift float32 [D] -> out [T, D], eps 1e-5, in float32. ROWS rows a program."""
    column = tl.arange(0, WIDE)
    real = column < D
    by = tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
    plus = tl.load(bias + column, mask=real, other=0.0).to(tl.float32)
    moved = tl.load(shift + column, mask=real, other=0.0)
    for i in tl.static_range(ROWS):
        row = tl.program_id(0) * ROWS + i
        at = row.to(tl.int64) * D + column
        there = column < tl.where(row < T, D, 0)
        value = tl.load(x + at, mask=there, other=0.0).to(tl.float32) + moved
        mean = tl.sum(value, 0) / D
        away = tl.where(real, value - mean, 0.0)
        scale = tl.rsqrt(tl.sum(away * away, 0) / D + 1e-5)
        tl.store(out + at, (away * scale * by + plus).to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=("rows", "columns"))
def pool(features, out, rows, columns, D: tl.constexpr, WIDE: tl.constexpr, GRID: tl.constexpr, MARGIN: tl.constexpr):
    """features [1 + rows * columns, GRID^2, D] -> out [GRID^2, 2 D]: of each cell what the whole picture's crop says,
    and the mean of what the tiles say there, in float32, rounded once.

    Tiles lie GRID - 2 MARGIN cells apart; each says what is not a neighbour's nearer its middle.
    """
    cell = tl.program_id(0)
    r, c = cell // GRID, cell % GRID
    d = tl.arange(0, WIDE)
    real = d < D
    tl.store(out + cell * (2 * D) + d, tl.load(features + cell * D + d, mask=real, other=0.0), mask=real)
    step = GRID - 2 * MARGIN
    height, width = rows * step + 2 * MARGIN, columns * step + 2 * MARGIN
    top, bottom = r * height // GRID, ((r + 1) * height + GRID - 1) // GRID
    left, right = c * width // GRID, ((c + 1) * width + GRID - 1) // GRID
    total = tl.zeros([WIDE], tl.float32)
    for y in range(top, bottom):
        i = tl.minimum(tl.maximum(y - MARGIN, 0) // step, rows - 1)
        for x in range(left, right):
            j = tl.minimum(tl.maximum(x - MARGIN, 0) // step, columns - 1)
            place = (1 + i * columns + j) * (GRID * GRID) + (y - i * step) * GRID + (x - j * step)
            total += tl.load(features + place.to(tl.int64) * D + d, mask=real, other=0.0).to(tl.float32)
    mean = total / ((bottom - top) * (right - left)).to(tl.float32)
    tl.store(out + cell * (2 * D) + D + d, mean.to(out.dtype.element_ty), mask=real)
