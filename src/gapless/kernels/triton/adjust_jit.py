"""The kernels that adjust logits, in front of a step's end, and count its tokens, behind it.

Arguments as in `rows.py`, which launches them; the arithmetic is that of `device.adjust`, which is the specification:
float32, one rounding after the other, so products must not be fused with what follows.
"""

import triton
import triton.language as tl

from gapless.kernels.triton.rules_jit import permitted, ruling

SAID = tl.constexpr(0x7FFF)
"""The part of a word that says how often; with the next bit, which says that the prompt has the id, it is `KNOWN`."""
KNOWN = tl.constexpr(0xFFFF)
BIAS = tl.constexpr(16)
NEVER = tl.constexpr(-float("inf"))


@triton.jit
def biased(words, biases, id, there):
    """Words of some ids, and their biases: 0 for most, which then are not read."""
    word = tl.load(words + id, mask=there, other=0)
    return word, tl.load(biases + (word >> BIAS), mask=(word >> BIAS) > 0, other=0.0)


@triton.jit(do_not_specialize=["end"])
def adjust(
    rows, asked, logits, counts, reals, words, biases, masks, mask, ends, token_classes, numbers, spans, answers, end,
    COUNTS: tl.constexpr, REALS: tl.constexpr, BIASES: tl.constexpr, CLASSES: tl.constexpr, VOCAB: tl.constexpr,
    PART: tl.constexpr, PARTS: tl.constexpr, MASKED: tl.constexpr, STATE: tl.constexpr, LEFT: tl.constexpr,
    LEFT_NEXT: tl.constexpr, DONE: tl.constexpr, ADJUSTED: tl.constexpr, LEAST: tl.constexpr,
    REPETITION: tl.constexpr, FREQUENCY: tl.constexpr, PRESENCE: tl.constexpr, RULED: tl.constexpr,
    GRAMMAR: tl.constexpr, GRAMMAR_STATE: tl.constexpr, SAMPLE: tl.constexpr, ENDING: tl.constexpr,
):
    """A part of a row. `MASKED`: there is a mask for each row of the step; `RULED`: some may have a token table."""
    at, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    row = tl.load(rows + at)
    own, real = counts + row * COUNTS, reals + row * REALS
    how = tl.load(own + ADJUSTED)
    if (how != 0) & (tl.load(asked + at) == SAMPLE) & (tl.load(own + DONE) == 0):
        state, lane = tl.load(own + STATE), tl.arange(0, PART)
        early = tl.load(own + LEFT_NEXT) - tl.load(own + LEFT) < tl.load(own + LEAST)
        held = early & (tl.load(ends + state * CLASSES + ENDING) != 0)
        held_id = tl.where(held, end, -1)
        words += row * VOCAB
        biases += row * BIASES
        if MASKED:
            allowed = masks + at * VOCAB
        else:
            allowed = masks + tl.load(mask + state) * VOCAB
        if RULED:
            slot = ruling(own, state, answers, GRAMMAR)
        lifted = held | (how == 2)  # until something is found that may be said
        first = 0
        while lifted & (first < VOCAB):
            id = first + lane
            some = id < VOCAB
            _word, bias = biased(words, biases, id, some)
            if RULED:
                if slot != 0:
                    may = permitted(own, slot, id, some, token_classes, numbers, spans, GRAMMAR_STATE, LEFT, VOCAB)
                else:
                    may = tl.load(allowed + id, mask=some, other=0) != 0
            else:
                may = tl.load(allowed + id, mask=some, other=0) != 0
            may = may & (bias > NEVER) & (id != held_id)
            lifted = tl.max(may.to(tl.int32), 0) == 0
            first += PART
        id = part * PART + lane
        there = id < VOCAB
        word, bias = biased(words, biases, id, there)
        logit = tl.load(logits + at * VOCAB + id, mask=there, other=0.0)
        repetition, said = tl.load(real + REPETITION).to(tl.float32), word & SAID
        repeated = tl.where(logit < 0, logit * repetition, tl.div_rn(logit, tl.zeros([PART], tl.float32) + repetition))
        new = tl.where((word & KNOWN) != 0, repeated, logit)
        new = new - said.to(tl.float32) * tl.load(real + FREQUENCY).to(tl.float32)
        new = tl.where(said > 0, new - tl.load(real + PRESENCE).to(tl.float32), new)
        never = (bias == NEVER) | (id == held_id)
        bias = tl.where(bias == NEVER, 0.0, bias)
        new = new + tl.where(never, tl.where(lifted, bias, NEVER), bias)
        tl.store(logits + at * VOCAB + id, new, mask=there)


@triton.jit
def count(rows, asked, counts, words, classes, COUNTS: tl.constexpr, VOCAB: tl.constexpr, TOKEN: tl.constexpr,
          DONE: tl.constexpr, ADJUSTED: tl.constexpr, SAMPLE: tl.constexpr, OTHER: tl.constexpr):
    """Count the token that row number `program_id` of the step was given."""
    row = tl.load(rows + tl.program_id(0))
    own = counts + row * COUNTS
    if (tl.load(own + ADJUSTED) != 0) & (tl.load(asked + tl.program_id(0)) == SAMPLE) & (tl.load(own + DONE) == 0):
        token = tl.load(own + TOKEN)
        word = tl.load(words + row * VOCAB + token)
        if (tl.load(classes + token) == OTHER) & ((word & SAID) != SAID):
            tl.store(words + row * VOCAB + token, word + 1)
