"""The kernels of prompts: tokens of several sequences in one matrix, over pages.

A run is a piece of one sequence: `count` tokens from row `first` of the matrix on, at positions from `position` on. Its
six numbers lie in `runs` int32 [R, 6]: first, count, position, base, source, row. `row` is that of its page table; but
positions of the page in which `base` lies that come before `base` are in the page `source` instead: a picture's block
that does not end with a page, before the sequence has a copy of that page. `sees` int32 [T] says how many positions a
token sees: its own and all before it, or all to the end of the picture it is part of. What a token sees was written
before, or is written by `place` in the same layer.

Every number of an output is written by one program, and sums run in one order. Tokens that are no run's, which fill up
a matrix, write no page and are seen by none.
"""

import triton
import triton.language as tl

from gapless.kernels.triton.kept_jit import kept, plain
from gapless.kernels.triton.parts_jit import gelu_tanh


@triton.jit
def norm(x, n, weight, shift, bias, D: tl.constexpr, WIDE: tl.constexpr, BIASED: tl.constexpr):
    """Row `program_id` of x [T, D] -> its LayerNorm in n; then x gets the bias of what is added to it next."""
    at, d = tl.program_id(0).to(tl.int64) * D, tl.arange(0, WIDE)
    there = d < D
    numbers = tl.load(x + at + d, mask=there, other=0.0).to(tl.float32)
    away = tl.where(there, numbers - tl.sum(numbers, 0) / D, 0.0)
    scale = tl.rsqrt(tl.sum(away * away, 0) / D + 1e-5)
    gain = tl.load(weight + d, mask=there, other=0.0).to(tl.float32)
    normed = away * scale * gain + tl.load(shift + d, mask=there, other=0.0).to(tl.float32)
    tl.store(n + at + d, normed.to(n.dtype.element_ty), mask=there)
    if BIASED:
        moved = numbers + tl.load(bias + d, mask=there, other=0.0).to(tl.float32)
        tl.store(x + at + d, moved.to(x.dtype.element_ty), mask=there)


@triton.jit
def cells(table, t, there, base, source, own, H: tl.constexpr, PAGE: tl.constexpr, WIDE: tl.constexpr):
    """Where a head's numbers of positions t begin in a layer's keys or values [pages, H, PAGE, WIDE]."""
    page = tl.load(table + t // PAGE, mask=there, other=0).to(tl.int64)
    lead = (t >= base // PAGE * PAGE) & (t < base)
    return ((tl.where(lead, source.to(tl.int64), page) * H + own) * PAGE + t % PAGE) * WIDE


@triton.jit
def turned(at, d, t, there, cos, sin, ROTARY: tl.constexpr):
    """Heads of tokens at `at` [N], their first ROTARY numbers turned by rows t [N] of the tables: float32 [N, D]."""
    HALF: tl.constexpr = ROTARY // 2
    partner = tl.where(d < HALF, d + HALF, tl.where(d < ROTARY, d - HALF, d))
    turns = there[:, None] & (d < ROTARY)[None, :]
    c = tl.load(cos + t[:, None] * ROTARY + d[None, :], mask=turns, other=1.0)
    s = tl.load(sin + t[:, None] * ROTARY + d[None, :], mask=turns, other=0.0)
    straight = tl.load(at[:, None] + d[None, :], mask=there[:, None], other=0.0).to(tl.float32)
    swapped = tl.load(at[:, None] + partner[None, :], mask=turns, other=0.0).to(tl.float32)
    return straight * c + swapped * s


@triton.jit
def stretch(said, levels, token, t, there, own, part, H: tl.constexpr):
    """By how much a head's queries (part 0) or values (1) are scaled: tanh of what the token says, plus its level."""
    told = tl.load(said + token * (2 * H) + part * H + own, mask=there, other=0.0).to(tl.float32)
    level = tl.load(levels + t * H + own, mask=there, other=0.0).to(tl.float32)
    return 2.0 * tl.sigmoid(2.0 * told) - 1.0 + level


@triton.jit(do_not_specialize=["tokens", "entries"])
def place(up, keys, values, runs, of, tables, cos, sin, said, levels, inner, tokens, entries, D: tl.constexpr,
          FF: tl.constexpr, UP: tl.constexpr, INNER: tl.constexpr, H: tl.constexpr, ROTARY: tl.constexpr,
          PAGE: tl.constexpr, SCALED: tl.constexpr, BT: tl.constexpr, BF: tl.constexpr, scales=None):
    """up [T, UP], of which 3 D are queries, keys and values -> keys, turned, and values, scaled, into their pages, and
    back to where they were. With `scales` float32 [2, H] both are kept in FP8, and what goes back is what is kept.

    Behind those, if FF > 0, what feeds the feed-forward -> its GELU in inner [T, INNER], behind D numbers. `of` int32
    [T]: each token's run, -1 for none. Programs along the second axis: H heads, then FF / BF parts.
    """
    WIDE: tl.constexpr = D // H
    token = tl.program_id(0) * BT + tl.arange(0, BT)
    own = tl.program_id(1)
    real = token < tokens
    row = token.to(tl.int64)
    if own < H:
        run = tl.load(of + token, mask=real, other=-1)
        there = run >= 0
        mine = runs + run * 6
        t = tl.load(mine + 2, mask=there, other=0) + token - tl.load(mine, mask=there, other=0)
        base, source = tl.load(mine + 3, mask=there, other=0), tl.load(mine + 4, mask=there, other=0)
        table = tables + tl.load(mine + 5, mask=there, other=0).to(tl.int64) * entries
        d = tl.arange(0, WIDE)
        to = cells(table, t, there, base, source, own, H, PAGE, WIDE)
        at = up + row * UP + own * WIDE
        k = kept(turned(at + D, d, t, there, cos, sin, ROTARY), scales, own, up.dtype.element_ty)
        tl.debug_barrier()  # all have read what is overwritten
        tl.store(keys + to[:, None] + d[None, :], k, mask=there[:, None])
        tl.store((at + D)[:, None] + d[None, :], plain(k, up.dtype.element_ty), mask=there[:, None])
        v = tl.load((at + 2 * D)[:, None] + d[None, :], mask=there[:, None], other=0.0)
        if SCALED:
            by = stretch(said, levels, row, t, there, own, 1, H)
            v = (v.to(tl.float32) * by[:, None]).to(up.dtype.element_ty)
        if scales is not None:
            v = kept(v, scales, H + own, up.dtype.element_ty)
            tl.debug_barrier()
        if SCALED or scales is not None:
            tl.store((at + 2 * D)[:, None] + d[None, :], plain(v, up.dtype.element_ty), mask=there[:, None])
        tl.store(values + to[:, None] + d[None, :], v, mask=there[:, None])
    else:
        f = (own - H) * BF + tl.arange(0, BF)
        fed = tl.load(up + row[:, None] * UP + 3 * D + f[None, :], mask=real[:, None], other=0.0)
        thought = gelu_tanh(fed.to(tl.float32)).to(inner.dtype.element_ty)
        tl.store(inner + row[:, None] * INNER + D + f[None, :], thought, mask=real[:, None])


@triton.jit
def joined(q, k, v, seen, best, weight, total, factor, HIDES: tl.constexpr):
    """The running softmax of queries [BM, WIDE] with BN more keys and values. `HIDES`: those that are not seen."""
    score = tl.dot(q, tl.trans(k), input_precision="ieee")
    if HIDES:
        score = tl.where(seen, score, -1e30)
    now = tl.maximum(best, tl.max(score, 1))
    p = tl.exp2(score * factor - (now * factor)[:, None])
    fade = tl.exp2((best - now) * factor)
    weight = weight * fade + tl.sum(p, 1)
    total = tl.dot(p.to(v.dtype), v, total * fade[:, None], input_precision="ieee")
    return now, weight, total


@triton.jit
def earlier(q, keys, values, table, base, source, own, end, best, weight, total, factor, H: tl.constexpr,
            PAGE: tl.constexpr, WIDE: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr):
    """What all queries see in pages: positions 0..end - 1, BN at a time."""
    d = tl.arange(0, WIDE)
    for start in tl.range(0, end, BN, num_stages=STAGES):
        t = start + tl.arange(0, BN)
        there = t < end
        at = cells(table, t, there, base, source, own, H, PAGE, WIDE)
        k = plain(tl.load(keys + at[:, None] + d[None, :], mask=there[:, None], other=0), q.dtype)
        v = plain(tl.load(values + at[:, None] + d[None, :], mask=there[:, None], other=0), q.dtype)
        best, weight, total = joined(q, k, v, there[None, :], best, weight, total, factor, True)
    return best, weight, total


@triton.jit
def fresh(q, up, described, first, column, see, begin, end, best, weight, total, factor, D: tl.constexpr,
          UP: tl.constexpr, WIDE: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, HIDES: tl.constexpr,
          BULK: tl.constexpr):
    """What queries see of their own run: its tokens begin..end - 1, BN at a time. `HIDES`: some queries see fewer of
    them, and the last tile may not be whole; else they see all. `BULK`: tiles come by tensor descriptor."""
    d = column + tl.arange(0, WIDE)
    for start in tl.range(begin, end, BN, num_stages=STAGES):
        t = start + tl.arange(0, BN)
        there = (t < end)[:, None]
        if BULK:
            k = described.load([first + start, D + column])
            v = described.load([first + start, 2 * D + column])
            if HIDES:
                v = tl.where(there, v, 0.0)
        else:
            at = up + (first + t).to(tl.int64)[:, None] * UP + d[None, :]
            if HIDES:
                k = tl.load(at + D, mask=there, other=0.0)
                v = tl.load(at + 2 * D, mask=there, other=0.0)
            else:
                k = tl.load(at + D)
                v = tl.load(at + 2 * D)
        seen = t[None, :] < see[:, None]
        best, weight, total = joined(q, k, v, seen, best, weight, total, factor, HIDES)
    return best, weight, total


@triton.jit(do_not_specialize=["entries"])
def attend(up, described, keys, values, runs, tiles, sees, tables, cos, sin, said, levels, inner, entries, factor,
           D: tl.constexpr, UP: tl.constexpr, INNER: tl.constexpr, H: tl.constexpr, ROTARY: tl.constexpr,
           PAGE: tl.constexpr, SCALED: tl.constexpr, LAST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
           STAGES: tl.constexpr, BULK: tl.constexpr, scales=None):
    """up [T, UP], whose first 3 D are queries and what `place` made of keys and values -> what the queries see, in the
    first D of inner [T, INNER].

    `tiles` int32 [N, 2]: a run, -1 for none, and how many of its tokens come before the tile's. `LAST`: tiles are the
    last token of each run instead. `factor`: by which scores are multiplied, as a power of two's exponent.
    """
    WIDE: tl.constexpr = D // H
    tile, own = tl.program_id(0), tl.program_id(1)
    if LAST:
        run = tile
    else:
        run = tl.load(tiles + 2 * tile)
    mine = runs + run * 6
    there = run >= 0
    count = tl.load(mine + 1, mask=there, other=0)
    if count == 0:
        return
    if LAST:
        skipped = count - 1
    else:
        skipped = tl.load(tiles + 2 * tile + 1)
    first, position = tl.load(mine), tl.load(mine + 2)
    place = skipped + tl.arange(0, BM)
    there = place < count
    token = (first + place).to(tl.int64)
    d = tl.arange(0, WIDE)
    q = turned(up + token * UP + own * WIDE, d, position + place, there, cos, sin, ROTARY)
    if SCALED:
        q = q * stretch(said, levels, token, position + place, there, own, 0, H)[:, None]
    if scales is not None:  # keys and values are as they are kept, in `up` too
        q *= tl.load(scales + own)
    q = q.to(up.dtype.element_ty)
    see = tl.load(sees + token, mask=there, other=0)
    best = tl.full([BM], -1e30, tl.float32)
    weight = tl.zeros([BM], tl.float32)
    total = tl.zeros([BM, WIDE], tl.float32)
    if position > 0:
        base, source = tl.load(mine + 3), tl.load(mine + 4)
        table = tables + tl.load(mine + 5).to(tl.int64) * entries
        best, weight, total = earlier(q, keys, values, table, base, source, own, position, best, weight, total, factor,
                                      H, PAGE, WIDE, BN, STAGES)
    see -= position
    end = tl.max(see, 0)
    clear = tl.min(tl.where(there, see, end), 0) // BN * BN
    best, weight, total = fresh(q, up, described, first, own * WIDE, see, 0, clear, best, weight, total, factor, D, UP,
                                WIDE, BN, STAGES, False, BULK)
    best, weight, total = fresh(q, up, described, first, own * WIDE, see, clear, end, best, weight, total, factor, D,
                                UP, WIDE, BN, STAGES, True, BULK)
    if scales is not None:
        total *= tl.load(scales + H + own)
    to = inner + token[:, None] * INNER + own * WIDE + d[None, :]
    tl.store(to, (total / weight[:, None]).to(inner.dtype.element_ty), mask=there[:, None])


@triton.jit
def tails(keys, values, runs, tables, layers, pages, entries, H: tl.constexpr, PAGE: tl.constexpr, WIDE: tl.constexpr):
    """Each run's own copy of what is in `source` for it, all heads of one layer a program: grid (R, layers)."""
    mine = runs + tl.program_id(0) * 6
    base, source = tl.load(mine + 3), tl.load(mine + 4).to(tl.int64)
    if base % PAGE == 0:
        return
    target = tl.load(tables + tl.load(mine + 5).to(tl.int64) * entries + base // PAGE).to(tl.int64)
    layer = tl.program_id(1).to(tl.int64) * pages
    offset = tl.arange(0, PAGE)[:, None]
    d = tl.arange(0, WIDE)[None, :]
    there = (offset < base % PAGE) & (d >= 0)
    for head in range(H):
        at = (head * PAGE + offset) * WIDE + d
        since, to = (layer + source) * (H * PAGE * WIDE) + at, (layer + target) * (H * PAGE * WIDE) + at
        tl.store(keys + to, tl.load(keys + since, mask=there), mask=there)
        tl.store(values + to, tl.load(values + since, mask=there), mask=there)
