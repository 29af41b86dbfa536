"""The kernels of a decode step with scaled attention and experts, for one row: sums of products in float32.

A single row pads a tile of the matrix units fifteen times over, and most of its step is waiting. So programs are many
and small, the norm is taken by each program that reads the row, and nothing is summed across programs: a layer is `up`,
`scan` (`sparse_jit`'s), `experts_up` and `experts_down`, or `dense_down` alone. Where weights are known before the
kernel before is over, they are on their way already. Names and layouts are those of `sparse_jit`; B is 1.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gapless.kernels.triton.experts_jit import widened
from gapless.kernels.triton.parts_jit import gelu_tanh
from gapless.kernels.triton.sparse_jit import attend, gelu, gelu_erf, normed, planned, row_of


@triton.jit
def lines(matrix, line, limit, first, WIDE: tl.constexpr, COUNT: tl.constexpr, COUNT_UP: tl.constexpr,
          WHOLE: tl.constexpr):
    """Columns first..first + COUNT of the rows `line` of a matrix [limit, WIDE]: [BN, COUNT_UP], zero beyond."""
    k = tl.arange(0, COUNT_UP)
    at = matrix + line[:, None] * WIDE + (first + k)[None, :]
    if WHOLE and COUNT == COUNT_UP:
        out = tl.load(at, eviction_policy="evict_first")
    else:
        out = tl.load(at, mask=(line < limit)[:, None] & (k < COUNT)[None, :], other=0, eviction_policy="evict_first")
    return out


@triton.jit
def beside(x, line, COUNT: tl.constexpr, COUNT_UP: tl.constexpr):
    """x [COUNT] in float32 once for each of `line`, [BN, COUNT_UP], zero beyond: loaded as `lines` are, so that nothing
    has to be passed between threads."""
    k = tl.arange(0, COUNT_UP)
    at = x + (line * 0)[:, None] + k[None, :]
    return tl.load(at, mask=(line >= 0)[:, None] & (k < COUNT)[None, :], other=0.0).to(tl.float32)


@triton.jit
def share_of(picked, first, best, weight, r):
    """A pair's part of its row: the softmax, over the row's pairs, of logits as they were picked."""
    return tl.exp(tl.load(picked + first + r) - best) / weight


@triton.jit
def softened(picked, first, SHARE: tl.constexpr, SHARE_UP: tl.constexpr):
    """The largest of a row's picked logits, and the sum of all exponentials beside it."""
    r = tl.arange(0, SHARE_UP)
    logits = tl.load(picked + first + r, mask=r < SHARE, other=-float("inf"))
    best = tl.max(logits, 0)
    return best, tl.sum(tl.exp(logits - best), 0)


@triton.jit
def up(x, weight, shift, w, bias, qkv, active, inner, logits, D: tl.constexpr, D_UP: tl.constexpr, N: tl.constexpr,
       QKV: tl.constexpr, GELU: tl.constexpr, TANH: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr):
    """x [D], the residual, w [N, D] -> qkv [QKV] and gelu(qkv), `active`; what is behind it is gelu_tanh(fc1), behind D
    columns of inner, if `GELU`, else logits float32. With QKV 0 all is logits."""
    line = tl.program_id(0) * BN + tl.arange(0, BN)
    if PDL:
        gdc_launch_dependents()
    matrix = lines(w, line, N, 0, D, D, D_UP, N % BN == 0)
    its = tl.load(bias + line, mask=line < N, other=0.0).to(tl.float32)
    gamma, beta = row_of(weight, D, D_UP), row_of(shift, D, D_UP)
    if PDL:
        gdc_wait()
    row = normed(row_of(x, D, D_UP), gamma, beta, D, D_UP).to(w.dtype.element_ty).to(tl.float32)
    out = tl.sum(matrix.to(tl.float32) * row[None, :], 1) + its
    if tl.program_id(0) * BN < QKV:
        rounded = out.to(qkv.dtype.element_ty)
        tl.store(qkv + line, rounded)
        tl.store(active + line, gelu(rounded.to(tl.float32), TANH).to(active.dtype.element_ty))
    elif GELU:
        tl.store(inner + D + line - QKV, gelu_tanh(out).to(inner.dtype.element_ty), mask=line < N)
    else:
        tl.store(logits + line - QKV, out, mask=line < N)


@triton.jit
def ranked(logits, rank, E: tl.constexpr, E_UP: tl.constexpr):
    """Which of E logits has so many before it, in the order of `sparse_jit.planned`."""
    who = tl.arange(0, E_UP)
    all = tl.load(logits + who, mask=who < E, other=-float("inf"))
    all = tl.where(all == all, all, -float("inf"))  # noqa: PLR0124 - so is NaN told
    rest = tl.load(logits + who, mask=who < E, other=-float("inf"))
    rest = tl.where(rest == rest, rest, -float("inf"))  # noqa: PLR0124
    before = (rest[None, :] > all[:, None]) | ((rest[None, :] == all[:, None]) & (who[None, :] < who[:, None]))
    place = tl.sum(before.to(tl.int32), 1)
    return tl.sum(tl.where((place == rank) & (who < E), who, 0), 0)


@triton.jit
def expert_up(index, x, gamma, beta, logits, values, scales, out, D: tl.constexpr, D_UP: tl.constexpr,
              INNER: tl.constexpr, SCALED: tl.constexpr, ASSEMBLED: tl.constexpr, BN: tl.constexpr, E: tl.constexpr,
              E_UP: tl.constexpr):
    """Tile `index` of x [D], the residual, by values [E, 2 INNER, D] -> out [SHARE, INNER], gated, by rank."""
    BLOCKS: tl.constexpr = (INNER + BN - 1) // BN
    rank = index // BLOCKS
    line = index % BLOCKS * BN + tl.arange(0, BN)
    numbers = row_of(x, D, D_UP)
    expert = ranked(logits, rank, E, E_UP)
    own = values + expert.to(tl.int64) * (2 * INNER * D)
    first_half = lines(own, line, INNER, 0, D, D, D_UP, INNER % BN == 0)
    second = lines(own + INNER * D, line, INNER, 0, D, D, D_UP, INNER % BN == 0)
    row = normed(numbers, gamma, beta, D, D_UP).to(out.dtype.element_ty).to(tl.float32)
    a = tl.sum(widened(first_half, out.dtype.element_ty, SCALED, ASSEMBLED).to(tl.float32) * row[None, :], 1)
    g = tl.sum(widened(second, out.dtype.element_ty, SCALED, ASSEMBLED).to(tl.float32) * row[None, :], 1)
    if SCALED:
        of = scales + expert * (2 * INNER) + line
        a *= tl.load(of, mask=line < INNER, other=0.0)
        g *= tl.load(of + INNER, mask=line < INNER, other=0.0)
    said = gelu_erf(a) * (g + 1.0)
    tl.store(out + rank * INNER + line, said.to(out.dtype.element_ty), mask=line < INNER)


@triton.jit(do_not_specialize=["columns"])
def middle(x, weight, shift, values, scales, gated, qkv, active, tau, levels, keys, values_kept, tables, positions, cos,
           sin, attended, parts, arrived, logits, picked, chosen, lists, counts, columns, scale, D: tl.constexpr,
           D_UP: tl.constexpr, H: tl.constexpr, ROTARY: tl.constexpr, PAGE: tl.constexpr, ROUTED: tl.constexpr,
           E: tl.constexpr, E_UP: tl.constexpr, SHARE: tl.constexpr, INNER: tl.constexpr, SCALED: tl.constexpr,
           ASSEMBLED: tl.constexpr, SPLITS: tl.constexpr, BT: tl.constexpr, STAGES: tl.constexpr, BN: tl.constexpr,
           PDL: tl.constexpr, kv_scales=None):
    """`sparse_jit.scan` and `expert_up` by turns, as long as there are programs of both: they need nothing of each
    other, and one reads many short pieces while the other streams."""
    OTHERS: tl.constexpr = E + H * SPLITS
    TILES: tl.constexpr = SHARE * ((INNER + BN - 1) // BN)
    TURNS: tl.constexpr = OTHERS if OTHERS < TILES else TILES
    program = tl.program_id(0)
    gamma, beta = row_of(weight, D, D_UP), row_of(shift, D, D_UP)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    by_turns = program < 2 * TURNS
    other = (by_turns & (program % 2 == 0)) | ((program >= 2 * TURNS) & (OTHERS > TILES))
    index = tl.where(by_turns, program // 2, program - TURNS)
    if other:
        if index < E:
            planned(logits, picked, chosen, lists, counts, index, 1, 1, ROUTED, E, E_UP, SHARE)
        else:
            attend(index - E, qkv, active, active, tau, levels, keys, values_kept, tables, positions, cos, sin,
                   attended, parts, arrived, columns, scale, D, D_UP, D, H, 1, 0, 1, ROTARY, PAGE, 1, SPLITS, BT,
                   STAGES, PDL, kv_scales)
    else:
        expert_up(index, x, gamma, beta, logits, values, scales, gated, D, D_UP, INNER, SCALED, ASSEMBLED, BN, E, E_UP)


@triton.jit
def ended(given, x, hidden, line, bias, total, D: tl.constexpr):
    """The residual as it is `given`, plus bias and total -> x float32 and its copy, at the lines of one program."""
    new = tl.load(given + line, mask=line < D, other=0.0).to(tl.float32)
    new += tl.load(bias + line, mask=line < D, other=0.0) + total
    tl.store(x + line, new, mask=line < D)
    tl.store(hidden + line, new.to(hidden.dtype.element_ty), mask=line < D)


@triton.jit
def experts_down(given, x, hidden, attended, proj, bias, gated, chosen, picked, values, scales, D: tl.constexpr,
                 D_UP: tl.constexpr, INNER: tl.constexpr, INNER_UP: tl.constexpr, SHARE: tl.constexpr,
                 SHARE_UP: tl.constexpr, SCALED: tl.constexpr, ASSEMBLED: tl.constexpr, BN: tl.constexpr,
                 PDL: tl.constexpr):
    """attended [D] by proj, gated [SHARE, INNER] by the chosen of values [E, D, INNER] -> the new residual x."""
    line = tl.program_id(0) * BN + tl.arange(0, BN)
    if PDL:
        gdc_launch_dependents()
    matrix = lines(proj, line, D, 0, D, D, D_UP, D % BN == 0)
    if PDL:
        gdc_wait()
    seen = matrix.to(tl.float32) * beside(attended, line, D, D_UP)
    best, whole = softened(picked, 0, SHARE, SHARE_UP)
    sums = tl.zeros([BN, INNER_UP], tl.float32)
    for r in tl.static_range(SHARE):
        expert = tl.load(chosen + r)
        its = lines(values + expert.to(tl.int64) * (D * INNER), line, D, 0, INNER, INNER, INNER_UP, D % BN == 0)
        taken = beside(gated + r * INNER, line, INNER, INNER_UP) * share_of(picked, 0, best, whole, r)
        said = widened(its, gated.dtype.element_ty, SCALED, ASSEMBLED).to(tl.float32) * taken
        if SCALED:
            said *= tl.load(scales + expert * D + line, mask=line < D, other=0.0)[:, None]
        sums += said
    ended(given, x, hidden, line, bias, tl.sum(seen, 1) + tl.sum(sums, 1), D)


@triton.jit
def dense_down(given, x, hidden, inner, w, bias, D: tl.constexpr, D_UP: tl.constexpr, FF: tl.constexpr,
               BK: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr):
    """inner [D + FF], what was attended and gelu(fc1), by w [D, D + FF] -> the new residual x. BK divides FF."""
    line = tl.program_id(0) * BN + tl.arange(0, BN)
    if PDL:
        gdc_launch_dependents()
    matrix = lines(w, line, D, 0, D + FF, D, D_UP, D % BN == 0)
    if PDL:
        gdc_wait()
    seen = matrix.to(tl.float32) * beside(inner, line, D, D_UP)
    sums = tl.zeros([BN, BK], tl.float32)
    for k in tl.static_range(D, D + FF, BK):
        its = lines(w, line, D, k, D + FF, BK, BK, D % BN == 0)
        sums += its.to(tl.float32) * beside(inner + k, line, BK, BK)
    ended(given, x, hidden, line, bias, tl.sum(seen, 1) + tl.sum(sums, 1), D)
