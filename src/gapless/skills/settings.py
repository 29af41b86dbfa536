"""What a caller may set, checked and typed at the edge.

In: the `settings` mapping of a call. Out: `Settings`, every field of its own type or None for not set. Each error
names the parameter, the value and what is allowed. Strings and booleans are no numbers here.
"""

from __future__ import annotations

import math
import numbers
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from gapless.constrain.grammar import Grammar
from gapless.errors import InvalidRequest, shown
from gapless.records import MAX_TOP_LOGPROBS
from gapless.skills.adjusting import (
    LEAST_REPETITION,
    MAX_PENALTY,
    MOST_REPETITION,
    bans,
    biases,
    check_least,
)
from gapless.skills.rules import rules_of
from gapless.skills.tokenizer import utf8

MAX_TEMPERATURE = 10.0
COLDEST = 1e-4
"""Lower temperatures than this are argmax: dividing logits by them would overflow and changes nothing."""
MAX_OBJECTS = 10_000
MAX_TIMEOUT = 7 * 24 * 3600.0
MAX_SEED = 2**63 - 1
MAX_STOPS = 16
MAX_STOP_LENGTH = 256
"""Characters. What may still become a match is held back, so this bounds how late a stream can be."""
_LARGEST = 2**31 - 1
_ADAPTER = re.compile(r"[A-Za-z0-9][\w.@-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Settings:
    """None: the model's default. `timeout` in seconds for the whole request.

    `adapter`: the name of a loaded adapter; None: the model as it is. `stop`: texts before which an answer ends.
    `logprobs`: wanted, with so many alternatives a token. `choice`, `regex`, `json_schema`, `json_object`: at most one.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_objects: int | None = None
    seed: int | None = None
    timeout: float | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    adapter: str | None = None
    choice: Grammar | None = None
    regex: Grammar | None = None
    json_schema: Grammar | None = None
    json_object: Grammar | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    """What follows adjusts logits, see `Sampling`; of `banned` some may be texts."""
    banned: tuple[int | str, ...] = ()
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def rule(self) -> Grammar | None:
        """What the answer's text may be; None: anything."""
        return self.choice or self.regex or self.json_schema or self.json_object

    @classmethod
    def parse(cls, settings: Mapping[str, object] | None) -> Settings:
        """Check a caller's settings. Entries of None count as not set. Raises `InvalidRequest`."""
        if settings is None:
            return cls()
        if not isinstance(settings, Mapping):
            kind = type(settings).__name__
            raise InvalidRequest(f"settings must be a dict like {{'temperature': 0}}, not {kind}", param="settings")
        for name, value in settings.items():
            if name not in cls.__slots__ and value is not None:
                near = get_close_matches(name[:64], cls.__slots__, 1) if isinstance(name, str) else ()
                meant = f"did you mean {near[0]}? " if near else ""
                known = f"{'Known' if meant else 'known'} are {', '.join(cls.__slots__)}"
                raise InvalidRequest(f"unknown setting {shown(name)}; {meant}{known}", param=_name(name))
        get = settings.get
        temperature = _real("temperature", get("temperature"), 0.0, MAX_TEMPERATURE)
        max_tokens = _whole("max_tokens", get("max_tokens"), 1, _LARGEST)
        min_tokens = _whole("min_tokens", get("min_tokens"), 0, _LARGEST) or 0
        check_least(min_tokens, _LARGEST if max_tokens is None else max_tokens)
        repetition = _real("repetition_penalty", get("repetition_penalty"), LEAST_REPETITION, MOST_REPETITION)
        return cls(
            temperature=0.0 if temperature is not None and temperature < COLDEST else temperature,
            top_p=_real("top_p", get("top_p"), 0.0, 1.0, above="; for the likeliest token set temperature to 0"),
            max_tokens=max_tokens,
            max_objects=_whole("max_objects", get("max_objects"), 1, MAX_OBJECTS),
            seed=_whole("seed", get("seed"), 0, MAX_SEED),
            timeout=_real("timeout", get("timeout"), 0.0, MAX_TIMEOUT, above=""),
            stop=_stops(get("stop")),
            logprobs=_whole("logprobs", get("logprobs"), 0, MAX_TOP_LOGPROBS),
            adapter=None if get("adapter") is None else adapter_name(get("adapter")),
            logit_bias=biases(get("logit_bias")),
            banned=bans(get("banned")),
            min_tokens=min_tokens,
            repetition_penalty=1.0 if repetition is None else repetition,
            presence_penalty=_real("presence_penalty", get("presence_penalty"), -MAX_PENALTY, MAX_PENALTY) or 0.0,
            frequency_penalty=_real("frequency_penalty", get("frequency_penalty"), -MAX_PENALTY, MAX_PENALTY) or 0.0,
            **rules_of(settings),
        )


def adapter_name(name: object) -> str:
    """A name that an adapter can have; never a path. Raises `InvalidRequest`."""
    if not isinstance(name, str) or not _ADAPTER.fullmatch(name):
        raise InvalidRequest(
            "adapter must be a name of 1 to 64 letters, digits and any of . _ - @, the first a letter or digit; got "
            f"{shown(name)}",
            param="adapter",
        )
    return name


def _name(name: object) -> str:
    return name[:80] if isinstance(name, str) else shown(name)


def fresh_seed() -> int:
    """A seed for a request that sets none: two such requests sample differently."""
    return secrets.randbelow(MAX_SEED)


def _real(name: str, value: object, low: float, high: float, *, above: str | None = None) -> float | None:
    """A finite number in [low, high]; with `above` given in (low, high], and its text added to the remedy."""
    if value is None:
        return None
    wanted = f"a number from {low:g} to {high:g}" if above is None else f"above {low:g} and at most {high:g}{above}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _wrong(name, value, wanted)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not low <= number <= high or (above is not None and number == low):
        raise _wrong(name, value, wanted)
    return number


def _whole(name: str, value: object, low: int, high: int) -> int | None:
    if value is None:
        return None
    wanted = f"a whole number from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise _wrong(name, value, wanted)
    number = int(value)
    if not low <= number <= high:
        raise _wrong(name, value, wanted)
    return number


def _stops(value: object) -> tuple[str, ...]:
    """One string or a list of them; an empty list is none."""
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or len(stops) > MAX_STOPS:
        raise _wrong("stop", value, f"a string or a list of at most {MAX_STOPS}")
    for stop in stops:
        if not isinstance(stop, str) or not 0 < len(stop) <= MAX_STOP_LENGTH:
            raise _wrong("stop", stop, f"strings of 1 to {MAX_STOP_LENGTH} characters")
        utf8(stop, param="stop")
    return tuple(stops)


def _wrong(name: str, value: object, wanted: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} must be {wanted}; got {shown(value)} ({type(value).__name__})",
        param=name,
    )
