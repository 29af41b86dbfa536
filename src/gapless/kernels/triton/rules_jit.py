"""Token tables where logits are read and rows are moved on: no mask is ever written out.

Arguments as `kernels.rows.Grammars` has them; `own` points at a row's integers.
"""

import triton
import triton.language as tl

SPAN = tl.constexpr(3)
END = tl.constexpr(1)
"""The class of the end."""
FAR = tl.constexpr(2**30)


@triton.jit
def ruling(own, state, answers, GRAMMAR: tl.constexpr):
    """The slot of the table that says a row's next token, which it takes in `state` of its program; 0 for none."""
    return tl.where(tl.load(answers + state) != 0, tl.load(own + GRAMMAR), 0)


@triton.jit
def permitted(own, slot, id, there, token_classes, numbers, spans, GRAMMAR_STATE: tl.constexpr, LEFT: tl.constexpr,
              VOCAB: tl.constexpr):
    """Which of the ids `id` the table in `slot` allows, and leaves room to finish behind, if there was enough."""
    here = numbers + tl.load(spans + slot * SPAN)
    width, states = tl.load(spans + slot * SPAN + 1), tl.load(spans + slot * SPAN + 2)
    state, left = tl.load(own + GRAMMAR_STATE), tl.load(own + LEFT)
    distances = here + states * width
    left = tl.where(tl.load(distances + state).to(tl.int64) + 1 <= left, left, FAR)
    kind = tl.load(token_classes + slot * VOCAB + id, mask=there, other=0).to(tl.int32) & 0xFFFF
    to = tl.load(here + state * width + kind, mask=there, other=-1).to(tl.int32)
    after = tl.load(distances + tl.maximum(to, 0)).to(tl.int32)
    return (to >= 0) & ((kind == END) | (after + 2 <= left))


@triton.jit
def ruled_on(own, slot, token, token_classes, numbers, spans, GRAMMAR_STATE: tl.constexpr, VOCAB: tl.constexpr):
    """The state of the table in `slot` behind a token."""
    kind = tl.load(token_classes + slot * VOCAB + token).to(tl.int32) & 0xFFFF
    at = tl.load(spans + slot * SPAN) + tl.load(own + GRAMMAR_STATE) * tl.load(spans + slot * SPAN + 1)
    return tl.load(numbers + at + kind).to(tl.int64)
