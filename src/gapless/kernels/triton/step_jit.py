"""The kernels of a dense decode step: entry once, then three a layer (up, scan, down), then the head.

Let x be the residual [B, D] in float32 with a copy in the weights' dtype, and n its LayerNorm. A layer is
`x + proj(attention(qkv n)) + fc2(gelu(fc1 n))`:

- `up`: n [W_qkv; W_fc1]^T. The norm is folded: with W' = W gamma, b' = b + W beta,
  n W^T + b = (x W'^T - mean * rowsum(W')) / deviation + b', so the product reads the raw x, and mean and deviation
  enter behind it;
- `scan`: rotates, writes K and V, attends over the pages, in `SPLITS` parts of which the last to arrive combines all;
- `down`: [attention | gelu] [W_proj | W_fc2]^T, the residual, and statistics of the new one, tile by tile.

Sums run in fixed orders: a part of a sum that arrives late changes who adds, never in which order. Grids follow from
shapes alone; lengths are read on the device. Inputs and outputs are described in `decode.py`, which owns the memory.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gapless.kernels.triton.adapters_jit import (
    begun_inputs,
    begun_outputs,
    narrow_inner,
    narrow_inputs,
    outputs,
    told,
    with_inputs,
)
from gapless.kernels.triton.kept_jit import kept, unit, wide
from gapless.kernels.triton.parts_jit import begun, follow, gelu_tanh, normed, prefetch, product, summed


@triton.jit
def entry(given, x, x32, stats, D: tl.constexpr, TILES: tl.constexpr, TILES_UP: tl.constexpr, BM: tl.constexpr,
          PDL: tl.constexpr):
    """Row `program_id` of what is given [B, D] -> its copy x, the residual x32, and statistics of TILES parts."""
    row = tl.program_id(0)
    if PDL:
        gdc_wait()  # first: what starts from here on may read all that was there before this step
        gdc_launch_dependents()
    WIDE: tl.constexpr = D // TILES
    t = tl.arange(0, TILES_UP)
    at = t[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
    there = (t < TILES)[:, None] & (at >= 0)
    numbers = tl.load(given + row * D + at, mask=there, other=0.0)
    tl.store(x + row * D + at, numbers, mask=there)
    numbers = numbers.to(tl.float32)
    tl.store(x32 + row * D + at, numbers, mask=there)
    mean = tl.sum(numbers, 1) / WIDE
    away = tl.where(there, numbers - mean[:, None], 0.0)
    tl.store(stats + t * BM + row, mean, mask=t < TILES)
    tl.store(stats + (TILES + t) * BM + row, tl.sum(away * away, 1), mask=t < TILES)


@triton.jit(do_not_specialize=["rows"])
def up(x, stats, w, bias, sums, qkv, inner, rows, lora, D: tl.constexpr, FF: tl.constexpr, TILES: tl.constexpr,
       TILES_UP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
       MODE: tl.constexpr, PDL: tl.constexpr, AHEAD: tl.constexpr, LEAD: tl.constexpr = 0, RANK: tl.constexpr = 0,
       RANK_UP: tl.constexpr = 0, MOST: tl.constexpr = 0, TOGETHER: tl.constexpr = 0, SHARES: tl.constexpr = 0,
       AWAITED: tl.constexpr = 0):
    """x [BM, D] -> qkv [BM, 3 D] and, behind D columns for attention, gelu(fc1) in inner [BM, D + FF]."""
    if LEAD > 0:
        if tl.program_id(0) < LEAD:
            narrow_inputs(x, stats, rows, lora, D, RANK, RANK_UP, MOST, LEAD, SHARES, TOGETHER, TILES,
                          TILES_UP, BM, PDL)
            return
    first = (tl.program_id(0) - LEAD) * BN
    if LEAD > 0:
        plan = told(lora, rows, BM, MOST, TOGETHER)
        b = begun_inputs(plan, lora, first, D, RANK, TOGETHER, BN)
    m, n = tl.arange(0, BM), first + tl.arange(0, BN)
    if MODE != 2:
        whole, shift = tl.load(sums + n), tl.load(bias + n)
    total, mean, scale = normed(x, w, stats, first, rows, D, TILES, TILES_UP, BM, BN, BK, STAGES, MODE, PDL, AHEAD)
    if MODE == 2:
        whole, shift = tl.load(sums + n), tl.load(bias + n)
    out = scale[:, None] * (total - mean[:, None] * whole[None, :]) + shift[None, :]
    if LEAD > 0:
        out = with_inputs(out, b, plan, lora, first, D, RANK, MOST, TOGETHER, BM, BN, MODE, AWAITED)
    real = (m < rows)[:, None] & (n >= 0)[None, :]
    if first < 3 * D:
        tl.store(qkv + m[:, None] * (3 * D) + n[None, :], out.to(qkv.dtype.element_ty), mask=real)
    else:
        at = m[:, None] * (D + FF) + (n - 2 * D)[None, :]
        tl.store(inner + at, gelu_tanh(out).to(inner.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=["rows"])
def head(x, stats, w, bias, sums, logits, rows, D: tl.constexpr, VOCAB: tl.constexpr, TILES: tl.constexpr,
         TILES_UP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
         MODE: tl.constexpr, PDL: tl.constexpr, AHEAD: tl.constexpr):
    """x [BM, D] -> logits float32 [rows, VOCAB]: the last norm, folded as in `up`, and the head."""
    first = tl.program_id(0) * BN
    m, n = tl.arange(0, BM), first + tl.arange(0, BN)
    if MODE != 2:
        whole, shift = tl.load(sums + n), tl.load(bias + n)
    total, mean, scale = normed(x, w, stats, first, rows, D, TILES, TILES_UP, BM, BN, BK, STAGES, MODE, PDL, AHEAD)
    if MODE == 2:
        whole, shift = tl.load(sums + n), tl.load(bias + n)
    out = scale[:, None] * (total - mean[:, None] * whole[None, :]) + shift[None, :]
    tl.store(logits + m[:, None] * VOCAB + n[None, :], out, mask=(m < rows)[:, None] & (n >= 0)[None, :])


@triton.jit
def rotated(at, d, cos, sin, position, ROTARY: tl.constexpr):
    """A head's numbers at `at`, its first ROTARY turned by the position's row of the tables, in float32."""
    HALF: tl.constexpr = ROTARY // 2
    partner = tl.where(d < HALF, d + HALF, tl.where(d < ROTARY, d - HALF, d))
    turns = d < ROTARY
    c = tl.load(cos + position * ROTARY + d, mask=turns, other=1.0)
    s = tl.load(sin + position * ROTARY + d, mask=turns, other=0.0)
    return tl.load(at + d).to(tl.float32) * c + tl.load(at + partner).to(tl.float32) * s


@triton.jit
def joined(best, weight, total, score, v):
    """A running softmax (its largest score, weights, weighted values) with one more score and its values."""
    now = tl.maximum(best, score)
    fade, p = tl.exp(best - now), tl.exp(score - now)
    return now, weight * fade + p, total * fade + p * v


@triton.jit
def tokens(keys, values, table, own, first, end, H: tl.constexpr, PAGE: tl.constexpr, WIDE: tl.constexpr,
           BT: tl.constexpr):
    """Keys and values [BT, WIDE] of one head from position `first` on, and which of them are before `end`."""
    t, d = first + tl.arange(0, BT), tl.arange(0, WIDE)
    there = t < end
    page = tl.load(table + t // PAGE, mask=there, other=0).to(tl.int64)
    at = ((page * H + own) * PAGE + t % PAGE) * WIDE
    k = tl.load(keys + at[:, None] + d[None, :], mask=there[:, None], other=0, eviction_policy="evict_first")
    v = tl.load(values + at[:, None] + d[None, :], mask=there[:, None], other=0, eviction_policy="evict_first")
    return k, v, there


@triton.jit
def coming(keys, values, table, own, begin, end, H: tl.constexpr, PAGE: tl.constexpr, WIDE: tl.constexpr,
           SOON: tl.constexpr):
    """Ask for the first SOON keys and values of one head from position `begin` on: they do not depend on who came just
    before."""
    t = tl.maximum(tl.minimum(begin + tl.arange(0, SOON), end - 1), 0)
    page = tl.load(table + t // PAGE).to(tl.int64)
    at = ((page * H + own) * PAGE + t % PAGE) * WIDE
    prefetch(keys + at)
    prefetch(values + at)


@triton.jit
def taken(best, weight, total, q, k, v, there):
    """A running softmax with these keys and values in it too."""
    score = tl.where(there, tl.sum(wide(k) * q[None, :], 1), -1e30)
    now = tl.maximum(best, tl.max(score, 0))
    p = tl.where(there, tl.exp(score - now), 0.0)
    fade = tl.exp(best - now)
    return now, weight * fade + tl.sum(p, 0), total * fade + tl.sum(p[:, None] * wide(v), 0)


@triton.jit
def nothing(WIDE: tl.constexpr):
    """A running softmax before its first score: the largest one, weights, weighted values."""
    return tl.full([1], -1e30, tl.float32), tl.zeros([1], tl.float32), tl.zeros([WIDE], tl.float32)


@triton.jit
def gone_on(best, weight, total, q, keys, values, table, own, begin, end, H: tl.constexpr, PAGE: tl.constexpr,
            WIDE: tl.constexpr, BT: tl.constexpr, STAGES: tl.constexpr):
    """A running softmax of one head with positions begin..end-1 in it too, BT at a time."""
    for first in tl.range(begin, end, BT, num_stages=STAGES):
        k, v, there = tokens(keys, values, table, own, first, end, H, PAGE, WIDE, BT)
        best, weight, total = taken(best, weight, total, q, k, v, there)
    return best, weight, total


@triton.jit
def seen(q, keys, values, table, own, begin, end, H: tl.constexpr, PAGE: tl.constexpr, WIDE: tl.constexpr,
         BT: tl.constexpr, STAGES: tl.constexpr):
    """The running softmax of one head over positions begin..end-1, BT at a time."""
    best, weight, total = nothing(WIDE)
    return gone_on(best, weight, total, q, keys, values, table, own, begin, end, H, PAGE, WIDE, BT, STAGES)


@triton.jit
def combined(parts, arrived, out, pair, part, best, weight, total, WIDE: tl.constexpr, SPLITS: tl.constexpr):
    """Leave one part of a softmax; the last to arrive writes what all say together, in the order of the parts."""
    d = tl.arange(0, WIDE)
    place = parts + (pair * SPLITS + part) * (WIDE + 2)
    tl.store(place + d, total)
    tl.store(place + WIDE + tl.arange(0, 1), best)
    tl.store(place + WIDE + 1 + tl.arange(0, 1), weight)
    tl.debug_barrier()
    before = tl.atomic_add(arrived + pair, 1, sem="acq_rel")
    if before == SPLITS - 1:
        places = parts + (pair * SPLITS + tl.arange(0, SPLITS)) * (WIDE + 2)
        bests = tl.load(places + WIDE, cache_modifier=".cg")
        weights = tl.load(places + WIDE + 1, cache_modifier=".cg")
        totals = tl.load(places[:, None] + d[None, :], cache_modifier=".cg")
        fades = tl.exp(bests - tl.max(bests, 0))
        whole = tl.sum(fades[:, None] * totals, 0) / tl.sum(fades * weights, 0)
        tl.store(out + d, whole.to(out.dtype.element_ty))
        tl.store(arrived + pair, 0)


@triton.jit(do_not_specialize=["columns"])
def scan(qkv, keys, values, tables, positions, cos, sin, inner, parts, arrived, columns, scale, lora, D: tl.constexpr,
         FF: tl.constexpr, H: tl.constexpr, ROTARY: tl.constexpr, PAGE: tl.constexpr, SPLITS: tl.constexpr,
         BT: tl.constexpr, STAGES: tl.constexpr, SOON: tl.constexpr, PDL: tl.constexpr, LEAD: tl.constexpr = 0,
         RANK: tl.constexpr = 0, MOST: tl.constexpr = 0, CHUNKS: tl.constexpr = 0, BM: tl.constexpr = 0,
         DEEP: tl.constexpr = 0, scales=None):
    """One head of one row over part of its context -> inner [B, :D], and the new key and value into their page.

    `scales` float32 [2, H] if those are kept in FP8.
    """
    WIDE: tl.constexpr = D // H
    if LEAD > 0:
        if tl.program_id(0) < LEAD:
            narrow_inner(inner, lora, D, FF, RANK, MOST, LEAD, CHUNKS, BM, DEEP, PDL)
            return
    pair = (tl.program_id(0) - LEAD) // SPLITS
    part = (tl.program_id(0) - LEAD) % SPLITS
    row, own = pair // H, pair % H
    d = tl.arange(0, WIDE)
    mine, table = qkv + row * (3 * D) + own * WIDE, tables + row * columns
    position = tl.load(positions + row).to(tl.int32)
    share = ((position + SPLITS * 16 - 1) // (SPLITS * 16)) * 16
    begin = part * share
    end = tl.minimum(begin + share, position)
    best, weight, total = nothing(WIDE)
    if scales is not None:
        scale *= unit(scales, own)
    if PDL == 1:  # what earlier steps wrote is read while the kernel before ends
        gdc_launch_dependents()
        k, v, there = tokens(keys, values, table, own, begin, end, H, PAGE, WIDE, BT)
        gdc_wait()
        q = rotated(mine, d, cos, sin, position, ROTARY) * scale
        best, weight, total = taken(best, weight, total, q, k, v, there)
        begin += BT
    else:
        if SOON > 0:
            coming(keys, values, table, own, begin, end, H, PAGE, WIDE, SOON)
        if PDL:
            gdc_wait()
        q = rotated(mine, d, cos, sin, position, ROTARY) * scale
    best, weight, total = gone_on(
        best, weight, total, q, keys, values, table, own, begin, end, H, PAGE, WIDE, BT, STAGES
    )
    if PDL == 2:
        gdc_launch_dependents()
    if part == SPLITS - 1:
        new_k = kept(rotated(mine + D, d, cos, sin, position, ROTARY), scales, own, qkv.dtype.element_ty)
        new_v = kept(tl.load(mine + 2 * D + d), scales, H + own, qkv.dtype.element_ty)
        page = tl.load(table + position // PAGE).to(tl.int64)
        at = ((page * H + own) * PAGE + position % PAGE) * WIDE
        tl.store(keys + at + d, new_k)
        tl.store(values + at + d, new_v)
        score = tl.sum(wide(new_k) * q, 0)
        best, weight, total = joined(best, weight, total, score, wide(new_v))
    if scales is not None:
        total *= unit(scales, H + own)
    out = inner + row * (D + FF) + own * WIDE
    if SPLITS == 1:
        tl.store(out + d, (total / weight).to(inner.dtype.element_ty))
    else:
        combined(parts, arrived, out, pair, part, best, weight, total, WIDE, SPLITS)


@triton.jit(do_not_specialize=["rows"])
def down(inner, w, bias, x32, x, stats, parts, arrived, rows, lora, D: tl.constexpr, FF: tl.constexpr,
         SPLITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
         MODE: tl.constexpr, PDL: tl.constexpr, AHEAD: tl.constexpr, RANK: tl.constexpr = 0, MOST: tl.constexpr = 0,
         TOGETHER: tl.constexpr = 0):
    """inner [BM, D + FF] and the residual x32 [BM, D] -> the new x32, its copy x, and its statistics by tile of BN."""
    K: tl.constexpr = D + FF
    tile = tl.program_id(0) // SPLITS
    part = tl.program_id(0) % SPLITS
    first = tile * BN
    if RANK > 0:
        plan = told(lora, rows, BM, MOST, TOGETHER)
        b = begun_outputs(plan, lora, first, part, RANK, TOGETHER, SPLITS, BN)
    column = part * (K // SPLITS)
    if MODE == 2:
        weights, inputs = begun(inner, w, first, column, K, K // SPLITS, BN, BK, PDL, AHEAD)
    else:
        follow(w, first, column, K, BN, AHEAD, PDL)
    if RANK > 0:
        more = outputs(b, plan, lora, first, part, RANK, MOST, TOGETHER, SPLITS, BM, BN, MODE)
    if MODE == 2:
        total = summed(inner, w, weights, inputs, first, column, K, K // SPLITS, BN, BK, STAGES)
    else:
        total = product(inner, w, first, column, rows, K, K // SPLITS, BM, BN, BK, STAGES, MODE)
    if PDL == 2:
        gdc_launch_dependents()
    m, n = tl.arange(0, BM), first + tl.arange(0, BN)
    real = (m < rows)[:, None] & (n >= 0)[None, :]
    at = m[:, None] * D + n[None, :]
    if RANK > 0:
        total = tl.where((plan[3] != 0)[:, None], total + more, total)
    last = True
    if SPLITS > 1:
        tl.store(parts + part * (BM * D) + at, total, mask=real)
        tl.debug_barrier()
        last = tl.atomic_add(arrived + tile, 1, sem="acq_rel") == SPLITS - 1
    if last:
        if SPLITS > 1:
            total = tl.zeros([BM, BN], tl.float32)
            for i in tl.static_range(SPLITS):
                total += tl.load(parts + i * (BM * D) + at, mask=real, other=0.0, cache_modifier=".cg")
            tl.store(arrived + tile, 0)
        new = total + tl.load(bias + n)[None, :] + tl.load(x32 + at, mask=real, other=0.0, cache_modifier=".cg")
        tl.store(x32 + at, new, mask=real)
        tl.store(x + at, new.to(x.dtype.element_ty), mask=real)
        mean = tl.sum(new, 1) / BN
        away = new - mean[:, None]
        TILES: tl.constexpr = D // BN
        tl.store(stats + tile * BM + m, mean, mask=m < rows)
        tl.store(stats + (TILES + tile) * BM + m, tl.sum(away * away, 1), mask=m < rows)
