"""Settings that adjust the logits of tokens, in ids: what is biased, what is banned.

In: what a caller wrote. Out: ids, biases, and texts whose ids only a tokenizer knows; and from those, and a model's
vocabulary, ids alone. Invariant: an error names the setting, what is wrong with it, and how much there may be.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from gapless.errors import InvalidRequest, shown
from gapless.records import MAX_BIASED
from gapless.skills.tokenizer import Tokenizer

MAX_BIAS = 100.0
MAX_PENALTY = 2.0
"""Of presence and frequency, either way: as OpenAI's."""
LEAST_REPETITION, MOST_REPETITION = 0.1, 10.0
MAX_BAN_LENGTH = 256
"""Characters of a text that is banned: one token is no longer."""
ADJUSTING = {
    "logit_bias": (),
    "banned": (),
    "min_tokens": 0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""The settings, each with what asks for nothing."""


def biases(value: object) -> tuple[tuple[int, float], ...]:
    """`{id: bias}`; an id may be written as its digits. Raises `InvalidRequest`."""
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise _wrong("logit_bias", "a dict like {1234: -5}", value)
    _count("logit_bias", len(value))
    found: dict[int, float] = {}
    for name, bias in value.items():
        id = _id(name)
        if id is None or id in found:
            wanted = "ids as its keys, each a whole number or its digits" if id is None else f"the id {id} once"
            raise _wrong("logit_bias", wanted, name)
        if isinstance(bias, bool) or not isinstance(bias, numbers.Real) or not _within(bias):
            raise _wrong("logit_bias", f"a number from -{MAX_BIAS:g} to {MAX_BIAS:g} for the id {id}", bias)
        found[id] = float(bias)
    return tuple(found.items())


def bans(value: object) -> tuple[int | str, ...]:
    """A list of ids and of texts that are one token each; one text alone will do. Raises `InvalidRequest`."""
    if value is None:
        return ()
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        raise _wrong("banned", "a list of ids and texts", value)
    _count("banned", len(given))
    for ban in given:
        if isinstance(ban, str):
            if not 0 < len(ban) <= MAX_BAN_LENGTH:
                raise _wrong("banned", f"ids, and texts of 1 to {MAX_BAN_LENGTH} characters", ban)
        elif isinstance(ban, bool) or not isinstance(ban, numbers.Integral):
            raise _wrong("banned", "ids and texts", ban)
    return tuple(ban if isinstance(ban, str) else int(ban) for ban in given)


def ids_of(banned: Sequence[int | str], tokenizer: Tokenizer) -> tuple[int, ...]:
    """With texts as their ids, each once. Raises `InvalidRequest` for a text that is not one token."""
    found: list[int] = []
    for ban in banned:
        ids = tokenizer.encode(ban, param="banned") if isinstance(ban, str) else (ban,)
        if len(ids) != 1:
            raise InvalidRequest(
                f"banned names the text {shown(ban)}, which is {len(ids)} tokens ({', '.join(map(str, ids[:8]))}"
                f"{', ...' if len(ids) > 8 else ''}); ban a text that is one, or one of these ids",
                param="banned",
            )
        found += ids
    return tuple(dict.fromkeys(found))


def check_ids(biased: Sequence[tuple[int, float]], banned: Sequence[int], vocab: int) -> None:
    """Raises `InvalidRequest` for an id that the model does not have, and for more than there may be together."""
    for name, ids in (("logit_bias", [id for id, _ in biased]), ("banned", banned)):
        for id in ids:
            if not 0 <= id < vocab:
                raise InvalidRequest(f"{name} names the id {id}, but this model's ids are 0 to {vocab - 1}", param=name)
    _count("logit_bias and banned", len({id for id, _ in biased} | set(banned)), "banned")


def check_least(least: int, most: int) -> None:
    """Raises `InvalidRequest` where `min_tokens` is over `max_tokens`."""
    if least > most:
        raise InvalidRequest(
            f"min_tokens is {least}, but an answer has at most {most} tokens here; lower it, or raise max_tokens",
            param="min_tokens",
        )


def _within(bias: Any) -> bool:  # mypy knows no order of real numbers
    return bool(-MAX_BIAS <= bias <= MAX_BIAS)


def _id(name: object) -> int | None:
    if isinstance(name, str):
        return int(name) if name.isascii() and name.isdigit() and len(name) < 20 else None
    if isinstance(name, bool) or not isinstance(name, numbers.Integral):
        return None
    return int(name)


def _count(name: str, count: int, param: str | None = None) -> None:
    if count > MAX_BIASED:
        raise InvalidRequest(
            f"{name} may name {MAX_BIASED} tokens, and names {count}; leave some out", param=param or name
        )


def _wrong(name: str, wanted: str, value: object) -> InvalidRequest:
    if isinstance(value, float) and not math.isfinite(value):
        wanted += ", and no infinity or NaN"
    return InvalidRequest(f"{name} must be {wanted}; got {shown(value)} ({type(value).__name__})", param=name)
