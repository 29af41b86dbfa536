"""Pieces that the kernels of a decode step share: a tile of a matrix product, a folded LayerNorm, activations.

Shapes are compile-time constants and powers of two; what is masked is selected to zero, never multiplied by it. `MODE`
(how a product is computed) and `PDL` (when a kernel lets the next one start) are numbers that `choices.py` names.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def prefetch(pointers):
    """Bring the lines at these addresses to L2."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def follow(w, first_row, first_column, K: tl.constexpr, BN: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr):
    """Wait for the kernel before, having asked for the first `AHEAD` columns of BN rows of w [N, K] meanwhile."""
    if PDL:
        if PDL == 1:
            gdc_launch_dependents()
        if AHEAD > 0:
            row = first_row + tl.arange(0, BN)
            column = first_column + tl.arange(0, AHEAD // 64) * 64
            prefetch(w + row[:, None] * K + column[None, :])
        gdc_wait()


@triton.jit
def product(x, w, first_row, first_column, rows, K: tl.constexpr, LENGTH: tl.constexpr, BM: tl.constexpr,
            BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, MODE: tl.constexpr):
    """x [BM, K], of which `rows` count, times BN rows of w [N, K], over LENGTH columns -> float32 [BM, BN]."""
    n = first_row + tl.arange(0, BN)
    k = first_column + tl.arange(0, BK)
    m = tl.arange(0, BM)
    w_at = w + n[:, None] * K + k[None, :]
    if MODE == 2:
        sums = tl.zeros([BN, BK], tl.float32)
        for at in tl.range(0, LENGTH, BK, num_stages=STAGES):
            weights = tl.load(w_at + at, eviction_policy="evict_first")
            sums += weights.to(tl.float32) * tl.load(x + k + at).to(tl.float32)[None, :]
        out = tl.sum(sums, 1)[None, :]
    else:
        x_at = x + m[:, None] * K + k[None, :]
        real = (m < rows)[:, None]
        if MODE == 1:
            total = tl.zeros([BN, BM], tl.float32)
        else:
            total = tl.zeros([BM, BN], tl.float32)
        for at in tl.range(0, LENGTH, BK, num_stages=STAGES):
            weights = tl.load(w_at + at, eviction_policy="evict_first")
            inputs = tl.load(x_at + at, mask=real, other=0.0)
            if MODE == 1:
                total = tl.dot(weights, tl.trans(inputs), total, input_precision="ieee")
            else:
                total = tl.dot(inputs, tl.trans(weights), total, input_precision="ieee")
        if MODE == 1:
            out = tl.trans(total)
        else:
            out = total
    return out


@triton.jit
def begun(x, w, first_row, first_column, K: tl.constexpr, LENGTH: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
          PDL: tl.constexpr, AHEAD: tl.constexpr):
    """The first BK columns of BN rows of w, asked for before waiting for the kernel before: they do not depend on it;
    and as many of the row x.

    `AHEAD` columns behind them come to L2 meanwhile.
    """
    k = first_column + tl.arange(0, BK)
    row = first_row + tl.arange(0, BN)
    if PDL == 1:
        gdc_launch_dependents()
    weights = tl.load(w + row[:, None] * K + k[None, :], eviction_policy="evict_first")
    if PDL:
        if AHEAD > 0 and LENGTH > BK:
            column = first_column + BK + tl.arange(0, AHEAD // 64) * 64
            prefetch(w + row[:, None] * K + tl.minimum(column, first_column + LENGTH - 1)[None, :])
        gdc_wait()
    return weights, tl.load(x + k)


@triton.jit
def summed(x, w, weights, inputs, first_row, first_column, K: tl.constexpr, LENGTH: tl.constexpr, BN: tl.constexpr,
           BK: tl.constexpr, STAGES: tl.constexpr):
    """`product` of a single row in `MODE` 2, with what `begun` gave."""
    k = first_column + tl.arange(0, BK)
    w_at = w + (first_row + tl.arange(0, BN))[:, None] * K + k[None, :]
    sums = weights.to(tl.float32) * inputs.to(tl.float32)[None, :]
    for at in tl.range(BK, LENGTH, BK, num_stages=STAGES):
        weights = tl.load(w_at + at, eviction_policy="evict_first")
        sums += weights.to(tl.float32) * tl.load(x + k + at).to(tl.float32)[None, :]
    return tl.sum(sums, 1)[None, :]


@triton.jit
def normed(x, w, stats, first, rows, D: tl.constexpr, TILES: tl.constexpr, TILES_UP: tl.constexpr, BM: tl.constexpr,
           BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, MODE: tl.constexpr, PDL: tl.constexpr,
           AHEAD: tl.constexpr):
    """Wait for the kernel before, multiply as `product` does over all D columns, let the next kernel start if it has
    not yet; and `normalised`, a single row's while its weights are still on their way."""
    if MODE == 2:
        weights, inputs = begun(x, w, first, 0, D, D, BN, BK, PDL, AHEAD)
        mean, scale = normalised(stats, rows, D, TILES, TILES_UP, BM)
        total = summed(x, w, weights, inputs, first, 0, D, D, BN, BK, STAGES)
        if PDL == 2:
            gdc_launch_dependents()
    else:
        follow(w, first, 0, D, BN, AHEAD, PDL)
        means, squares = of_parts(stats, rows, TILES, TILES_UP, BM)  # on their way meanwhile
        total = product(x, w, first, 0, rows, D, D, BM, BN, BK, STAGES, MODE)
        if PDL == 2:
            gdc_launch_dependents()
        mean, scale = of_whole(means, squares, rows, D, TILES, TILES_UP, BM)
    return total, mean, scale


@triton.jit
def gelu_tanh(x):
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), written as a sigmoid."""
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def of_parts(stats, rows, TILES: tl.constexpr, TILES_UP: tl.constexpr, BM: tl.constexpr):
    """Of rows [BM] the means of TILES equal parts [TILES_UP, BM], and the sums of squared distances from them.

    `stats` float32 [2, TILES, BM]: both of these.
    """
    t, m = tl.arange(0, TILES_UP), tl.arange(0, BM)
    there = (t < TILES)[:, None] & (m < rows)[None, :]
    means = tl.load(stats + t[:, None] * BM + m[None, :], mask=there, other=0.0, cache_modifier=".cg")
    squares = tl.load(stats + (TILES + t[:, None]) * BM + m[None, :], mask=there, other=0.0, cache_modifier=".cg")
    return means, squares


@triton.jit
def of_whole(means, squares, rows, D: tl.constexpr, TILES: tl.constexpr, TILES_UP: tl.constexpr, BM: tl.constexpr):
    """Mean and 1 / deviation of rows [BM] of D numbers, from those of their parts, in a fixed order (Chan, Golub,
    LeVeque 1979)."""
    t, m = tl.arange(0, TILES_UP), tl.arange(0, BM)
    there = (t < TILES)[:, None] & (m < rows)[None, :]
    mean = tl.sum(means, 0) / TILES
    away = tl.where(there, means - mean[None, :], 0.0)
    variance = (tl.sum(squares, 0) + (D // TILES) * tl.sum(away * away, 0)) / D
    return mean, tl.rsqrt(variance + 1e-5)


@triton.jit
def normalised(stats, rows, D: tl.constexpr, TILES: tl.constexpr, TILES_UP: tl.constexpr, BM: tl.constexpr):
    """`of_whole` of what `of_parts` loads."""
    means, squares = of_parts(stats, rows, TILES, TILES_UP, BM)
    return of_whole(means, squares, rows, D, TILES, TILES_UP, BM)
