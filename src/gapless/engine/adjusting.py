"""What a row must be told so that its logits are adjusted as if its life had been one: pure, from what is committed.

In: a request with its committed tokens, and what stands in its prompt. Out: an `Adjustment`, or None for most requests.
Counted are ids that stand for words: no pictures, no coordinates or sizes, none that steers the rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from gapless.constrain.table import TokenClass
from gapless.engine.prefix import Item
from gapless.engine.sequence import History
from gapless.errors import InvalidRequest
from gapless.records import MAX_BIASED, Adjustment, Sampling

_NEVER = float("-inf")


def adjustment_of(history: History, items: Sequence[Item]) -> Adjustment | None:
    """`items`: what the prefill stands for, the prompt's first."""
    sampling, classes = history.request.sampling, history.walker.table.classes
    if not sampling.adjusts:
        return None
    biases = dict(sampling.logit_bias) | dict.fromkeys(sampling.banned, _NEVER)
    prompt = {item for item in items[: len(history.request.prompt.ids)] if isinstance(item, int)}
    said = [token.id for token in history.tokens]
    return Adjustment(
        repetition=sampling.repetition_penalty,
        frequency=sampling.frequency_penalty,
        presence=sampling.presence_penalty,
        least=sampling.min_tokens,
        biases=tuple(biases.items()),
        prompt=tuple(sorted(id for id in prompt if classes[id] == TokenClass.OTHER)),
        said=tuple(id for id in said if classes[id] == TokenClass.OTHER),
    )


def check_adjusted(sampling: Sampling, vocab: int) -> None:
    """Raise `InvalidRequest` for ids that there are not, or more than there is room for."""
    biased = {id for id, _ in sampling.logit_bias}
    for param, ids in (("logit_bias", biased), ("banned", sampling.banned)):
        if wrong := [id for id in ids if not 0 <= id < vocab]:
            raise InvalidRequest(f"{param} names the id {wrong[0]}, but ids are 0 to {vocab - 1}", param=param)
    if (count := len(biased | set(sampling.banned))) > MAX_BIASED:
        raise InvalidRequest(
            f"logit_bias and banned name {count} ids, and may name {MAX_BIASED} together; leave some out",
            param="logit_bias" if biased else "banned",
        )
