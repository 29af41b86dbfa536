"""Requests that a guide leads, and what they must say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from tests.fakes.hash_language import HashSpec
from tests.fakes.ruled import LONG, RULES
from tests.fakes.ruled import pieces as few
from tests.fakes.scene import Entry
from tests.fakes.sim_guided import GUIDES

from gapless.constrain.grammar import Grammar, host_grammar
from gapless.constrain.vocabulary import Vocabulary
from gapless.records import HostGrammar, Mask

LISTS = {"type": "array", "items": {"anyOf": [{"enum": [0, 10, True]}, {"$ref": "#"}]}, "maxItems": 4}
TREE = {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"type": "boolean"}}, "required": ["b"]}
LEADING = (*RULES, Grammar.json_schema(LISTS), Grammar.json_schema(TREE))


def pieces(vocab: int = 64) -> list[bytes | None]:
    """Those of ruled requests and some letters, so that all that is begun can be written."""
    said = few(vocab)
    missing = iter(b"filmrstu")
    return [bytes([next(missing)]) if piece is None and id > len(said) - 9 else piece for id, piece in enumerate(said)]


def text_of(ids: Sequence[int]) -> str:
    """What ids say, without the end."""
    said = pieces()
    return b"".join(said[id] or b"" for id in ids).decode()


@cache
def guides_of(vocab: int = 64) -> tuple[HostGrammar, ...]:
    """One for each rule, two of them recursive."""
    words = Vocabulary(pieces(vocab), HashSpec().rules.end)
    return tuple(host_grammar(rule, words) for rule in LEADING)


@cache
def long_guides() -> tuple[HostGrammar, ...]:
    """Whose answers are long, and as long as they like."""
    return tuple(host_grammar(rule, guides_of()[0].words) for rule in LONG)


def with_guides(
    entries: Sequence[Entry], share: float, seed: int = 0, most: int = 40, guides: tuple[HostGrammar, ...] = ()
) -> list[Entry]:
    """The same scene, where so many of the requests that no table rules answer in text and are led by guides, those of
    `guides_of` unless others are given."""
    rng = random.Random(seed)
    led = []
    for entry in entries:
        request = entry.request
        if request.grammar is None and rng.random() < share:
            request = replace(
                request,
                program=rng.choice(["text", "text", "reason"]),
                host_masked=True,
                guide=rng.choice(guides or guides_of()),
                sampling=replace(request.sampling, max_tokens=rng.randrange(8, most)),
            )
        led.append(replace(entry, request=request))
    return led


class LedWalk:
    """A guide as an oracle's rule; the end is its program's."""

    def __init__(self, grammar: HostGrammar, allowed) -> None:
        self._guide, self._end, self._allowed = GUIDES.guide(grammar), grammar.words.end, allowed

    def mask(self, left: int) -> Mask:
        """Bool [vocab]; how many tokens are left, it does not know."""
        return self._guide.mask() & self._allowed()

    def advance(self, token_id: int) -> None:
        """Move over one token."""
        if token_id != self._end:
            self._guide.consume([token_id])
