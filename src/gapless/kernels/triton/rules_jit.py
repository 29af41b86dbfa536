"""Token tables where logits are read and rows are moved on: no mask is ever written out.

Arguments as `kernels.rows.Grammars` has them; `own` points at a row's integers. A state that the slot's table does not
have counts as its last one: so a row whose table never came, since the step that should have brought it failed, reads
nothing beyond the slot's numbers.
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
def among(state, states):
    """A state, or the last one that there is."""
    return tl.minimum(tl.maximum(state, 0), tl.maximum(states - 1, 0))


@triton.jit
def permitted(own, slot, id, there, token_classes, numbers, spans, GRAMMAR_STATE: tl.constexpr, LEFT: tl.constexpr,
              VOCAB: tl.constexpr):
    """Which of the ids `id` the table in `slot` allows, and leaves room to finish behind, if there was enough."""
    here = numbers + tl.load(spans + slot * SPAN)
    width, states = tl.load(spans + slot * SPAN + 1), tl.load(spans + slot * SPAN + 2)
    state, left = among(tl.load(own + GRAMMAR_STATE), states), tl.load(own + LEFT)
    distances = here + states * width
    left = tl.where(tl.load(distances + state).to(tl.int64) + 1 <= left, left, FAR)
    kind = tl.load(token_classes + slot * VOCAB + id, mask=there, other=0).to(tl.int32) & 0xFFFF
    to = tl.load(here + state * width + kind, mask=there, other=-1).to(tl.int32)
    after = tl.load(distances + among(to.to(tl.int64), states)).to(tl.int32)
    return (to >= 0) & ((kind == END) | (after + 2 <= left))


@triton.jit
def ruled_on(own, slot, token, token_classes, numbers, spans, GRAMMAR_STATE: tl.constexpr, VOCAB: tl.constexpr):
    """The state of the table in `slot` behind a token."""
    kind = tl.load(token_classes + slot * VOCAB + token).to(tl.int32) & 0xFFFF
    width, states = tl.load(spans + slot * SPAN + 1), tl.load(spans + slot * SPAN + 2)
    at = tl.load(spans + slot * SPAN) + among(tl.load(own + GRAMMAR_STATE), states) * width
    return among(tl.load(numbers + at + kind).to(tl.int64), states)
