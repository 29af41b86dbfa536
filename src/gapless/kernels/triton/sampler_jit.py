"""The kernels that sample: rows in parts, four launches, and whole numbers throughout. `sampler.py` launches them.

`survey` finds each row's best logit, `weigh` turns logits into weights and sums them, `narrow` finds the bin of weights
in which top-p ends, and `finish` settles the rest of a row: the exact edge and the draw (`nucleus_jit`), logprobs, the
end of its step. Where nobody draws or wants logprobs (not `DRAWN`), the first and the last are all there is. The
arithmetic is that of `device.sampler`, which is the specification: weights are exponentials in fixed point, so sums do
not depend on their order, and what arrives by atomics is integers alone. A part that has nothing to do ends at once: a
row that draws nothing and wants no logprobs costs its survey.

Scratch, per row of B, in `CHUNKS` parts of `CHUNK` ids: `floats` [3, CHUNKS]: highest logit, best allowed one, least
finite one; `ints` [CHUNKS + 2]: where the best ones are, how many ids are listed, by how much a weight's bits are
shifted to be its bin; `longs` [(3 + TOPS) CHUNKS]: sums of weights, of those over the edge's bin, of those without
temperature, and the likeliest ids; `bins` [BINS], `weights` [VOCAB] and `listed` [VOCAB].
"""

import triton
import triton.language as tl

from gapless.kernels.triton.nucleus_jit import drawn, ordered
from gapless.kernels.triton.rows_jit import ended, told
from gapless.kernels.triton.rules_jit import permitted, ruling

LOWEST = tl.constexpr(-(2**63))
"""Less than any key with its id."""
LAST = tl.constexpr(2**32 - 1)
FAR = tl.constexpr(2**31 - 1)
"""No id is so large."""
BINS_BITS = tl.constexpr(10)
BINS = tl.constexpr(1 << 10)
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15 - 2**64)
FIRST = tl.constexpr(0xBF58476D1CE4E5B9 - 2**64)
SECOND = tl.constexpr(0x94D049BB133111EB - 2**64)


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
def portion(logits, masks, mask, token_classes, numbers, spans, answers, own, at, part, STATE: tl.constexpr,
            LEFT: tl.constexpr, VOCAB: tl.constexpr, CHUNK: tl.constexpr, MASKED: tl.constexpr, RULED: tl.constexpr,
            GRAMMAR: tl.constexpr, GRAMMAR_STATE: tl.constexpr):
    """Ids of a part, their logits, and these where allowed; -inf elsewhere. `MASKED`: there is a mask for each row;
    `RULED`: some have a token table."""
    id = part * CHUNK + tl.arange(0, CHUNK)
    there = id < VOCAB
    logit = tl.load(logits + at * VOCAB + id, mask=there, other=-float("inf"))
    if MASKED:
        allowed = masks + at * VOCAB
    else:
        allowed = masks + tl.load(mask + tl.load(own + STATE)) * VOCAB
    if RULED:
        slot = ruling(own, tl.load(own + STATE), answers, GRAMMAR)
        if slot != 0:
            may = permitted(own, slot, id, there, token_classes, numbers, spans, GRAMMAR_STATE, LEFT, VOCAB)
        else:
            may = tl.load(allowed + id, mask=there, other=0) != 0
    else:
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
    token = tl.min(tl.where(there & (bests == best), found, FAR), 0)
    usable = (highest < float("inf")) & (best > -float("inf"))
    return best, tl.where(usable, token, 0).to(tl.int64), least, usable


@triton.jit
def survey(rows, asked, logits, counts, masks, mask, token_classes, numbers, spans, answers, floats, ints, bins,
           COUNTS: tl.constexpr, STATE: tl.constexpr, LEFT: tl.constexpr, VOCAB: tl.constexpr, CHUNK: tl.constexpr,
           CHUNKS: tl.constexpr, MASKED: tl.constexpr, RULED: tl.constexpr, GRAMMAR: tl.constexpr,
           GRAMMAR_STATE: tl.constexpr, DRAWN: tl.constexpr, NOTHING: tl.constexpr):
    """A part of a row: what `overall` looks at; and the row's scratch is empty, if somebody draws."""
    at, part = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS
    if tl.load(asked + at) != NOTHING:
        own = counts + tl.load(rows + at) * COUNTS
        id, logit, masked = portion(logits, masks, mask, token_classes, numbers, spans, answers, own, at, part, STATE,
                                    LEFT, VOCAB, CHUNK, MASKED, RULED, GRAMMAR, GRAMMAR_STATE)
        broken = logit != logit  # noqa: PLR0124 - so is NaN told
        masked = tl.where(broken, -float("inf"), masked)
        best = tl.max(masked, 0)
        place = floats + at * (3 * CHUNKS) + part
        tl.store(place, tl.max(tl.where(broken, float("inf"), logit), 0))
        tl.store(place + CHUNKS, best)
        tl.store(place + 2 * CHUNKS, tl.min(tl.where(masked > -float("inf"), masked, float("inf")), 0))
        tl.store(ints + at * (CHUNKS + 2) + part, tl.min(tl.where(masked == best, id, VOCAB), 0))
        tl.store(ints + at * (CHUNKS + 2) + CHUNKS, 0, mask=part == 0)
        if DRAWN:
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
def weigh(rows, asked, logits, counts, reals, masks, mask, token_classes, numbers, spans, answers, floats, ints,
          longs, bins, weights,
          COUNTS: tl.constexpr, REALS: tl.constexpr, STATE: tl.constexpr, LEFT: tl.constexpr, DONE: tl.constexpr,
          TOP_LOGPROBS: tl.constexpr, TEMPERATURE: tl.constexpr, TOP_P: tl.constexpr, VOCAB: tl.constexpr,
          BITS: tl.constexpr, ONE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, UP: tl.constexpr,
          TOPS: tl.constexpr, MASKED: tl.constexpr, RULED: tl.constexpr, GRAMMAR: tl.constexpr,
          GRAMMAR_STATE: tl.constexpr, SAMPLE: tl.constexpr):
    """A part of a row: weights, their sums and bins, and what logprobs need, for those who want them."""
    at, part = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS
    row = tl.load(rows + at)
    own = counts + row * COUNTS
    temperature, top_p, wanted = wishes(
        asked, own, reals + row * REALS, at, SAMPLE, DONE, TOP_LOGPROBS, TEMPERATURE, TOP_P
    )
    if (temperature > 0) | (wanted >= 0):
        best, _token, least, usable = overall(floats, ints, at, CHUNKS, UP)
        if usable:
            id, _logit, masked = portion(logits, masks, mask, token_classes, numbers, spans, answers, own, at, part,
                                         STATE, LEFT, VOCAB, CHUNK, MASKED, RULED, GRAMMAR, GRAMMAR_STATE)
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
    temperature, top_p, _wanted = wishes(
        asked, counts + row * COUNTS, reals + row * REALS, at, SAMPLE, DONE, TOP_LOGPROBS, TEMPERATURE, TOP_P
    )
    if (temperature > 0) & (top_p < 1):
        _best, _token, _least, usable = overall(floats, ints, at, CHUNKS, UP)
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
    classes, following, head, ends, counting, resets, on_limit, token_classes, numbers, spans, answers,
    COUNTS: tl.constexpr, REALS: tl.constexpr, CLASSES: tl.constexpr, VOCAB: tl.constexpr, ONE: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, UP: tl.constexpr, TOPS: tl.constexpr, MERGED: tl.constexpr,
    SOME: tl.constexpr, FEW: tl.constexpr, FIELDS: tl.constexpr, SPATIAL: tl.constexpr, DRAWN: tl.constexpr,
    RULED: tl.constexpr, GRAMMAR: tl.constexpr, GRAMMAR_STATE: tl.constexpr, TOKEN: tl.constexpr,
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
        best, token, _least, usable = overall(floats, ints, at, CHUNKS, UP)
        if DRAWN:
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
        if DRAWN:
            if wanted >= 0:
                logprob, ids, values = scored(
                    logit, sums, best, token, wanted, usable, VOCAB, ONE, CHUNKS, UP, TOPS, MERGED, FIELDS
                )
        flags, said, first, second = ended(
            at, row, wish, token, usable, coord, size, counts, reals, classes, following, head, ends, counting, resets,
            on_limit, token_classes, numbers, spans, answers, COUNTS, REALS, CLASSES, VOCAB, SPATIAL, RULED, GRAMMAR,
            GRAMMAR_STATE, TOKEN, POSITION, STATE, LEFT, LEFT_NEXT, OBJECTS_LEFT, DONE,
            VALUE, POISON, NOTHING, SAMPLE, COORD, SIZE, STOP, LENGTH, NONFINITE, MUTED
        )
        line = lines + at * WIDTH
        told(line, tl.load(step), row, tl.load(own + EPOCH), flags, said, first, second, logprob, True, ALTERNATIVES,
             WIDTH, ALTERNATIVES)
        tl.store(line + ALTERNATIVES + field, ids.to(tl.float64), mask=field < TOPS)
        tl.store(line + ALTERNATIVES + TOPS + field, values, mask=field < TOPS)
