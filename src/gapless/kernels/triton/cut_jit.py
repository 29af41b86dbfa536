"""A token in four numbers of FP8 each, so that it meets weights in FP8 without either being widened.

An e5m2 is the upper byte of a float16: three significant bits. So x / 16 is cut into its first three, the next three
times 8, the next times 64 and the last times 512: bfloat16 and float16 come out exactly as they went in from 2^-11 on,
and what is less is off by at most 2^-21. From 2^20 on there is no such number, and NaN in its place, as for NaN.
"""

import triton
import triton.language as tl

CUTS = tl.constexpr(4)
"""Numbers a token's element is cut into."""


@triton.jit
def cut(x, at: tl.constexpr):
    """Number `at` of x float32."""
    left = x * 0.0625
    for _ in tl.static_range(at):
        left = (left - upper(left).to(tl.float16, bitcast=True).to(tl.float32)) * 8.0
    return (upper(left) >> 8).to(tl.int8).to(tl.float8e5, bitcast=True)


@triton.jit
def upper(x):
    """x float32 as a float16's bits, of which the lower byte is zero."""
    return x.to(tl.float16).to(tl.int16, bitcast=True) & -256


@triton.jit
def put(cuts, x, row, column, real, width: tl.constexpr):
    """x float32, elements `column` of `row` where `real`, -> cuts e5m2 [rows, CUTS, width]."""
    for i in tl.static_range(CUTS):
        tl.store(cuts + (row * CUTS + i) * width + column, cut(x, i), mask=real)


@triton.jit
def whole(sums, lines: tl.constexpr, rows: tl.constexpr):
    """sums [lines, rows * CUTS], products with what tokens were cut into, -> [lines, rows], with the tokens."""
    i = tl.arange(0, rows * CUTS) % CUTS
    by = tl.where(i == 0, 16.0, tl.where(i == 1, 2.0, tl.where(i == 2, 0.25, 0.03125)))
    return tl.sum(tl.reshape(sums * by[None, :], (lines, rows, CUTS)), 2)
