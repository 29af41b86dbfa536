"""Where top-p ends in a row, and the draw from what stays: the last part of sampling, for one program a row.

Top-p keeps all ids before which at most a share of the weight lies, likeliest first. Its edge is the least key (a logit
as an ordered integer) above which at most that much lies, however it is found. It is known already that it is among the
ids of a list, which share a bin of weights. The keys there are bisected, and only ones that are there, so equal ones
take no step. The order of a list depends on timing; what is read from it does not. A list may be as long as the
vocabulary: it is looked at in pieces of SOME entries.

All pointers are to one row's memory.
"""

import triton
import triton.language as tl

LEAST_KEY, GREATEST_KEY = tl.constexpr(-(2**31)), tl.constexpr(2**31 - 1)


@triton.jit
def ordered(logit):
    """Float32 -> int32 in the same order; both zeros are one."""
    bits = tl.where(logit == 0, 0.0, logit).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def entries(listed, logits, weights, first, count, SOME: tl.constexpr):
    """SOME entries of a list from `first` on: ids, keys, weights, and whether there are so many."""
    near = first + tl.arange(0, SOME)
    there = near < count
    id = tl.load(listed + near, mask=there, other=0)
    key = ordered(tl.load(logits + id, mask=there, other=0.0))
    return id, key, tl.load(weights + id, mask=there, other=0), there


@triton.jit
def parted(listed, logits, weights, count, middle, SOME: tl.constexpr):
    """Of a list: the weight of keys over `middle`, the least of these keys, and the greatest of the others."""
    over = tl.zeros([SOME], tl.int64)
    up = tl.full([SOME], GREATEST_KEY, tl.int32)
    down = tl.full([SOME], LEAST_KEY, tl.int32)
    for first in range(0, count, SOME):
        _id, key, weight, there = entries(listed, logits, weights, first, count, SOME)
        high = key > middle
        over += tl.where(there & high, weight, 0)
        up = tl.minimum(up, tl.where(there & high, key, GREATEST_KEY))
        down = tl.maximum(down, tl.where(there & (high == 0), key, LEAST_KEY))
    return tl.sum(over, 0), tl.min(up, 0), tl.max(down, 0)


@triton.jit
def tied(listed, logits, weights, count, edge, last, SOME: tl.constexpr):
    """Of a list: how many ids up to `last` have the key `edge`, and the weight of one."""
    ties = tl.zeros([SOME], tl.int32)
    each = tl.zeros([SOME], tl.int64)
    for first in range(0, count, SOME):
        id, key, weight, there = entries(listed, logits, weights, first, count, SOME)
        equal = there & (key == edge) & (id <= last)
        ties += equal.to(tl.int32)
        each = tl.maximum(each, tl.where(equal, weight, 0))
    return tl.sum(ties, 0), tl.max(each, 0)


@triton.jit
def key_at(listed, logits, weights, count, above, limit, SOME: tl.constexpr):
    """The edge: the least key of a list with at most `limit` over it, and how much that is; `above` is over them all.

    Keys that are there are halved, so equal ones take no step. `LEAST_KEY` if all of the list is within the limit.
    """
    total, low, down = parted(listed, logits, weights, count, LEAST_KEY, SOME)
    over, up, high = parted(listed, logits, weights, count, GREATEST_KEY, SOME)
    if (above + total).to(tl.float64) <= limit:
        low = low * 0 + LEAST_KEY
        high = low
    while low < high:
        middle = ((low.to(tl.int64) + high.to(tl.int64)) >> 1).to(tl.int32)
        over, up, down = parted(listed, logits, weights, count, middle, SOME)
        within = (above + over).to(tl.float64) <= limit
        high = tl.where(within, down, high)
        low = tl.where(within, low, up)
    over, up, down = parted(listed, logits, weights, count, high, SOME)
    return high, above + over


@triton.jit
def id_at(listed, logits, weights, count, edge, over, limit, VOCAB: tl.constexpr, SOME: tl.constexpr):
    """The last id that stays of those with the key `edge`: as many stay, by id, as begin within `limit`."""
    ties, each = tied(listed, logits, weights, count, edge, VOCAB, SOME)
    stay, most = tl.minimum(ties, 1), ties
    while stay < most:
        middle = (stay + most + 1) >> 1
        within = (over + (middle - 1).to(tl.int64) * each).to(tl.float64) <= limit
        stay = tl.where(within, middle, stay)
        most = tl.where(within, most, middle - 1)
    low = tl.where(stay < ties, 0, VOCAB)
    high = low * 0 + VOCAB
    while low < high:
        middle = (low + high) >> 1
        found, each = tied(listed, logits, weights, count, edge, middle, SOME)
        high = tl.where(found >= stay, middle, high)
        low = tl.where(found >= stay, low, middle + 1)
    return high


@triton.jit
def kept_by_part(listed, logits, weights, count, edge, last, CHUNK: tl.constexpr, UP: tl.constexpr,
                 SOME: tl.constexpr):
    """The weight of a list's ids that stay, by the part of the row they are in."""
    part = tl.arange(0, UP)
    kept = tl.zeros([UP], tl.int64)
    for first in range(0, count, SOME):
        id, key, weight, there = entries(listed, logits, weights, first, count, SOME)
        stays = there & ((key > edge) | ((key == edge) & (id <= last)))
        mine = stays[:, None] & ((id // CHUNK)[:, None] == part[None, :])
        kept += tl.sum(tl.where(mine, weight[:, None], 0), 0)
    return kept


@triton.jit
def drawn(logits, weights, listed, longs, count, top_p, u, VOCAB: tl.constexpr, CHUNK: tl.constexpr,
          CHUNKS: tl.constexpr, UP: tl.constexpr, SOME: tl.constexpr, FEW: tl.constexpr):
    """A token: the first id up to which more than u of the weight that stays has been reached. All of one row."""
    part = tl.arange(0, UP)
    kept = tl.load(longs + part, mask=part < CHUNKS, other=0)
    edge = count * 0 + LEAST_KEY
    last = count * 0 + VOCAB
    if top_p < 1:
        limit = top_p * tl.sum(kept, 0).to(tl.float64)
        kept = tl.load(longs + CHUNKS + part, mask=part < CHUNKS, other=0)
        edge, over = key_at(listed, logits, weights, count, tl.sum(kept, 0), limit, SOME)
        last = id_at(listed, logits, weights, count, edge, over, limit, VOCAB, SOME)
        kept += kept_by_part(listed, logits, weights, count, edge, last, CHUNK, UP, FEW)
    total = tl.sum(kept, 0)
    target = tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1)
    place = tl.sum((tl.cumsum(kept, 0) <= target).to(tl.int32), 0)
    before = tl.sum(tl.where(part < place, kept, 0), 0)
    id = place * CHUNK + tl.arange(0, CHUNK)
    weight = tl.load(weights + id, mask=id < VOCAB, other=0)
    key = ordered(tl.load(logits + id, mask=id < VOCAB, other=0.0))
    weight = tl.where((key > edge) | ((key == edge) & (id <= last)), weight, 0)
    return tl.min(tl.where(before + tl.cumsum(weight, 0) > target, id, VOCAB - 1), 0).to(tl.int64)
