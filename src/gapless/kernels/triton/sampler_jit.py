"""The kernels that sample: rows in parts, four launches, and whole numbers throughout. `sampler.py` launches them.

`survey` finds each row's best logit, `weigh` turns logits into weights and sums them, `narrow` finds the bin of weights
in which top-p ends, and `finish` settles the rest of a row: the exact edge, the draw, logprobs, the end of its step.
The arithmetic is that of `device.sampler`, which is the specification: weights are exponentials in fixed point, so sums
do not depend on their order, and what arrives by atomics is integers alone. A part that has nothing to do ends at once:
a row that draws nothing and wants no logprobs costs its survey.

Top-p keeps all ids before which at most a share of the weight lies, likeliest first. Its edge is the least key (a logit
as an ordered integer) above which at most that much lies, however it is found. Here: weights fall into bins of equal
width in their logarithm, as many as suit the row; the edge is in one of them, known exactly from the bins' sums; the ids
of that bin are listed, and the keys among them bisected. The order of a list depends on timing, what is read from it
does not.

Scratch, per row of B, in `CHUNKS` parts of `CHUNK` ids: `floats` [3, CHUNKS]: highest logit, best allowed one, least
finite one; `ints` [CHUNKS + 2]: where the best ones are, how many ids are listed, by how much a weight's bits are
shifted to be its bin; `longs` [(3 + TOPS) CHUNKS]: sums of weights, of those over the edge's bin, of those without
temperature, and the likeliest ids; `bins` [BINS], `weights` [VOCAB] and `listed` [VOCAB].
"""

import triton
import triton.language as tl

from gapless.kernels.triton.rows_jit import ended, told

LOWEST = tl.constexpr(-(2**63))
"""Less than any key with its id."""
LAST = tl.constexpr(2**32 - 1)
LEAST_KEY, GREATEST_KEY = tl.constexpr(-(2**31)), tl.constexpr(2**31 - 1)
BINS_BITS = tl.constexpr(10)
BINS = tl.constexpr(1 << 10)
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15 - 2**64)
FIRST = tl.constexpr(0xBF58476D1CE4E5B9 - 2**64)
SECOND = tl.constexpr(0x94D049BB133111EB - 2**64)


@triton.jit
def ordered(logit):
    """Float32 -> int32 in the same order; both zeros are one."""
    bits = tl.where(logit == 0, 0.0, logit).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def weighed(logit, best, temperature, ONE: tl.constexpr):
    """exp((logit - best) / temperature) as an integer, 1 being ONE, a half rounded to the even one."""
    weight = tl.exp((logit.to(tl.float64) - best.to(tl.float64)) / temperature) * ONE
    whole = (weight + 4503599627370496.0) - 4503599627370496.0  # 2**52: no room for less than one behind it
    return tl.where(weight < 4503599627370496.0, whole, weight).to(tl.int64)


@triton.jit
def mixed(x):
    """The finalizer of splitmix64."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * FIRST
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * SECOND
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def uniform(seed, position):
    """A float64 in [0, 1) for (seed, position), see `device.sampler.uniform`."""
    bits = mixed(mixed(seed + GOLDEN) + GOLDEN * (position + 1))
    return ((bits >> 11) & 0x1FFFFFFFFFFFFF).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def portion(logits, masks, mask, own, at, part, STATE: tl.constexpr, VOCAB: tl.constexpr, CHUNK: tl.constexpr,
            MASKED: tl.constexpr):
    """Ids of a part, their logits, and these where allowed; -inf elsewhere. `MASKED`: there is a mask for each row."""
    id = part * CHUNK + tl.arange(0, CHUNK)
    there = id < VOCAB
    logit = tl.load(logits + at * VOCAB + id, mask=there, other=-float("inf"))
    if MASKED:
        allowed = masks + at * VOCAB
    else:
        allowed = masks + tl.load(mask + tl.load(own + STATE)) * VOCAB
    may = tl.load(allowed + id, mask=there, other=0) != 0
    return id, logit, tl.where(may, logit, -float("inf"))


@triton.jit
def wishes(asked, own, real, at, SAMPLE: tl.constexpr, DONE: tl.constexpr, TOP_LOGPROBS: tl.constexpr,
           TEMPERATURE: tl.constexpr, TOP_P: tl.constexpr):
    """A row's temperature, 0 for the likeliest token, its top-p, and how many logprobs it wants, -1 for none at all."""
    live = (tl.load(own + DONE) == 0) & (tl.load(asked + at) == SAMPLE)
    temperature = tl.where(live, tl.load(real + TEMPERATURE), 0.0)
    wanted = tl.where(live, tl.load(own + TOP_LOGPROBS).to(tl.int32), -1)
    return temperature, tl.load(real + TOP_P), wanted


@triton.jit
def overall(floats, ints, at, CHUNKS: tl.constexpr, UP: tl.constexpr):
    """A row's best allowed logit, the smallest id that has it, the least finite one, and whether the row is usable."""
    part = tl.arange(0, UP)
    there, own = part < CHUNKS, floats + at * (3 * CHUNKS) + part
    highest = tl.max(tl.load(own, mask=there, other=-float("inf")), 0)
    bests = tl.load(own + CHUNKS, mask=there, other=-float("inf"))
    least = tl.min(tl.load(own + 2 * CHUNKS, mask=there, other=float("inf")), 0)
    best = tl.max(bests, 0)
    found = tl.load(ints + at * (CHUNKS + 2) + part, mask=there, other=0)
    token = tl.min(tl.where(there & (bests == best), found, GREATEST_KEY), 0)
    usable = (highest < float("inf")) & (best > -float("inf"))
    return best, tl.where(usable, token, 0).to(tl.int64), least, usable


@triton.jit
def survey(rows, asked, logits, counts, masks, mask, floats, ints, bins, COUNTS: tl.constexpr, STATE: tl.constexpr,
           VOCAB: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, MASKED: tl.constexpr,
           NOTHING: tl.constexpr):
    """A part of a row: what `overall` looks at; and the row's scratch is empty."""
    at, part = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS
    if tl.load(asked + at) != NOTHING:
        own = counts + tl.load(rows + at) * COUNTS
        id, logit, masked = portion(logits, masks, mask, own, at, part, STATE, VOCAB, CHUNK, MASKED)
        broken = logit != logit  # noqa: PLR0124 - so is NaN told
        masked = tl.where(broken, -float("inf"), masked)
        best = tl.max(masked, 0)
        place = floats + at * (3 * CHUNKS) + part
        tl.store(place, tl.max(tl.where(broken, float("inf"), logit), 0))
        tl.store(place + CHUNKS, best)
        tl.store(place + 2 * CHUNKS, tl.min(tl.where(masked > -float("inf"), masked, float("inf")), 0))
        tl.store(ints + at * (CHUNKS + 2) + part, tl.min(tl.where(masked == best, id, VOCAB), 0))
        tl.store(ints + at * (CHUNKS + 2) + CHUNKS, 0, mask=part == 0)
        bin = tl.arange(0, BINS)
        SHARE: tl.constexpr = (BINS + CHUNKS - 1) // CHUNKS
        tl.store(bins + at * BINS + bin, tl.zeros([BINS], tl.int64), mask=bin // SHARE == part)


@triton.jit
def shifted(best, least, temperature, top_p, VOCAB: tl.constexpr, BITS: tl.constexpr):
    """By how much to shift differences of `size_of` so that bins reach over all weights that can matter.

    That is to the least weight of the row, and no further than where all that lies below, of every id, is less than
    what top-p leaves out. Anything may be returned here without harm to a result, but not to the time it takes.
    """
    spread = ((best.to(tl.float64) - least.to(tl.float64)) / temperature).to(tl.float32) * 2.2
    ignored = tl.log2(VOCAB / tl.maximum((1.0 - top_p).to(tl.float32), 1e-30)) + 2.0
    octaves = tl.minimum(tl.minimum(spread, ignored), BITS + 1.0)
    steps = tl.maximum((octaves * 8388608.0).to(tl.int32), 1)
    length = (steps.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126
    return tl.maximum(length - BINS_BITS, 0)


@triton.jit
def bin_of(weight, shift, BITS: tl.constexpr):
    """The bin of a weight > 0, the largest weights in bin 0: by its bits as a float32, which grow as its logarithm."""
    size = weight.to(tl.float32).to(tl.int32, bitcast=True)
    return tl.minimum((((127 + BITS) << 23) - size) >> shift, BINS - 1)


@triton.jit
def leading(masked, id, wanted, out):
    """The `wanted` best ids of a part, each below its key; `LOWEST` where there are no more that are possible."""
    both = (ordered(masked).to(tl.int64) << 32) + (LAST - id.to(tl.int64))
    both = tl.where(masked > -float("inf"), both, LOWEST)
    for i in range(0, wanted):
        top = tl.max(both, 0)
        tl.store(out + i, top)
        both = tl.where(both == top, LOWEST, both)


@triton.jit
def weigh(rows, asked, logits, counts, reals, masks, mask, floats, ints, longs, bins, weights,
          COUNTS: tl.constexpr, REALS: tl.constexpr, STATE: tl.constexpr, DONE: tl.constexpr,
          TOP_LOGPROBS: tl.constexpr, TEMPERATURE: tl.constexpr, TOP_P: tl.constexpr, VOCAB: tl.constexpr,
          BITS: tl.constexpr, ONE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, UP: tl.constexpr,
          TOPS: tl.constexpr, MASKED: tl.constexpr, SAMPLE: tl.constexpr):
    """A part of a row: weights, their sums and bins, and what logprobs need, for those who want them."""
    at, part = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS
    row = tl.load(rows + at)
    own = counts + row * COUNTS
    temperature, top_p, wanted = wishes(
        asked, own, reals + row * REALS, at, SAMPLE, DONE, TOP_LOGPROBS, TEMPERATURE, TOP_P
    )
    if (temperature > 0) | (wanted >= 0):
        best, token, least, usable = overall(floats, ints, at, CHUNKS, UP)
        if usable:
            id, logit, masked = portion(logits, masks, mask, own, at, part, STATE, VOCAB, CHUNK, MASKED)
            sums = longs + at * ((3 + TOPS) * CHUNKS) + part
            if temperature > 0:
                weight = weighed(masked, best, temperature, ONE)
                tl.store(weights + at * VOCAB + id, weight, mask=id < VOCAB)
                tl.store(sums, tl.sum(weight, 0))
                if top_p < 1:
                    shift = shifted(best, least, temperature, top_p, VOCAB, BITS)
                    tl.store(ints + at * (CHUNKS + 2) + CHUNKS + 1, shift)
                    bin = bin_of(weight, shift, BITS)
                    counted = (weight > 0) & (bin < BINS - 1)  # nobody asks what lies in the last bin
                    tl.atomic_add(bins + at * BINS + bin, weight, mask=counted, sem="relaxed")
            if wanted >= 0:
                tl.store(sums + 2 * CHUNKS, tl.sum(weighed(masked, best, 1.0, ONE), 0))
                leading(masked, id, tl.minimum(wanted, TOPS), sums - part + 3 * CHUNKS + part * TOPS)


@triton.jit
def narrow(rows, asked, counts, reals, floats, ints, longs, bins, weights, listed,
           COUNTS: tl.constexpr, REALS: tl.constexpr, DONE: tl.constexpr, TOP_LOGPROBS: tl.constexpr,
           TEMPERATURE: tl.constexpr, TOP_P: tl.constexpr, VOCAB: tl.constexpr, BITS: tl.constexpr,
           CHUNK: tl.constexpr, CHUNKS: tl.constexpr, UP: tl.constexpr, TOPS: tl.constexpr,
           SAMPLE: tl.constexpr):
    """A part of a row with a top-p: the weight over the edge's bin, and which ids are in it."""
    at, part = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS
    row = tl.load(rows + at)
    temperature, top_p, wanted = wishes(
        asked, counts + row * COUNTS, reals + row * REALS, at, SAMPLE, DONE, TOP_LOGPROBS, TEMPERATURE, TOP_P
    )
    if (temperature > 0) & (top_p < 1):
        best, token, least, usable = overall(floats, ints, at, CHUNKS, UP)
        if usable:
            sums, some = longs + at * ((3 + TOPS) * CHUNKS), ints + at * (CHUNKS + 2) + CHUNKS
            near = tl.arange(0, UP)
            total = tl.sum(tl.load(sums + near, mask=near < CHUNKS, other=0), 0)
            tally = tl.load(bins + at * BINS + tl.arange(0, BINS))
            over = tl.cumsum(tally, 0) - tally
            edge = tl.sum((over.to(tl.float64) <= top_p * total.to(tl.float64)).to(tl.int32), 0) - 1
            id = part * CHUNK + tl.arange(0, CHUNK)
            weight = tl.load(weights + at * VOCAB + id, mask=id < VOCAB, other=0)
            bin = bin_of(weight, tl.load(some + 1), BITS)
            tl.store(sums + CHUNKS + part, tl.sum(tl.where((weight > 0) & (bin < edge), weight, 0), 0))
            inside = ((weight > 0) & (bin == edge)).to(tl.int32)
            first = tl.atomic_add(some, tl.sum(inside, 0), sem="relaxed")
            tl.store(listed + at * VOCAB + first + tl.cumsum(inside, 0) - 1, id, mask=inside > 0)


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
        id, key, weight, there = entries(listed, logits, weights, first, count, SOME)
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


@triton.jit
def scored(logits, longs, best, token, wanted, usable, VOCAB: tl.constexpr, ONE: tl.constexpr, CHUNKS: tl.constexpr,
           UP: tl.constexpr, TOPS: tl.constexpr, MERGED: tl.constexpr, FIELDS: tl.constexpr):
    """Logprobs of a row that wants some: the token's, and ids (-1: none) and logprobs [FIELDS] of the best ones.

    A row that is not usable counts as one whose logits are all 0.
    """
    part, field = tl.arange(0, UP), tl.arange(0, FIELDS)
    if usable:
        total = tl.sum(tl.load(longs + 2 * CHUNKS + part, mask=part < CHUNKS, other=0), 0).to(tl.float64) / ONE
        lane = tl.arange(0, MERGED)
        there = (lane < CHUNKS * TOPS) & (lane % TOPS < wanted)
        both = tl.load(longs + 3 * CHUNKS + lane, mask=there, other=LOWEST)
        found = tl.full([FIELDS], LOWEST, tl.int64)
        for i in range(0, tl.minimum(wanted, TOPS)):
            top = tl.max(both, 0)
            found = tl.where(field == i, top, found)
            both = tl.where(both == top, LOWEST, both)
        ids = tl.where(found > LOWEST, LAST - (found & LAST), -1)
        mine = tl.load(logits + token).to(tl.float64) - best.to(tl.float64)
        values = tl.load(logits + ids, mask=ids >= 0, other=0.0).to(tl.float64) - best.to(tl.float64)
    else:
        total = tl.full([], VOCAB, tl.float64)
        ids = tl.where((field < wanted) & (field < VOCAB) & (field < TOPS), field, -1).to(tl.int64)
        mine = tl.zeros([], tl.float64)
        values = tl.zeros([FIELDS], tl.float64)
    least = tl.maximum(tl.log(total), 0.0)  # it is never less; so that no product in there is fused with what follows
    return mine - least, ids, tl.where(ids >= 0, values - least, 0.0)


@triton.jit
def finish(
    step, rows, asked, logits, lines, coord, size, counts, reals, floats, ints, longs, weights, listed,
    classes, following, head, ends, counting, resets, on_limit,
    COUNTS: tl.constexpr, REALS: tl.constexpr, CLASSES: tl.constexpr, VOCAB: tl.constexpr, ONE: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, UP: tl.constexpr, TOPS: tl.constexpr, MERGED: tl.constexpr,
    SOME: tl.constexpr, FEW: tl.constexpr, FIELDS: tl.constexpr, SPATIAL: tl.constexpr, TOKEN: tl.constexpr,
    POSITION: tl.constexpr, STATE: tl.constexpr, LEFT: tl.constexpr, LEFT_NEXT: tl.constexpr,
    OBJECTS_LEFT: tl.constexpr, DONE: tl.constexpr, EPOCH: tl.constexpr, SEED: tl.constexpr,
    TOP_LOGPROBS: tl.constexpr, VALUE: tl.constexpr, TEMPERATURE: tl.constexpr, TOP_P: tl.constexpr,
    ALTERNATIVES: tl.constexpr, WIDTH: tl.constexpr, POISON: tl.constexpr, NOTHING: tl.constexpr,
    SAMPLE: tl.constexpr, COORD: tl.constexpr, SIZE: tl.constexpr, STOP: tl.constexpr, LENGTH: tl.constexpr,
    NONFINITE: tl.constexpr, MUTED: tl.constexpr,
):
    """The end of a step for row number `program_id` of it."""
    at = tl.program_id(0)
    wish = tl.load(asked + at)
    if wish != NOTHING:
        row = tl.load(rows + at)
        own = counts + row * COUNTS
        temperature, top_p, wanted = wishes(
            asked, own, reals + row * REALS, at, SAMPLE, DONE, TOP_LOGPROBS, TEMPERATURE, TOP_P
        )
        best, token, least, usable = overall(floats, ints, at, CHUNKS, UP)
        logit, sums = logits + at * VOCAB, longs + at * ((3 + TOPS) * CHUNKS)
        if (temperature > 0) & usable:
            u = uniform(tl.load(own + SEED), tl.load(own + POSITION) + 1)
            count = tl.load(ints + at * (CHUNKS + 2) + CHUNKS)
            token = drawn(logit, weights + at * VOCAB, listed + at * VOCAB, sums, count, top_p, u, VOCAB, CHUNK,
                          CHUNKS, UP, SOME, FEW)
        field = tl.arange(0, FIELDS)
        logprob = tl.zeros([], tl.float64)
        ids = tl.full([FIELDS], -1, tl.int64)
        values = tl.zeros([FIELDS], tl.float64)
        if wanted >= 0:
            logprob, ids, values = scored(
                logit, sums, best, token, wanted, usable, VOCAB, ONE, CHUNKS, UP, TOPS, MERGED, FIELDS
            )
        flags, said, first, second = ended(
            at, row, wish, token, usable, coord, size, counts, reals, classes, following, head, ends, counting, resets,
            on_limit, COUNTS, REALS, CLASSES, SPATIAL, TOKEN, POSITION, STATE, LEFT, LEFT_NEXT, OBJECTS_LEFT, DONE,
            VALUE, POISON, NOTHING, SAMPLE, COORD, SIZE, STOP, LENGTH, NONFINITE, MUTED
        )
        line = lines + at * WIDTH
        told(line, tl.load(step), row, tl.load(own + EPOCH), flags, said, first, second, logprob, True, ALTERNATIVES,
             WIDTH, ALTERNATIVES)
        tl.store(line + ALTERNATIVES + field, ids.to(tl.float64), mask=field < TOPS)
        tl.store(line + ALTERNATIVES + TOPS + field, values, mask=field < TOPS)
