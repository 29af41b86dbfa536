"""What a request's settings make of a row of scores, id by id and from the whole of what was said: the naive way.

What flows in: float32 scores, the mask, the place in the table, the ids said so far, and the request (`adjusted`, for
the oracle) or what the engine told the device (`adjusted_by`). What flows out: new float32 scores. The formulas are
written here once more, with one rounding to float32 after each operation, and nothing is carried from token to token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gapless.constrain.table import TokenClass, Walker
from gapless.records import Adjustment, Mask, Prompt, Request

Scores = npt.NDArray[np.float32]


def words_of(prompt: Prompt, block: int) -> list[int]:
    """The ids of a prompt that are no picture's (of `block` positions each) and stand for no value."""
    hidden = {at for inset in prompt.insets for at in range(inset.at, inset.at + block)}
    own = [id for at, id in enumerate(prompt.ids) if not prompt.values[at] and at not in hidden]
    return sorted(set(own))


def adjusted(scores: Scores, mask: Mask, request: Request, walker: Walker, block: int, said: Sequence[int]) -> Scores:
    """For the request itself; `said`: all of it, in both phases."""
    s = request.sampling
    if not s.adjusts:
        return scores
    penalties = (s.repetition_penalty, s.frequency_penalty, s.presence_penalty)
    own = [(id, bias) for id, bias in s.logit_bias if id not in s.banned]
    biases = (*own, *((id, -np.inf) for id in s.banned))
    told = Adjustment(*penalties, s.min_tokens, biases, tuple(words_of(request.prompt, block)), ())
    return adjusted_by(scores, mask, told, walker, said)


def adjusted_by(scores: Scores, mask: Mask, of: Adjustment, walker: Walker, said: Sequence[int]) -> Scores:
    """`said`: since the row's life began."""
    out, classes = scores.copy(), walker.table.classes
    repetition, frequency, presence = map(np.float32, (of.repetition, of.frequency, of.presence))
    denied = []
    for id in range(len(out)):
        plain = classes[id] == TokenClass.OTHER
        count = (*of.said, *said).count(id) if plain else 0
        if count or (plain and id in of.prompt):
            out[id] = out[id] / repetition if out[id] >= 0 else out[id] * repetition
        out[id] = out[id] - np.float32(count) * frequency
        if count:
            out[id] = out[id] - presence
        for biased, bias in of.biases:
            if biased == id and bias == -np.inf:
                denied.append(id)
            elif biased == id:
                out[id] = out[id] + np.float32(bias)
        if walker.table.ends[walker.state, classes[id]] and walker.left_next - walker.left < of.least:
            denied.append(id)
    left = mask.copy()
    left[denied] = False
    if left.any():
        out[denied] = -np.inf
    return out
