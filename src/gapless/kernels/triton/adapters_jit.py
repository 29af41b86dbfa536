"""What adapters add in the kernels of a decode step, and the plan that says which of them a step reads.

A linear with an adapter says y + B (A n). A step's rows are put in the order of their adapters (`plan`), and 16 ranks
of one adapter are an item; a step has as many items as its adapters need and no more. A n is `narrow` [4, BM, RANK], of
qkv, proj, fc1 and fc2:

- the first LEAD programs of `up` compute it for qkv, proj and fc1, which all read the normed input n, while the others
  multiply; those wait for it only behind their own product. Programs of a grid begin in the order of their numbers, so
  whoever waits knows that those it waits for are running, and those wait for nobody;
- the first LEAD programs of `scan` compute it for fc2;
- either does so in parts of what is read, of which the last to arrive sums up;
- B (A n) is one more product of `up` and of `down`, 8 items together. B of the first 8 is asked for before anything
  else, and in `down`, where A n is there from the beginning, this product is made first: while the programs of two
  parts of a sum make it, those of the others read on.

What the plan says may be read before the kernel before is over: it was made before the step's first kernel began. It is
read past the first cache, which may hold an earlier step's.

Each adapter is read once. In `up` its A meets all rows, and what that says of others is never stored. A row without one
keeps what it had, to the bit: what is added is selected. In the kernels' `lora` is what `plan` made, and what a layer
is, see `adapters.py`.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gapless.kernels.triton.parts_jit import normalised


@triton.jit(do_not_specialize=["rows"])
def plan(slots, bank, order, items, count, ready, width, rank_at, rows, UP: tl.constexpr, MOST: tl.constexpr):
    """Slots int64 [rows] -> rows by slot in `order`, and `count` items [4, MOST]: slot, which 16 ranks, where its rows
    begin in `order`, how many they are. Nobody is `ready` yet, even if an earlier step broke off."""
    tl.store(ready + tl.arange(0, 4), tl.zeros([4], tl.int32))
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
def told(lora, rows, BM: tl.constexpr, MOST: tl.constexpr, TOGETHER: tl.constexpr):
    """What a program needs of the plan: how many items, slot and ranks of the first, and each row's slot."""
    planned, layer = lora
    slots, order, items, count, narrow, ready, arrived, parts, bank, width = planned
    m, at = tl.arange(0, BM), tl.arange(0, TOGETHER)
    own = tl.load(slots + m, mask=m < rows, other=0, cache_modifier=".cg").to(tl.int32)
    slot = tl.load(items + at, cache_modifier=".cg")
    ranks = tl.load(items + MOST + at, cache_modifier=".cg") * 16
    return tl.load(count, cache_modifier=".cg"), slot, ranks, own


@triton.jit
def next_told(items, at, number, MOST: tl.constexpr, TOGETHER: tl.constexpr):
    """Slot and ranks of items from number `at` on."""
    at += tl.arange(0, TOGETHER)
    slot = tl.load(items + at, mask=at < number, other=0, cache_modifier=".cg")
    return slot, tl.load(items + MOST + at, mask=at < number, other=0, cache_modifier=".cg") * 16


@triton.jit
def each_rank(number, TOGETHER: tl.constexpr):
    """A number of each item -> of each of their ranks, [16 TOGETHER]."""
    return tl.reshape(tl.broadcast_to(number[:, None], [TOGETHER, 16]), [TOGETHER * 16])


@triton.jit
def lines_of_a(lora, slot, ranks, left, job, D: tl.constexpr, RANK: tl.constexpr, SHARES: tl.constexpr,
               TOGETHER: tl.constexpr):
    """A of items, of which `left` are there, of a job's linear and columns -> [16 TOGETHER, D / SHARES]."""
    planned, layer = lora
    slots, order, items, count, narrow, ready, arrived, parts, bank, width = planned
    gamma, beta, a_qkv, a_proj, a_fc1, a_fc2, b_qkv, b_proj, b_fc1, b_fc2 = layer
    WIDE: tl.constexpr = D // SHARES
    linear = job // SHARES
    a = tl.where(linear == 0, a_qkv, tl.where(linear == 1, a_fc1, a_proj))
    k = job % SHARES * WIDE + tl.arange(0, WIDE)
    rank = each_rank(ranks, TOGETHER) + tl.arange(0, TOGETHER * 16) % 16
    begin = each_rank(slot, TOGETHER).to(tl.int64) * width + a + rank * D
    there = each_rank(tl.arange(0, TOGETHER), TOGETHER) < tl.where(job < 3 * SHARES, left, 0)
    mask = there[:, None] & (rank < RANK)[:, None]
    return tl.load(bank + begin[:, None] + k[None, :], mask=mask, other=0.0)


@triton.jit
def narrow_inputs(x, stats, rows, lora, D: tl.constexpr, RANK: tl.constexpr, RANK_UP: tl.constexpr,
                  MOST: tl.constexpr, LEAD: tl.constexpr, SHARES: tl.constexpr, TOGETHER: tl.constexpr,
                  TILES: tl.constexpr, TILES_UP: tl.constexpr, BM: tl.constexpr, PDL: tl.constexpr):
    """A program of the first LEAD of `up`: `narrow` of qkv, fc1 and proj, every LEAD-th share of the columns of one,
    of all rows by TOGETHER items. A is asked for before x is there."""
    planned, layer = lora
    slots, order, items, count, narrow, ready, arrived, parts, bank, width = planned
    gamma, beta, a_qkv, a_proj, a_fc1, a_fc2, b_qkv, b_proj, b_fc1, b_fc2 = layer
    WIDE: tl.constexpr = D // SHARES
    TALL: tl.constexpr = BM if BM > 16 else 16  # as matrix units take them
    if PDL == 1:
        gdc_launch_dependents()
    number, slot, ranks, own = told(lora, rows, TALL, MOST, TOGETHER)
    m, side = tl.arange(0, TALL), tl.arange(0, TOGETHER * 16) % 16
    which = each_rank(tl.arange(0, TOGETHER), TOGETHER)
    weights = lines_of_a(lora, slot, ranks, number, tl.program_id(0), D, RANK, SHARES, TOGETHER)
    if PDL:
        gdc_wait()
    for job in range(tl.program_id(0), tl.where(number > 0, 3 * SHARES, 0), LEAD):
        share = job % SHARES
        k = share * WIDE + tl.arange(0, WIDE)
        scaled, shifted = tl.load(gamma + k).to(tl.float32), tl.load(beta + k).to(tl.float32)
        numbers = tl.load(x + m[:, None] * D + k[None, :], mask=(m < rows)[:, None], other=0.0).to(tl.float32)
        mean, scale = normalised(stats, rows, D, TILES, TILES_UP, BM)
        numbers = (numbers - mean[:, None]) * scale[:, None] * scaled[None, :] + shifted[None, :]
        numbers = numbers.to(weights.dtype)
        # qkv's and fc1's are waited for, proj's is not
        linear = tl.where(job < SHARES, 0, tl.where(job < 2 * SHARES, 2, 1))
        for done in range(0, number, TOGETHER):
            total = tl.dot(weights, tl.trans(numbers), input_precision="ieee")
            rank = each_rank(ranks, TOGETHER) + side
            there = (done + which < number) & (rank < RANK)
            mine = there[:, None] & (each_rank(slot, TOGETHER)[:, None] == own[None, :])
            at = ((share * 3 + linear) * BM + m[None, :]) * RANK + rank[:, None]
            tl.store(parts + at, total, mask=mine)
            begin = tl.where(done + TOGETHER < number, done + TOGETHER, 0)
            slot, ranks = next_told(items, begin, number, MOST, TOGETHER)
            then = tl.where(begin > 0, job, job + LEAD)
            weights = lines_of_a(lora, slot, ranks, number - begin, then, D, RANK, SHARES, TOGETHER)
        tl.debug_barrier()
        if tl.atomic_add(arrived + linear, 1, sem="acq_rel") == SHARES - 1:
            row, r = tl.arange(0, BM), tl.arange(0, RANK_UP)
            real = (row < rows)[:, None] & (r < RANK)[None, :]
            total = tl.zeros([BM, RANK_UP], tl.float32)
            for i in tl.static_range(SHARES):
                at = ((i * 3 + linear) * BM + row[:, None]) * RANK + r[None, :]
                total += tl.load(parts + at, mask=real, other=0.0, cache_modifier=".cg")
            at = (linear * BM + row[:, None]) * RANK + r[None, :]
            tl.store(narrow + at, total.to(narrow.dtype.element_ty), mask=real)
            tl.store(arrived + linear, 0)
            tl.debug_barrier()
            tl.atomic_add(ready + linear, 1, sem="release")


@triton.jit
def narrow_inner(inner, lora, D: tl.constexpr, FF: tl.constexpr, RANK: tl.constexpr, MOST: tl.constexpr,
                 LEAD: tl.constexpr, CHUNKS: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr):
    """A program of the first LEAD of `scan`: `narrow` of fc2, every LEAD-th chunk of an item."""
    planned, layer = lora
    slots, order, items, count, narrow, ready, arrived, parts, bank, width = planned
    gamma, beta, a_qkv, a_proj, a_fc1, a_fc2, b_qkv, b_proj, b_fc1, b_fc2 = layer
    if PDL == 1:
        gdc_launch_dependents()
    side = tl.arange(0, 16)
    total_items = tl.load(count, cache_modifier=".cg")
    if PDL:
        gdc_wait()
    if tl.program_id(0) == 0:
        tl.store(ready + tl.arange(0, 4), tl.zeros([4], tl.int32))  # `up` is over
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
def lines_of_b(lora, slot, ranks, left, b, n, BN: tl.constexpr, RANK: tl.constexpr, TOGETHER: tl.constexpr):
    """B of items, of which `left` are there, of BN outputs n of the linear that begins at `b` -> [BN, 16 TOGETHER]."""
    planned, layer = lora
    slots, order, items, count, narrow, ready, arrived, parts, bank, width = planned
    side, which = tl.arange(0, 16), tl.arange(0, TOGETHER)
    there = (which < left)[:, None] & (ranks[:, None] + side[None, :] < RANK)
    begin = slot.to(tl.int64) * width + b + ranks
    places = begin[None, :, None] + n[:, None, None] * RANK + side[None, None, :]
    return tl.reshape(tl.load(bank + places, mask=there[None, :, :], other=0.0), [BN, TOGETHER * 16])


@triton.jit
def heard(flag, AWAITED: tl.constexpr):
    """Wait until a flag is up; what was stored before it was raised may be read then."""
    if AWAITED == 1:  # as the interpreter can, where programs run one by one
        while tl.atomic_add(flag, 0, sem="acquire") == 0:
            pass
    else:
        at = flag + tl.arange(0, 1)
        while tl.max(acquired(at), 0) == 0:
            pass
    tl.debug_barrier()


@triton.jit
def acquired(pointers):
    """What is at these addresses now; nothing behind is read before."""
    return tl.inline_asm_elementwise(
        "ld.acquire.gpu.global.u32 $0, [$1];",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def widened(plan, lora, weights, number, linear, b, first, BM: tl.constexpr, BN: tl.constexpr, RANK: tl.constexpr,
            MOST: tl.constexpr, TOGETHER: tl.constexpr, MODE: tl.constexpr, AWAITED: tl.constexpr):
    """B of one linear times its `narrow`, of BN outputs and `number` items, TOGETHER at once -> float32 [BM, BN].
    `weights` is B of the first. AWAITED: whether, and how, to wait until `narrow` is there."""
    every, slot, ranks, own = plan
    planned, layer = lora
    slots, order, items, count, narrow, ready, arrived, parts, bank, width = planned
    m, n, which, side = tl.arange(0, BM), first + tl.arange(0, BN), tl.arange(0, TOGETHER), tl.arange(0, 16)
    if MODE == 1:
        total = tl.zeros([BN, BM], tl.float32)
    else:
        total = tl.zeros([BM, BN], tl.float32)
    if AWAITED:
        if number > 0:
            heard(ready + linear, AWAITED)
    for done in tl.range(0, number, TOGETHER, num_stages=1):
        rank = ranks[:, None] + side[None, :]
        there = (done + which < number)[:, None] & (rank < RANK)
        mine = there[None, :, :] & (own[:, None, None] == slot[None, :, None])
        places = (linear * BM + m[:, None, None]) * RANK + rank[None, :, :]
        numbers = tl.load(narrow + places, mask=mine, other=0.0, cache_modifier=".cg")
        numbers = tl.reshape(numbers, [BM, TOGETHER * 16])
        if MODE == 2:
            total += tl.sum(weights.to(tl.float32) * numbers.to(tl.float32), 1)[None, :]
        elif MODE == 1:
            total = tl.dot(weights, tl.trans(numbers), total, input_precision="ieee")
        else:
            total = tl.dot(numbers, tl.trans(weights), total, input_precision="ieee")
        slot, ranks = next_told(items, done + TOGETHER, number, MOST, TOGETHER)
        weights = lines_of_b(lora, slot, ranks, number - done - TOGETHER, b, n, BN, RANK, TOGETHER)
    if MODE == 1:
        out = tl.trans(total)
    else:
        out = total
    return out


@triton.jit
def input_of(lora, first, D: tl.constexpr):
    """Of the outputs of `up` from `first` on: which linear they are of, where its B begins, and its first output."""
    planned, layer = lora
    gamma, beta, a_qkv, a_proj, a_fc1, a_fc2, b_qkv, b_proj, b_fc1, b_fc2 = layer
    of_qkv = first < 3 * D
    return tl.where(of_qkv, 0, 2), tl.where(of_qkv, b_qkv, b_fc1), tl.where(of_qkv, first, first - 3 * D)


@triton.jit
def begun_inputs(plan, lora, first, D: tl.constexpr, RANK: tl.constexpr, TOGETHER: tl.constexpr, BN: tl.constexpr):
    """B of qkv or fc1 of the first items, of the outputs that `up` is to say."""
    number, slot, ranks, own = plan
    linear, b, begin = input_of(lora, first, D)
    return lines_of_b(lora, slot, ranks, number, b, begin + tl.arange(0, BN), BN, RANK, TOGETHER)


@triton.jit
def with_inputs(out, weights, plan, lora, first, D: tl.constexpr, RANK: tl.constexpr, MOST: tl.constexpr,
                TOGETHER: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, MODE: tl.constexpr, AWAITED: tl.constexpr):
    """What qkv or fc1 said [BM, BN], and what adapters add to it. `weights` are `begun_inputs`."""
    number, slot, ranks, own = plan
    linear, b, begin = input_of(lora, first, D)
    more = widened(plan, lora, weights, number, linear, b, begin, BM, BN, RANK, MOST, TOGETHER, MODE, AWAITED)
    return tl.where((own != 0)[:, None], out + more, out)


@triton.jit
def output_of(plan, lora, part, SPLITS: tl.constexpr):
    """Of a part of `down`: to the first comes what adapters add to proj, to the last fc2's; to the others nothing. How
    many items, which linear, and where its B begins."""
    number, slot, ranks, own = plan
    planned, layer = lora
    gamma, beta, a_qkv, a_proj, a_fc1, a_fc2, b_qkv, b_proj, b_fc1, b_fc2 = layer
    number = tl.where((part == 0) | (part == SPLITS - 1), number, 0)
    return number, tl.where(part == 0, 1, 3), tl.where(part == 0, b_proj, b_fc2)


@triton.jit
def begun_outputs(plan, lora, first, part, RANK: tl.constexpr, TOGETHER: tl.constexpr, SPLITS: tl.constexpr,
                  BN: tl.constexpr):
    """B of the first items, of the outputs of a part of `down`."""
    number, slot, ranks, own = plan
    number, linear, b = output_of(plan, lora, part, SPLITS)
    return lines_of_b(lora, slot, ranks, number, b, first + tl.arange(0, BN), BN, RANK, TOGETHER)


@triton.jit
def outputs(weights, plan, lora, first, part, RANK: tl.constexpr, MOST: tl.constexpr, TOGETHER: tl.constexpr,
            SPLITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, MODE: tl.constexpr):
    """What adapters add to a part of what proj and fc2 say [BM, BN]. `weights` are `begun_outputs`."""
    every, slot, ranks, own = plan
    number, linear, b = output_of(plan, lora, part, SPLITS)
    more = widened(plan, lora, weights, number, linear, b, first, BM, BN, RANK, MOST, TOGETHER, MODE, 0)
    if SPLITS == 1:
        planned, layer = lora
        gamma, beta, a_qkv, a_proj, a_fc1, a_fc2, b_qkv, b_proj, b_fc1, b_fc2 = layer
        weights = lines_of_b(lora, slot, ranks, every, b_fc2, first + tl.arange(0, BN), BN, RANK, TOGETHER)
        more += widened(plan, lora, weights, every, 3, b_fc2, first, BM, BN, RANK, MOST, TOGETHER, MODE, 0)
    return more
