"""Experts in FP8 in a decode step, multiplied as they are stored: `sparse_jit`'s two kernels of experts in one.

Where matrix units take FP8 on both sides from shared memory (compute capability 9.0), a weight passes through no
register and no converting instruction; a token is cut into four numbers of FP8 (`cut_jit`), which are four columns of
a product. Products are exact; of a sum the units keep some 14 bits, so the sum of each portion is added in float32.
Weights are the left operand, of 64 lines at least.

Programs of a grid begin in the order of their numbers: first those of `up`, then those of proj, then those of `down`.
One of `down` waits until all those of `up` of its expert are done; those are running, and wait for nobody. So nothing
stands still between the two products. Everything that does not depend on the kernel before is asked for before waiting
for it, and an expert's pairs along with their number.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from gapless.kernels.triton.adapters_jit import acquired
from gapless.kernels.triton.cut_jit import CUTS, put, whole
from gapless.kernels.triton.sparse_jit import gelu_erf, part_of, wait


@triton.jit
def pairs_of(lists, first, most, BM: tl.constexpr, ROWS: tl.constexpr):
    """Of an expert's pairs `lists` [BM], number `first` on, below `most`: [ROWS], and for each of their cuts."""
    place, column = first + tl.arange(0, ROWS), first + tl.arange(0, ROWS * CUTS) // CUTS
    pair = tl.load(lists + place, mask=place < most, other=0)
    each = tl.load(lists + column, mask=column < most, other=0)
    return pair, each


@triton.jit
def met(own, line, source, live, width: tl.constexpr, LINES: tl.constexpr, ROWS: tl.constexpr, DEEP: tl.constexpr,
        STAGES: tl.constexpr):
    """Rows `line` of a matrix [any, width] e4m3 times tokens [ROWS], whose cuts begin at `source` -> [LINES, ROWS]."""
    near = tl.arange(0, DEEP)
    sums = tl.zeros((LINES, ROWS * CUTS), tl.float32)
    for k in tl.range(0, width, DEEP, num_stages=STAGES):
        matrix = tl.load(own + line[:, None] * width + (k + near)[None, :], eviction_policy="evict_first")
        taken = tl.load(source[None, :] + (k + near)[:, None], mask=live[None, :], other=0.0)
        sums += tl.dot(matrix, taken)
    return whole(sums, LINES, ROWS)


@triton.jit
def up(expert, first_line, cuts, lists, counts, values, scales, out, like, D: tl.constexpr, INNER: tl.constexpr,
       SHARE: tl.constexpr, BM: tl.constexpr, ROWS: tl.constexpr, LINES: tl.constexpr, DEEP: tl.constexpr,
       STAGES: tl.constexpr, PDL: tl.constexpr):
    """cuts e5m2 [BM, CUTS, D], values e4m3 [E, 2 INNER, D] -> LINES columns of out e5m2 [BM SHARE, CUTS, INNER] by
    pair: gelu_erf of the first half times (the second half + 1), rounded as `like` is. How many pairs there are."""
    column, place, k = tl.arange(0, ROWS * CUTS), tl.arange(0, ROWS), first_line + tl.arange(0, LINES)
    line = tl.arange(0, 2 * LINES) // LINES * INNER + first_line + tl.arange(0, 2 * LINES) % LINES
    scale = tl.load(scales + expert * (2 * INNER) + line)
    own, mine = values + expert.to(tl.int64) * (2 * INNER * D), lists + expert * BM
    wait(PDL)
    count = tl.load(counts + expert)
    pair, each = pairs_of(mine, 0, BM, BM, ROWS)
    for first in range(0, count, ROWS):
        live = first + column // CUTS < count
        source = cuts + (tl.where(live, each, 0) // SHARE * CUTS + column % CUTS) * D
        sums = met(own, line, source, live, D, 2 * LINES, ROWS, DEEP, STAGES) * scale[:, None]
        a, g = tl.split(tl.permute(tl.reshape(sums, (2, LINES, ROWS)), (1, 2, 0)))
        said = (gelu_erf(a) * (g + 1.0)).to(like.dtype.element_ty).to(tl.float32)
        real = (first + place < count)[None, :] & (k >= 0)[:, None]
        put(out, said, pair[None, :], k[:, None], real, INNER)
        pair, each = pairs_of(mine, first + ROWS, count, BM, ROWS)
    return count


@triton.jit
def down(expert, first_line, cuts, lists, counts, done, values, scales, said, D: tl.constexpr, INNER: tl.constexpr,
         BM: tl.constexpr, ROWS: tl.constexpr, LINES: tl.constexpr, DEEP: tl.constexpr, STAGES: tl.constexpr,
         MANY: tl.constexpr, AWAITED: tl.constexpr, PDL: tl.constexpr):
    """cuts e5m2 [BM SHARE, CUTS, INNER], values e4m3 [E, D, INNER] -> LINES columns of said [BM SHARE, D] by pair, once
    MANY programs of `up` are done."""
    column, place = tl.arange(0, ROWS * CUTS), tl.arange(0, ROWS)
    line = first_line + tl.arange(0, LINES)
    scale = tl.load(scales + expert * D + line)
    own, mine = values + expert.to(tl.int64) * (D * INNER), lists + expert * BM
    wait(PDL)
    count = tl.load(counts + expert)
    pair, each = pairs_of(mine, 0, BM, BM, ROWS)
    if count > 0:
        heard(done + expert, MANY, AWAITED)
    for first in range(0, count, ROWS):
        live = first + column // CUTS < count
        source = cuts + (tl.where(live, each, 0) * CUTS + column % CUTS) * INNER
        sums = met(own, line, source, live, INNER, LINES, ROWS, DEEP, STAGES) * scale[:, None]
        if PDL == 2:
            gdc_launch_dependents()
        real = (first + place < count)[None, :] & (line >= 0)[:, None]
        tl.store(said + pair[None, :] * D + line[:, None], sums.to(said.dtype.element_ty), mask=real)
        pair, each = pairs_of(mine, first + ROWS, count, BM, ROWS)


@triton.jit
def heard(flag, MANY: tl.constexpr, AWAITED: tl.constexpr):
    """Wait until as many have counted themselves; what they stored before may be read then."""
    if AWAITED:
        at = flag + tl.arange(0, 1)
        while tl.max(acquired(at), 0) < MANY:
            pass
    else:  # as the interpreter can, where programs run one by one
        while tl.atomic_add(flag, 0, sem="acquire") < MANY:
            pass
    tl.debug_barrier()


@triton.jit(do_not_specialize=["rows"])
def experts(cut_n, cut_gated, attended, proj, lists, counts, done, values_up, scales_up, values_down, scales_down, like,
            said, parts, rows, D: tl.constexpr, INNER: tl.constexpr, E: tl.constexpr, SHARE: tl.constexpr,
            BM: tl.constexpr, ROWS: tl.constexpr, LINES: tl.constexpr, DEEP: tl.constexpr, DEPTH: tl.constexpr,
            DOWN_LINES: tl.constexpr, DOWN_DEEP: tl.constexpr, DOWN_DEPTH: tl.constexpr, AWAITED: tl.constexpr,
            SPLITS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, MODE: tl.constexpr,
            PDL: tl.constexpr):
    """`up` by all experts; attended [BM, D] by proj -> parts [SPLITS, BM, D]; and `down` by all experts -> said
    [BM SHARE, D]. `done` [E] is zero before. The grid is E * INNER / LINES, D / BN * SPLITS, E * D / DOWN_LINES."""
    BLOCKS: tl.constexpr = INNER // LINES
    PROJ: tl.constexpr = D // BN * SPLITS
    own = tl.program_id(0)
    if own < E * BLOCKS:
        count = up(own // BLOCKS, own % BLOCKS * LINES, cut_n, lists, counts, values_up, scales_up, cut_gated, like, D,
                   INNER, SHARE, BM, ROWS, LINES, DEEP, DEPTH, PDL)
        if count > 0:
            tl.debug_barrier()
            tl.atomic_add(done + own // BLOCKS, 1, sem="release")
    elif own < E * BLOCKS + PROJ:
        wait(PDL)
        tile = (own - E * BLOCKS) // SPLITS
        part = (own - E * BLOCKS) % SPLITS
        part_of(attended, proj, parts + part * (BM * D), rows, tile, part, D, D, D // SPLITS, BM, BN, BK, STAGES, MODE)
    else:
        own -= E * BLOCKS + PROJ
        down(own // (D // DOWN_LINES), own % (D // DOWN_LINES) * DOWN_LINES, cut_gated, lists, counts, done,
             values_down, scales_down, said, D, INNER, BM, ROWS, DOWN_LINES, DOWN_DEEP, DOWN_DEPTH, BLOCKS, AWAITED,
             PDL)
    if PDL == 2:
        gdc_launch_dependents()
