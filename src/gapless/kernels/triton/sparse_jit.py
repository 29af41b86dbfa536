"""The kernels of a decode step with scaled attention and experts, for two rows or more.

Let x be the residual [B, D] in float32, and n its LayerNorm in the weights' dtype. `begin` makes both of what is given;
then a layer is

- `up`: n [W_qkv; W_router or W_fc1]^T. Behind a tile of qkv comes its share of what `tau` asks: gelu(qkv) times the
  tile's columns of the scaling's weights, [B, 2 H], which `scan` sums up in the order of the tiles;
- `scan`: scales and rotates, writes K and V, attends. Its first programs, one an expert, find who chose the expert;
- `experts_up`: each chosen expert's matrices once, and the gate;
- `experts_down`: the same, and beside them the tiles of proj. In dense layers `dense_down` does [proj | fc2];
- `close`: sums all parts in a fixed order, one program a row, and norms the row for the next layer.

Grids follow from shapes alone; lengths and choices are read on the device. Every element is written by one program, or
by several with the same number. Inputs and outputs are described in `sparse.py`, which owns the memory.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gapless.kernels.triton.cut_jit import put
from gapless.kernels.triton.experts_jit import added, columns_of, lines_of, nothing, widened
from gapless.kernels.triton.kept_jit import kept, unit, wide
from gapless.kernels.triton.parts_jit import follow, gelu_tanh, product
from gapless.kernels.triton.step_jit import combined, joined, rotated, seen


@triton.jit
def wait(PDL: tl.constexpr):
    """For the kernel before to be over, having let the next one start if `PDL` is 1."""
    if PDL:
        if PDL == 1:
            gdc_launch_dependents()
        gdc_wait()


@triton.jit
def gelu_erf(x):
    """0.5 x (1 + erf(x / sqrt(2)))."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu(x, TANH: tl.constexpr):
    """Either GELU."""
    if TANH:
        out = gelu_tanh(x)
    else:
        out = gelu_erf(x)
    return out


@triton.jit
def row_of(x, D: tl.constexpr, D_UP: tl.constexpr):
    """x [D] in float32, zero up to D_UP."""
    k = tl.arange(0, D_UP)
    return tl.load(x + k, mask=k < D, other=0.0).to(tl.float32)


@triton.jit
def normed(numbers, gamma, beta, D: tl.constexpr, D_UP: tl.constexpr):
    """LayerNorm of one row [D_UP], of which D count, in float32; what does not count is zero."""
    mean = tl.sum(numbers, 0) / D
    away = tl.where(tl.arange(0, D_UP) < D, numbers - mean, 0.0)
    scale = tl.rsqrt(tl.sum(away * away, 0) / D + 1e-5)
    return away * scale * gamma + beta


@triton.jit
def norm_into(n, cuts, row, numbers, D: tl.constexpr, D_UP: tl.constexpr):
    """A row's norm -> n [BM, D], and if it is wanted so, cuts [BM, CUTS, D], see `cut_jit`."""
    k = tl.arange(0, D_UP)
    rounded = numbers.to(n.dtype.element_ty)
    tl.store(n + row * D + k, rounded, mask=k < D)
    if cuts is not None:
        put(cuts, rounded.to(tl.float32), row, k, k < D, D)


@triton.jit
def begin(given, x, n, cuts, weight, bias, D: tl.constexpr, D_UP: tl.constexpr, PDL: tl.constexpr):
    """Row `program_id` of what is given [B, D] -> the residual x float32, and its norm, see `norm_into`."""
    row = tl.program_id(0)
    k = tl.arange(0, D_UP)
    gamma, beta = row_of(weight, D, D_UP), row_of(bias, D, D_UP)
    wait(PDL)
    numbers = row_of(given + row * D, D, D_UP)
    tl.store(x + row * D + k, numbers, mask=k < D)
    norm_into(n, cuts, row, normed(numbers, gamma, beta, D, D_UP), D, D_UP)


@triton.jit(do_not_specialize=["rows"])
def up(n, w, bias, tau, qkv, shares, inner, logits, rows, D: tl.constexpr, FF: tl.constexpr, ROUTED: tl.constexpr,
       HEADS: tl.constexpr, HEADS_UP: tl.constexpr, TANH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
       BK: tl.constexpr, STAGES: tl.constexpr, MODE: tl.constexpr, PDL: tl.constexpr, AHEAD: tl.constexpr):
    """n [BM, D], w [3 D + FF + ROUTED, D] -> qkv [BM, 3 D] and its shares of tau [3 D / BN, BM, HEADS_UP]; then
    gelu(fc1) behind D columns of inner [BM, D + FF], or the router's logits float32 [BM, ROUTED]. FF or ROUTED is 0."""
    tile = tl.program_id(0)
    first = tile * BN
    follow(w, first, 0, D, BN, AHEAD, PDL)
    total = product(n, w, first, 0, rows, D, D, BM, BN, BK, STAGES, MODE)
    if PDL == 2:
        gdc_launch_dependents()
    m, line = tl.arange(0, BM), first + tl.arange(0, BN)
    real = (m < rows)[:, None] & (line >= 0)[None, :]
    out = total + tl.load(bias + line)[None, :]
    if first < 3 * D:
        rounded = out.to(qkv.dtype.element_ty)
        tl.store(qkv + m[:, None] * (3 * D) + line[None, :], rounded, mask=real)
        active = tl.where(real, gelu(rounded.to(tl.float32), TANH), 0.0).to(qkv.dtype.element_ty)
        h = tl.arange(0, HEADS_UP)
        turned = tl.load(tau + h[None, :] * (3 * D) + line[:, None], mask=(h < HEADS)[None, :], other=0.0)
        share = tl.dot(active, turned, input_precision="ieee")
        place = shares + tile * (BM * HEADS_UP) + m[:, None] * HEADS_UP + h[None, :]
        tl.store(place, share, mask=(m < rows)[:, None] & (h >= 0)[None, :])
    elif FF > 0:
        at = m[:, None] * (D + FF) + (line - 2 * D)[None, :]
        tl.store(inner + at, gelu_tanh(out).to(inner.dtype.element_ty), mask=real)
    else:
        tl.store(logits + m[:, None] * ROUTED + (line - 3 * D)[None, :], out, mask=real)


@triton.jit(do_not_specialize=["rows"])
def head(n, w, bias, logits, rows, D: tl.constexpr, VOCAB: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
         BK: tl.constexpr, STAGES: tl.constexpr, MODE: tl.constexpr, PDL: tl.constexpr, AHEAD: tl.constexpr):
    """n [BM, D] -> logits float32 [rows, VOCAB]."""
    first = tl.program_id(0) * BN
    follow(w, first, 0, D, BN, AHEAD, PDL)
    total = product(n, w, first, 0, rows, D, D, BM, BN, BK, STAGES, MODE)
    if PDL == 2:
        gdc_launch_dependents()
    m, line = tl.arange(0, BM), first + tl.arange(0, BN)
    out = total + tl.load(bias + line).to(tl.float32)[None, :]
    tl.store(logits + m[:, None] * VOCAB + line[None, :], out, mask=(m < rows)[:, None] & (line >= 0)[None, :])


@triton.jit
def planned(logits, picked, chosen, lists, counts, expert, rows, BM: tl.constexpr, ROUTED: tl.constexpr,
            E: tl.constexpr, E_UP: tl.constexpr, SHARE: tl.constexpr, done=None):
    """Who chose one expert, from logits [BM, ROUTED]: a row's SHARE largest count, of equal ones the first.

    Pair p = row * SHARE + rank is of that row, and rank 0 is the largest. -> the expert's `counts` [E] and its pairs,
    `lists` [E, BM], by row; of each pair its logit, `picked`, and its expert, `chosen`. NaN counts as the least.
    """
    AT_ONCE: tl.constexpr = BM if BM < 16 else 16
    who = tl.arange(0, E_UP)
    count = 0
    for first in range(0, rows, AT_ONCE):
        m = first + tl.arange(0, AT_ONCE)
        there = (m < rows)[:, None] & (who < E)[None, :]
        all = tl.load(logits + m[:, None] * ROUTED + who[None, :], mask=there, other=-float("inf"))
        mine = tl.load(logits + m * ROUTED + expert, mask=m < rows, other=-float("inf"))
        all = tl.where(all == all, all, -float("inf"))  # noqa: PLR0124 - so is NaN told
        mine = tl.where(mine == mine, mine, -float("inf"))  # noqa: PLR0124
        before = (all > mine[:, None]) | ((all == mine[:, None]) & (who < expert)[None, :])
        rank = tl.sum(before.to(tl.int32), 1)
        takes = (rank < SHARE) & (m < rows)
        pair = m * SHARE + rank
        place = count + tl.cumsum(takes.to(tl.int32), 0) - 1
        tl.store(lists + expert * BM + place, pair, mask=takes)
        tl.store(picked + pair, mine, mask=takes)
        tl.store(chosen + pair, tl.zeros([AT_ONCE], tl.int32) + expert, mask=takes)
        count += tl.sum(takes.to(tl.int32), 0)
    tl.store(counts + expert, count)
    if done is not None:
        tl.store(done + expert, 0)


@triton.jit
def heard(shares, active, tau, row, line, D: tl.constexpr, D_UP: tl.constexpr, BM: tl.constexpr,
          HEADS_UP: tl.constexpr, SHARES: tl.constexpr, SHARES_UP: tl.constexpr):
    """Parts of what line `line` of the scaling's weights says of a row: SHARES of them, as `up` left them, or if that
    is 0, products with `active` [3 D], gelu(qkv) of the only row there is."""
    if SHARES > 0:
        t = tl.arange(0, SHARES_UP)
        out = tl.load(shares + t * (BM * HEADS_UP) + row * HEADS_UP + line, mask=t < SHARES, other=0.0)
    else:
        out = tl.zeros([D_UP], tl.float32)
        for i in tl.static_range(3):
            out += row_of(active + i * D, D, D_UP) * row_of(tau + line * (3 * D) + i * D, D, D_UP)
    return out


@triton.jit
def tanh_of(parts):
    """tanh of a sum."""
    return 2.0 * tl.sigmoid(2.0 * tl.sum(parts, 0)) - 1.0


@triton.jit
def attend(index, qkv, shares, active, tau, levels, keys, values, tables, positions, cos, sin, attended, parts, arrived,
           columns, scale, D: tl.constexpr, D_UP: tl.constexpr, STRIDE: tl.constexpr, H: tl.constexpr,
           HEADS_UP: tl.constexpr, SHARES: tl.constexpr, SHARES_UP: tl.constexpr, ROTARY: tl.constexpr,
           PAGE: tl.constexpr, BM: tl.constexpr, SPLITS: tl.constexpr, BT: tl.constexpr, STAGES: tl.constexpr,
           PDL: tl.constexpr, scales):
    """One head of one row over one of SPLITS parts of its context, number `index` of all -> the first D columns of
    attended [BM, STRIDE], and the new key and value into their page. Queries and values are scaled by tanh of what is
    heard plus levels [positions, H]. `scales` float32 [2, H] if keys and values are kept in FP8."""
    WIDE: tl.constexpr = D // H
    pair = index // SPLITS
    part = index % SPLITS
    row, own = pair // H, pair % H
    d = tl.arange(0, WIDE)
    position = tl.load(positions + row).to(tl.int32)
    mine, table = qkv + row * (3 * D) + own * WIDE, tables + row * columns
    parts_q = heard(shares, active, tau, row, own, D, D_UP, BM, HEADS_UP, SHARES, SHARES_UP)
    level = tl.load(levels + position * H + own).to(tl.float32)
    q = rotated(mine, d, cos, sin, position, ROTARY)
    q *= (level + tanh_of(parts_q)) * scale
    if scales is not None:
        q *= unit(scales, own)
    share = ((position + SPLITS * 16 - 1) // (SPLITS * 16)) * 16
    begin = part * share
    end = tl.minimum(begin + share, position)
    best, weight, total = seen(q, keys, values, table, own, begin, end, H, PAGE, WIDE, BT, STAGES)
    if PDL == 2:
        gdc_launch_dependents()
    if part == SPLITS - 1:
        parts_v = heard(shares, active, tau, row, H + own, D, D_UP, BM, HEADS_UP, SHARES, SHARES_UP)
        new_k = kept(rotated(mine + D, d, cos, sin, position, ROTARY), scales, own, qkv.dtype.element_ty)
        new_v = tl.load(mine + 2 * D + d).to(tl.float32) * (level + tanh_of(parts_v))
        new_v = kept(new_v, scales, H + own, qkv.dtype.element_ty)
        page = tl.load(table + position // PAGE).to(tl.int64)
        at = ((page * H + own) * PAGE + position % PAGE) * WIDE
        tl.store(keys + at + d, new_k)
        tl.store(values + at + d, new_v)
        score = tl.sum(wide(new_k) * q, 0)
        best, weight, total = joined(best, weight, total, score, wide(new_v))
    if scales is not None:
        total *= unit(scales, H + own)
    out = attended + row * STRIDE + own * WIDE
    if SPLITS == 1:
        tl.store(out + d, (total / weight).to(attended.dtype.element_ty))
    else:
        combined(parts, arrived, out, pair, part, best, weight, total, WIDE, SPLITS)


@triton.jit(do_not_specialize=["columns", "rows"])
def scan(qkv, shares, active, tau, levels, keys, values, tables, positions, cos, sin, attended, parts, arrived, logits,
         picked, chosen, lists, counts, columns, rows, scale, D: tl.constexpr, D_UP: tl.constexpr,
         STRIDE: tl.constexpr, H: tl.constexpr, HEADS_UP: tl.constexpr, SHARES: tl.constexpr, SHARES_UP: tl.constexpr,
         ROTARY: tl.constexpr, PAGE: tl.constexpr, BM: tl.constexpr, ROUTED: tl.constexpr, E: tl.constexpr,
         E_UP: tl.constexpr, SHARE: tl.constexpr, SPLITS: tl.constexpr, BT: tl.constexpr, STAGES: tl.constexpr,
         PDL: tl.constexpr, scales=None, done=None):
    """The first E programs plan, and put `done` [E] to zero, if there is one; all others attend."""
    wait(PDL)
    if tl.program_id(0) < E:
        planned(logits, picked, chosen, lists, counts, tl.program_id(0), rows, BM, ROUTED, E, E_UP, SHARE, done)
    else:
        attend(tl.program_id(0) - E, qkv, shares, active, tau, levels, keys, values, tables, positions, cos, sin,
               attended, parts, arrived, columns, scale, D, D_UP, STRIDE, H, HEADS_UP, SHARES, SHARES_UP, ROTARY,
               PAGE, BM, SPLITS, BT, STAGES, PDL, scales)


@triton.jit
def experts_up(n, lists, counts, values, scales, out, D: tl.constexpr, INNER: tl.constexpr, SHARE: tl.constexpr,
               BM: tl.constexpr, SCALED: tl.constexpr, ASSEMBLED: tl.constexpr, ROWS: tl.constexpr,
               LINES: tl.constexpr, DEEP: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr):
    """n [BM, D], values [E, 2 INNER, D] -> out [BM SHARE, INNER] by pair: gelu_erf of the first half times (the second
    half + 1). The grid is E * ceil(INNER / LINES)."""
    BLOCKS: tl.constexpr = (INNER + LINES - 1) // LINES
    WHOLE: tl.constexpr = INNER % LINES == 0 and D % DEEP == 0
    expert = tl.program_id(0) // BLOCKS
    line = tl.program_id(0) % BLOCKS * LINES + tl.arange(0, LINES)
    near = tl.arange(0, DEEP)
    wait(PDL)
    count = tl.load(counts + expert)
    own = values + expert.to(tl.int64) * (2 * INNER * D)
    for first in range(0, count, ROWS):
        place = first + tl.arange(0, ROWS)
        live = place < count
        pair = tl.load(lists + expert * BM + place, mask=live, other=0)
        a = nothing(LINES, ROWS, SCALED)
        g = nothing(LINES, ROWS, SCALED)
        for k in tl.range(0, D, DEEP, num_stages=STAGES):
            first_half = lines_of(own, line, INNER, near, k, D, WHOLE)
            second = lines_of(own + INNER * D, line, INNER, near, k, D, WHOLE)
            taken = columns_of(n, pair // SHARE, live, near, k, D, WHOLE)
            a = added(a, widened(first_half, n.dtype.element_ty, SCALED, ASSEMBLED), taken, SCALED)
            g = added(g, widened(second, n.dtype.element_ty, SCALED, ASSEMBLED), taken, SCALED)
        if SCALED:
            a = tl.trans(a)
            g = tl.trans(g)
            of = scales + expert * (2 * INNER) + line
            a *= tl.load(of, mask=line < INNER, other=0.0)[:, None]
            g *= tl.load(of + INNER, mask=line < INNER, other=0.0)[:, None]
        at = out + pair[None, :] * INNER + line[:, None]
        said = gelu_erf(a) * (g + 1.0)
        tl.store(at, said.to(out.dtype.element_ty), mask=live[None, :] & (line < INNER)[:, None])
    if PDL == 2:
        gdc_launch_dependents()


@triton.jit
def part_of(x, w, parts, rows, tile, part, D: tl.constexpr, K: tl.constexpr, LENGTH: tl.constexpr, BM: tl.constexpr,
            BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, MODE: tl.constexpr):
    """Columns part * LENGTH .. of x [BM, K] w [D, K]^T, lines of one tile -> parts [BM, D]."""
    total = product(x, w, tile * BN, part * LENGTH, rows, K, LENGTH, BM, BN, BK, STAGES, MODE)
    m, line = tl.arange(0, BM), tile * BN + tl.arange(0, BN)
    tl.store(parts + m[:, None] * D + line[None, :], total, mask=(m < rows)[:, None] & (line >= 0)[None, :])


@triton.jit(do_not_specialize=["rows"])
def experts_down(gated, attended, proj, lists, counts, values, scales, said, parts, rows, D: tl.constexpr,
                 INNER: tl.constexpr, BM: tl.constexpr, SCALED: tl.constexpr, ASSEMBLED: tl.constexpr,
                 ROWS: tl.constexpr, LINES: tl.constexpr, DEEP: tl.constexpr, DEPTH: tl.constexpr,
                 SPLITS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, MODE: tl.constexpr,
                 PDL: tl.constexpr):
    """gated [BM SHARE, INNER], values [E, D, INNER] -> said [BM SHARE, D] by pair; and attended [BM, D] by proj ->
    parts [SPLITS, BM, D]. The grid is D / BN * SPLITS for proj, then E * ceil(D / LINES)."""
    PROJ: tl.constexpr = D // BN * SPLITS
    BLOCKS: tl.constexpr = (D + LINES - 1) // LINES
    WHOLE: tl.constexpr = D % LINES == 0 and INNER % DEEP == 0
    wait(PDL)
    if tl.program_id(0) < PROJ:
        tile = tl.program_id(0) // SPLITS
        part = tl.program_id(0) % SPLITS
        part_of(attended, proj, parts + part * (BM * D), rows, tile, part, D, D, D // SPLITS, BM, BN, BK, STAGES, MODE)
    else:
        expert = (tl.program_id(0) - PROJ) // BLOCKS
        line = (tl.program_id(0) - PROJ) % BLOCKS * LINES + tl.arange(0, LINES)
        near = tl.arange(0, DEEP)
        count = tl.load(counts + expert)
        own = values + expert.to(tl.int64) * (D * INNER)
        for first in range(0, count, ROWS):
            place = first + tl.arange(0, ROWS)
            live = place < count
            pair = tl.load(lists + expert * BM + place, mask=live, other=0)
            acc = nothing(LINES, ROWS, SCALED)
            for k in tl.range(0, INNER, DEEP, num_stages=DEPTH):
                matrix = lines_of(own, line, D, near, k, INNER, WHOLE)
                taken = columns_of(gated, pair, live, near, k, INNER, WHOLE)
                acc = added(acc, widened(matrix, gated.dtype.element_ty, SCALED, ASSEMBLED), taken, SCALED)
            if SCALED:
                acc = tl.trans(acc)
                acc *= tl.load(scales + expert * D + line, mask=line < D, other=0.0)[:, None]
            at = said + pair[None, :] * D + line[:, None]
            tl.store(at, acc.to(said.dtype.element_ty), mask=live[None, :] & (line < D)[:, None])
    if PDL == 2:
        gdc_launch_dependents()


@triton.jit(do_not_specialize=["rows"])
def dense_down(inner, w, parts, rows, D: tl.constexpr, FF: tl.constexpr, BM: tl.constexpr, SPLITS: tl.constexpr,
               BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, MODE: tl.constexpr, PDL: tl.constexpr):
    """inner [BM, D + FF], what was attended and gelu(fc1), by w [D, D + FF], proj and fc2 -> parts [SPLITS, BM, D]."""
    tile = tl.program_id(0) // SPLITS
    part = tl.program_id(0) % SPLITS
    wait(PDL)
    part_of(inner, w, parts + part * (BM * D), rows, tile, part, D, D + FF, (D + FF) // SPLITS, BM, BN, BK, STAGES,
            MODE)
    if PDL == 2:
        gdc_launch_dependents()


@triton.jit
def close(x, parts, bias, said, picked, weight, shift, n, cuts, hidden, D: tl.constexpr, D_UP: tl.constexpr,
          PARTS: tl.constexpr, SHARE: tl.constexpr, SHARE_UP: tl.constexpr, BM: tl.constexpr, PDL: tl.constexpr):
    """One row: the residual x float32 [BM, D] plus bias, plus parts [PARTS, BM, D], plus what its SHARE experts said
    [BM SHARE, D] by their weights -> the new x, its copy `hidden`, and its norm, see `norm_into`."""
    row = tl.program_id(0)
    k = tl.arange(0, D_UP)
    real = k < D
    gamma, beta, new = row_of(weight, D, D_UP), row_of(shift, D, D_UP), row_of(bias, D, D_UP)
    wait(PDL)
    if SHARE > 0:
        r = tl.arange(0, SHARE_UP)
        at = said + (row * SHARE + r)[:, None] * D + k[None, :]
        each = tl.load(at, mask=(r < SHARE)[:, None] & real[None, :], other=0.0)
    new += row_of(x + row * D, D, D_UP)
    for i in tl.static_range(PARTS):
        new += row_of(parts + i * (BM * D) + row * D, D, D_UP)
    if SHARE > 0:
        logits = tl.load(picked + row * SHARE + r, mask=r < SHARE, other=-float("inf"))
        by = tl.exp(logits - tl.max(logits, 0))
        by /= tl.sum(by, 0)
        new += tl.sum(each.to(tl.float32) * by[:, None], 0)
    if PDL == 2:
        gdc_launch_dependents()
    tl.store(x + row * D + k, new, mask=real)
    tl.store(hidden + row * D + k, new.to(hidden.dtype.element_ty), mask=real)
    norm_into(n, cuts, row, normed(new, gamma, beta, D, D_UP), D, D_UP)
