"""Values on the GPU: `embed` puts them into a step's rows; `think`, `score` and `read` get them out of hidden states.

A tile of a head that no row wants is left alone. Scores are summed in fixed orders. Arguments as in `region.py`.
"""

import triton
import triton.language as tl

from gapless.kernels.triton.parts_jit import gelu_tanh, product

TAU = tl.constexpr(6.283185307179586)


@triton.jit
def phases(first, second, features, k, WIDE: tl.constexpr, TWO: tl.constexpr):
    """(2 pi values) @ features of the columns k, every step rounded to the features' dtype -> float32 [T, K]."""
    kind = features.dtype.element_ty
    turn = (first.to(kind).to(tl.float32) * TAU).to(kind).to(tl.float32)
    phase = turn[:, None] * tl.load(features + k).to(tl.float32)[None, :]
    if TWO:
        turn = (second.to(kind).to(tl.float32) * TAU).to(kind).to(tl.float32)
        phase += turn[:, None] * tl.load(features + WIDE + k).to(tl.float32)[None, :]
    return phase.to(kind).to(tl.float32)


@triton.jit
def encoded(first, second, features, w, bias, n, WIDE: tl.constexpr, TWO: tl.constexpr, BT: tl.constexpr,
            BN: tl.constexpr, BK: tl.constexpr):
    """Cosines and sines of values [BT] through BN outputs n of w [D, 2 WIDE] -> float32 [BT, BN]."""
    total = tl.zeros([BT, BN], tl.float32)
    for k0 in tl.static_range(0, WIDE, BK):
        k = k0 + tl.arange(0, BK)
        phase = phases(first, second, features, k, WIDE, TWO)
        at = w + n[:, None] * (2 * WIDE) + k[None, :]
        of_cos, of_sin = tl.load(at), tl.load(at + WIDE)
        total = tl.dot(tl.cos(phase).to(of_cos.dtype), tl.trans(of_cos), total, input_precision="ieee")
        total = tl.dot(tl.sin(phase).to(of_sin.dtype), tl.trans(of_sin), total, input_precision="ieee")
    return total + tl.load(bias + n).to(tl.float32)[None, :]


@triton.jit(do_not_specialize=["rows", "size_id"])
def embed(ids, values, words, coord, size, x, rows, size_id, D: tl.constexpr, COORD: tl.constexpr, SIZE: tl.constexpr,
          BT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """BN columns of BT rows of x [rows, D]; COORD and SIZE: features of either."""
    t, n = tl.program_id(0) * BT + tl.arange(0, BT), tl.program_id(1) * BN + tl.arange(0, BN)
    there = t < rows
    id = tl.load(ids + t, mask=there, other=0)
    first = tl.load(values + t * 2, mask=there, other=-1.0)
    second = tl.load(values + t * 2 + 1, mask=there, other=-1.0)
    given = there & (first >= 0)
    sized, placed = given & (id == size_id), given & (id != size_id)
    out = tl.load(words + id[:, None] * D + n[None, :], mask=(there & (first < 0))[:, None], other=0.0)
    if tl.max(placed.to(tl.int32), 0) > 0:
        features, w, bias = coord
        said = encoded(tl.where(placed, first, 0.0), first, features, w, bias, n, COORD, False, BT, BN, BK)
        out = tl.where(placed[:, None], said.to(out.dtype), out)
    if tl.max(sized.to(tl.int32), 0) > 0:
        features, w, bias = size
        one, two = tl.where(sized, first, 0.0), tl.where(sized, second, 0.0)
        said = encoded(one, two, features, w, bias, n, SIZE, True, BT, BN, BK)
        out = tl.where(sized[:, None], said.to(out.dtype), out)
    tl.store(x + t[:, None] * D + n[None, :], out, mask=there[:, None])


@triton.jit
def asked(wanted, head, rows, BM: tl.constexpr, ALL: tl.constexpr):
    """Whether any row wants a head."""
    if ALL:
        out = True
    else:
        m = tl.arange(0, BM)
        bits = tl.load(wanted + m, mask=m < rows, other=0)
        out = tl.max((bits >> head) & 1, 0) > 0
    return out


@triton.jit(do_not_specialize=["rows"])
def think(hidden, wanted, w, bias, inner, rows, D: tl.constexpr, FF: tl.constexpr, BM: tl.constexpr,
          BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, MODE: tl.constexpr, ALL: tl.constexpr):
    """hidden [rows, D], w [2 FF, D] -> inner [2, BM, FF] = gelu(fc1), of the heads that are wanted."""
    first = tl.program_id(0) * BN
    head = first // FF
    if asked(wanted, head, rows, BM, ALL):
        total = product(hidden, w, first, 0, rows, D, D, BM, BN, BK, STAGES, MODE)
        m, n = tl.arange(0, BM), first + tl.arange(0, BN)
        out = gelu_tanh((total + tl.load(bias + n).to(tl.float32)[None, :]).to(inner.dtype.element_ty).to(tl.float32))
        at = (head * BM + m[:, None]) * FF + (n - head * FF)[None, :]
        tl.store(inner + at, out.to(inner.dtype.element_ty), mask=(m < rows)[:, None] & (n >= 0)[None, :])


@triton.jit(do_not_specialize=["rows"])
def score(inner, wanted, w, bias, parts, arrived, scores, rows, FF: tl.constexpr, BINS: tl.constexpr,
          SPLITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
          MODE: tl.constexpr, ALL: tl.constexpr):
    """inner [2, BM, FF], w [3 BINS, FF] -> scores float32 [BM, 3 BINS]: of a coordinate, of both sizes."""
    OUT: tl.constexpr = 3 * BINS
    tile = tl.program_id(0) // SPLITS
    part = tl.program_id(0) % SPLITS
    first = tile * BN
    head = tl.minimum(first // BINS, 1)
    if asked(wanted, head, rows, BM, ALL):
        of = inner + head * BM * FF
        total = product(of, w, first, part * (FF // SPLITS), rows, FF, FF // SPLITS, BM, BN, BK, STAGES, MODE)
        m, n = tl.arange(0, BM), first + tl.arange(0, BN)
        real = (m < rows)[:, None] & (n >= 0)[None, :]
        at = m[:, None] * OUT + n[None, :]
        last = True
        if SPLITS > 1:
            tl.store(parts + part * (BM * OUT) + at, total, mask=real)
            tl.debug_barrier()
            last = tl.atomic_add(arrived + tile, 1, sem="acq_rel") == SPLITS - 1
        if last:
            if SPLITS > 1:
                total = tl.zeros([BM, BN], tl.float32)
                for i in tl.static_range(SPLITS):
                    total += tl.load(parts + i * (BM * OUT) + at, mask=real, other=0.0, cache_modifier=".cg")
                tl.store(arrived + tile, 0)
            tl.store(scores + at, total + tl.load(bias + n).to(tl.float32)[None, :], mask=real)


@triton.jit
def read(scores, wanted, of_coord, of_size, coords, sizes, BINS: tl.constexpr, ALL: tl.constexpr):
    """One of a row's three numbers: what its likeliest bin says, the first of equal ones; 0 if it is not wanted."""
    row, number = tl.program_id(0), tl.program_id(1)
    bin = tl.arange(0, BINS)
    wish = True
    if not ALL:
        wish = ((tl.load(wanted + row) >> tl.minimum(number, 1)) & 1) != 0
    most = tl.where(wish, BINS, 0)
    score = tl.load(scores + (row * 3 + number) * BINS + bin, mask=bin < most, other=0.0)
    found = tl.min(tl.where(score == tl.max(score, 0), bin, BINS - 1), 0)
    if number == 0:
        tl.store(coords + row, tl.where(wish, tl.load(of_coord + found), 0.0))
    else:
        tl.store(sizes + row * 2 + number - 1, tl.where(wish, tl.load(of_size + found), 0.0))
