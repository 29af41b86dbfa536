"""What adapters add in the kernels of a decode step, and the plan that says which of them a step reads.

A linear with an adapter says y + B (A n). A step's rows are put in the order of their adapters (`plan`), and 16 ranks
of one adapter are an item; a step has as many items as its adapters need and no more. A n is `narrow` [4, BM, RANK], of
qkv, proj, fc1 and fc2:

- the first LEAD programs of `up` compute it for qkv, proj and fc1, which all read the normed input n, while the others
  multiply; those wait for it only behind their own product. Programs of a grid begin in the order of their numbers, so
  whoever waits knows that those it waits for are running;
- the first LEAD programs of `scan` compute it for fc2;
- either does so in parts of what is read, of which the last to arrive sums up;
- B (A n) is one more product of `up` and of `down`, 8 items together. The programs ahead ask for B early.

What the plan says may be read before the kernel before is over: it was made before the step's first kernel began. It is
read past the first cache, which may hold an earlier step's.

Each adapter is read once, by its own rows alone. A row without one keeps what it had, to the bit: what is added is
selected. In the kernels' `lora` is what `plan` made, and what a layer is, see `adapters.py`.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gapless.kernels.triton.parts_jit import normalised, prefetch


@triton.jit(do_not_specialize=["rows"])
def plan(slots, bank, order, items, count, ready, width, rank_at, rows, UP: tl.constexpr, MOST: tl.constexpr):
    """Slots int64 [rows] -> rows by slot in `order`, and `count` items [4, MOST]: slot, which 16 ranks, where its rows
    begin in `order`, how many they are. Nobody is `ready` yet, even if an earlier step broke off."""
    tl.store(ready, 0)
    m = tl.arange(0, UP)
    slot = tl.load(slots + m, mask=m < rows, other=0).to(tl.int32)
    own = slot != 0
    rank = tl.load(bank + slot.to(tl.int64) * width + rank_at, mask=own, other=0.0).to(tl.int32)
    key = tl.where(own, slot, 2147483647)
    less = key[None, :] < key[:, None]
    mate = key[None, :] == key[:, None]
    earlier = tl.sum((mate & (m[None, :] < m[:, None])).to(tl.int32), 1)
    begin = tl.sum(less.to(tl.int32), 1)
    tl.store(order + begin + earlier, m, mask=own)
    first = own & (earlier == 0)
    tiles = tl.where(first, (rank + 15) // 16, 0)
    at = tl.sum(tl.where(less, tiles[None, :], 0), 1)
    many = tl.sum(mate.to(tl.int32), 1)
    for tile in tl.static_range(4):
        has = tile < tiles
        tl.store(items + at + tile, slot, mask=has)
        tl.store(items + MOST + at + tile, tile + slot * 0, mask=has)
        tl.store(items + 2 * MOST + at + tile, begin, mask=has)
        tl.store(items + 3 * MOST + at + tile, many, mask=has)
    tl.store(count + tl.arange(0, 1), tl.sum(tiles, 0) + tl.zeros([1], tl.int32))


@triton.jit
def item(items, number, MOST: tl.constexpr):
    """An item's slot, its first rank, where its rows begin and how many they are."""
    slot = tl.load(items + number, cache_modifier=".cg").to(tl.int64)
    rank = tl.load(items + MOST + number, cache_modifier=".cg") * 16
    begin = tl.load(items + 2 * MOST + number, cache_modifier=".cg")
    return slot, rank, begin, tl.load(items + 3 * MOST + number, cache_modifier=".cg")


@triton.jit
def steady(stats, row, real, D: tl.constexpr, TILES: tl.constexpr, TILES_UP: tl.constexpr, BM: tl.constexpr):
    """`normalised` of some rows."""
    t = tl.arange(0, TILES_UP)
    there = (t < TILES)[:, None] & real[None, :]
    at = t[:, None] * BM + row[None, :]
    means = tl.load(stats + at, mask=there, other=0.0, cache_modifier=".cg")
    squares = tl.load(stats + TILES * BM + at, mask=there, other=0.0, cache_modifier=".cg")
    mean = tl.sum(means, 0) / TILES
    away = tl.where(there, means - mean[None, :], 0.0)
    variance = (tl.sum(squares, 0) + (D // TILES) * tl.sum(away * away, 0)) / D
    return mean, tl.rsqrt(variance + 1e-5)


@triton.jit
def asked_for(items, number, bank, width, one, two, ONE: tl.constexpr, BOTH: tl.constexpr, RANK: tl.constexpr,
              MOST: tl.constexpr, LEAD: tl.constexpr):
    """Ask for B of the first 8 items: ONE outputs of the linear that begins at `one`, the rest of BOTH of the other."""
    if number > 0:
        at = tl.arange(0, 8)
        at = tl.where(at < number, at, 0)
        slot = tl.load(items + at, cache_modifier=".cg").to(tl.int64)
        begin = slot * width + tl.load(items + MOST + at, cache_modifier=".cg") * 16
        for n0 in range(tl.program_id(0) * 64, BOTH, LEAD * 64):
            n = n0 + tl.arange(0, 64)
            of = tl.where(n < ONE, one + n * RANK, two + (n - ONE) * RANK)
            prefetch(bank + begin[None, :] + of[:, None])


@triton.jit
def summed(narrow, parts, arrived, order, begin, many, rank, linear, first, STRIDE: tl.constexpr, PARTS: tl.constexpr,
           BM: tl.constexpr, RANK: tl.constexpr):
    """Say that a part of an item's `narrow` is there; the last to arrive sums all up, in the order of the parts."""
    tl.debug_barrier()
    if tl.atomic_add(arrived, 1, sem="acq_rel") == PARTS - 1:
        side = tl.arange(0, 16)
        for done in range(0, many, 16):
            real = done + side < many
            row = tl.load(order + begin + done + side, mask=real, other=0, cache_modifier=".cg")
            there = real[None, :] & (rank < RANK)[:, None]
            total = tl.zeros([16, 16], tl.float32)
            for i in tl.static_range(PARTS):
                at = (first + i * STRIDE + row[None, :]) * RANK + rank[:, None]
                total += tl.load(parts + at, mask=there, other=0.0, cache_modifier=".cg")
            at = (linear * BM + row[None, :]) * RANK + rank[:, None]
            tl.store(narrow + at, total.to(narrow.dtype.element_ty), mask=there)
        tl.store(arrived, 0)


@triton.jit
def narrow_inputs(x, stats, lora, D: tl.constexpr, FF: tl.constexpr, RANK: tl.constexpr, MOST: tl.constexpr,
                  LEAD: tl.constexpr, SHARES: tl.constexpr, SLICES: tl.constexpr, TILES: tl.constexpr,
                  TILES_UP: tl.constexpr, BM: tl.constexpr, PDL: tl.constexpr, WARM: tl.constexpr):
    """A program of the first LEAD of `up`: `narrow` of qkv, proj and fc1, every LEAD-th share of an item of one.

    A share is taken in SLICES, one a warp: a product with 16 rows alone would be computed by all warps alike.
    """
    planned, layer = lora
    slots, order, items, count, narrow, ready, arrived, parts, bank, width = planned
    gamma, beta, a_qkv, a_proj, a_fc1, a_fc2, b_qkv, b_proj, b_fc1, b_fc2 = layer
    if PDL == 1:
        gdc_launch_dependents()
    side = tl.arange(0, 16)
    number = tl.load(count, cache_modifier=".cg")
    if WARM:
        asked_for(items, number, bank, width, b_qkv, b_fc1, 3 * D, 3 * D + FF, RANK, MOST, LEAD)
    if PDL:
        gdc_wait()
    for job in range(tl.program_id(0), number * 3 * SHARES, LEAD):
        linear = job // SHARES % 3
        slot, first, begin, many = item(items, job // (3 * SHARES), MOST)
        a = bank + slot * width + tl.where(linear == 0, a_qkv, tl.where(linear == 1, a_proj, a_fc1))
        rank = first + side
        WIDE: tl.constexpr = D // SHARES // SLICES
        k = job % SHARES * (D // SHARES) + tl.arange(0, SLICES)[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
        weights = tl.load(a + rank[None, :, None] * D + k[:, None, :], mask=(rank < RANK)[None, :, None], other=0.0)
        scaled, shifted = tl.load(gamma + k).to(tl.float32), tl.load(beta + k).to(tl.float32)
        for done in range(0, many, 16):
            real = done + side < many
            row = tl.load(order + begin + done + side, mask=real, other=0, cache_modifier=".cg")
            at = x + row[None, :, None] * D + k[:, None, :]
            numbers = tl.load(at, mask=real[None, :, None], other=0.0).to(tl.float32)
            if BM == 1:
                mean, scale = normalised(stats, 1, D, TILES, TILES_UP, BM)
            else:
                mean, scale = steady(stats, row, real, D, TILES, TILES_UP, BM)
            numbers = (numbers - mean[None, :, None]) * scale[None, :, None]
            numbers = (numbers * scaled[:, None, :] + shifted[:, None, :]).to(weights.dtype)
            total = tl.sum(tl.dot(weights, tl.permute(numbers, (0, 2, 1)), input_precision="ieee"), 0)
            place = ((job % SHARES * 3 + linear) * BM + row[None, :]) * RANK + rank[:, None]
            tl.store(parts + place, total, mask=real[None, :] & (rank < RANK)[:, None])
        summed(narrow, parts, arrived + job // SHARES, order, begin, many, rank, linear, linear * BM, 3 * BM, SHARES,
               BM, RANK)
    tl.debug_barrier()
    tl.atomic_add(ready, 1, sem="release")


@triton.jit
def narrow_inner(inner, lora, D: tl.constexpr, FF: tl.constexpr, RANK: tl.constexpr, MOST: tl.constexpr,
                 LEAD: tl.constexpr, CHUNKS: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
                 PDL: tl.constexpr, WARM: tl.constexpr):
    """A program of the first LEAD of `scan`: `narrow` of fc2, every LEAD-th chunk of an item."""
    planned, layer = lora
    slots, order, items, count, narrow, ready, arrived, parts, bank, width = planned
    gamma, beta, a_qkv, a_proj, a_fc1, a_fc2, b_qkv, b_proj, b_fc1, b_fc2 = layer
    if PDL == 1:
        gdc_launch_dependents()
    side = tl.arange(0, 16)
    total_items = tl.load(count, cache_modifier=".cg")
    if WARM:
        asked_for(items, total_items, bank, width, b_proj, b_fc2, D, 2 * D, RANK, MOST, LEAD)
    if PDL:
        gdc_wait()
    if tl.program_id(0) == 0:
        tl.store(ready, 0)  # `up` is over
    for job in range(tl.program_id(0), total_items * CHUNKS, LEAD):
        number, chunk = job // CHUNKS, job % CHUNKS
        slot, first, begin, many = item(items, number, MOST)
        rank = first + side
        a = bank + slot * width + a_fc2
        for done in range(0, many, 16):
            real = done + side < many
            row = tl.load(order + begin + done + side, mask=real, other=0, cache_modifier=".cg")
            total = tl.zeros([16, 16], tl.float32)
            for k0 in tl.range(0, FF // CHUNKS, BK, num_stages=4):
                k = chunk * (FF // CHUNKS) + k0 + tl.arange(0, BK)
                weights = tl.load(a + rank[:, None] * FF + k[None, :], mask=(rank < RANK)[:, None], other=0.0)
                at = row[:, None] * (D + FF) + D + k[None, :]
                numbers = tl.load(inner + at, mask=real[:, None], other=0.0)
                total = tl.dot(weights, tl.trans(numbers), total, input_precision="ieee")
            at = (chunk * BM + row[None, :]) * RANK + rank[:, None]
            tl.store(parts + at, total, mask=real[None, :] & (rank < RANK)[:, None])
        summed(narrow, parts, arrived + number, order, begin, many, rank, 3, 0, BM, CHUNKS, BM, RANK)


@triton.jit
def told(lora, rows, BM: tl.constexpr, MOST: tl.constexpr):
    """What a program needs of the plan behind its product: how many items, slot and ranks of the first 8, and each
    row's slot."""
    planned, layer = lora
    slots, order, items, count, narrow, ready, arrived, parts, bank, width = planned
    m, at = tl.arange(0, BM), tl.arange(0, 8)
    own = tl.load(slots + m, mask=m < rows, other=0, cache_modifier=".cg").to(tl.int32)
    slot = tl.load(items + at, cache_modifier=".cg")
    ranks = tl.load(items + MOST + at, cache_modifier=".cg") * 16
    return tl.load(count, cache_modifier=".cg"), slot, ranks, own


@triton.jit
def widened(plan, lora, said, b, first, BM: tl.constexpr, BN: tl.constexpr, RANK: tl.constexpr, MOST: tl.constexpr,
            MODE: tl.constexpr, AWAITED: tl.constexpr):
    """B of one linear times its `narrow`, which is at `said`, of BN outputs, 8 items together -> float32 [BM, BN].
    AWAITED: `narrow` is there when so many programs are ready; 0: it is."""
    number, slot, ranks, own = plan
    planned, layer = lora
    slots, order, items, count, narrow, ready, arrived, parts, bank, width = planned
    m, n, eight = tl.arange(0, BM), first + tl.arange(0, BN), tl.arange(0, 8)
    if MODE == 1:
        total = tl.zeros([BN, BM], tl.float32)
    else:
        total = tl.zeros([BM, BN], tl.float32)
    for done in tl.range(0, number, 8, num_stages=1):
        rank = ranks[:, None] + tl.arange(0, 16)[None, :]
        there = (done + eight < number)[:, None] & (rank < RANK)
        begin = slot.to(tl.int64) * width + b + ranks
        places = begin[None, :, None] + n[:, None, None] * RANK + tl.arange(0, 16)[None, None, :]
        weights = tl.load(bank + places, mask=there[None, :, :], other=0.0)
        if AWAITED > 0:
            while tl.atomic_add(ready, 0, sem="acquire") < AWAITED:
                pass
            tl.debug_barrier()
        mine = there[None, :, :] & (own[:, None, None] == slot[None, :, None])
        places = m[:, None, None] * RANK + rank[None, :, :]
        numbers = tl.load(narrow + said + places, mask=mine, other=0.0, cache_modifier=".cg")
        weights, numbers = tl.reshape(weights, [BN, 128]), tl.reshape(numbers, [BM, 128])
        if MODE == 2:
            total += tl.sum(weights.to(tl.float32) * numbers.to(tl.float32), 1)[None, :]
        elif MODE == 1:
            total = tl.dot(weights, tl.trans(numbers), total, input_precision="ieee")
        else:
            total = tl.dot(numbers, tl.trans(weights), total, input_precision="ieee")
        at = done + 8 + eight
        slot = tl.load(items + at, mask=at < number, other=0)
        ranks = tl.load(items + MOST + at, mask=at < number, other=0) * 16
    if MODE == 1:
        out = tl.trans(total)
    else:
        out = total
    return out


@triton.jit
def with_inputs(out, plan, lora, first, D: tl.constexpr, RANK: tl.constexpr, MOST: tl.constexpr, LEAD: tl.constexpr,
                BM: tl.constexpr, BN: tl.constexpr, MODE: tl.constexpr):
    """What qkv or fc1 said [BM, BN], and what adapters add to it."""
    planned, layer = lora
    gamma, beta, a_qkv, a_proj, a_fc1, a_fc2, b_qkv, b_proj, b_fc1, b_fc2 = layer
    of_qkv = first < 3 * D
    said = tl.where(of_qkv, 0, 2 * BM * RANK)
    b, begin = tl.where(of_qkv, b_qkv, b_fc1), tl.where(of_qkv, first, first - 3 * D)
    more = widened(plan, lora, said, b, begin, BM, BN, RANK, MOST, MODE, LEAD)
    number, slot, ranks, own = plan
    return tl.where((own != 0)[:, None], out + more, out)


@triton.jit
def with_outputs(total, plan, lora, first, part, RANK: tl.constexpr, MOST: tl.constexpr, SPLITS: tl.constexpr,
                 BM: tl.constexpr, BN: tl.constexpr, MODE: tl.constexpr):
    """A part of what proj and fc2 said [BM, BN]; to the first comes what adapters add to proj, to the last fc2's."""
    planned, layer = lora
    gamma, beta, a_qkv, a_proj, a_fc1, a_fc2, b_qkv, b_proj, b_fc1, b_fc2 = layer
    number, slot, ranks, own = plan
    if part == 0:
        more = widened(plan, lora, BM * RANK, b_proj, first, BM, BN, RANK, MOST, MODE, 0)
        total = tl.where((own != 0)[:, None], total + more, total)
    if part == SPLITS - 1:
        more = widened(plan, lora, 3 * BM * RANK, b_fc2, first, BM, BN, RANK, MOST, MODE, 0)
        total = tl.where((own != 0)[:, None], total + more, total)
    return total
