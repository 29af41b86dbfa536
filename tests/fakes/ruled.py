"""Rules for models that say any ids: token tables over small vocabularies, and scenes of requests that have them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Entry

from gapless.constrain.grammar import Grammar, compile_grammar
from gapless.constrain.vocabulary import Vocabulary
from gapless.records import TokenTable

WORDS = [
    *'{}[]",: 0123456789-.abcdenoy',
    "true",
    "false",
    "null",
    '"a"',
    '":',
    "ab",
    "ba",
    "yes",
    "no",
    "may",
    "be",
    "10",
]
FIRST = 7
"""The first id with a text; those before it are control ids."""
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"type": "array", "items": {"enum": [0, 10, None]}, "maxItems": 3}},
    "required": ["a", "b"],
}
RULES = (
    Grammar.choice(["yes", "no", "maybe"]),
    Grammar.regex("[ab]{2,9}c"),
    Grammar.regex("(ab|ba|c)*"),
    Grammar.json_schema(SCHEMA),
    Grammar.regex("(0|10){3,6}"),
)
LONG = (Grammar.regex("[ab]{60}c"), Grammar.regex("(yes|no|a)*"))
"""Whose answers are long, and as long as they like."""


def pieces(vocab: int = 64) -> list[bytes | None]:
    """The bytes of each id, of which there are more than words."""
    texts = [None] * FIRST + [word.encode() for word in WORDS]
    return [*texts, *[None] * (vocab - len(texts))]


@cache
def tables(vocab: int = 64, rules: tuple[Grammar, ...] = RULES) -> tuple[TokenTable, ...]:
    """One for each rule."""
    return tuple(compile_grammar(rule, Vocabulary(pieces(vocab), HashSpec().rules.end)) for rule in rules)


def text_of(ids: Sequence[int], vocab: int = 64) -> str:
    """What ids say, without the end."""
    said = pieces(vocab)
    return b"".join(said[id] or b"" for id in ids).decode()


def with_rules(entries: Sequence[Entry], share: float, seed: int = 0) -> list[Entry]:
    """The same scene, where so many of the requests without host masks answer in text and are ruled."""
    rng = random.Random(seed)
    ruled = []
    for entry in entries:
        request = entry.request
        if not request.host_masked and rng.random() < share:
            table = rng.choice(tables())
            most = max(request.sampling.max_tokens, table.fewest + rng.randrange(3))
            request = replace(
                request,
                program=rng.choice(["text", "text", "reason"]),
                grammar=table,
                sampling=replace(request.sampling, max_tokens=most),
            )
        ruled.append(replace(entry, request=request))
    return ruled
