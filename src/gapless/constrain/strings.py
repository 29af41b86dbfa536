"""What strings of a schema may be: lengths, patterns and formats at one place, put together.

In: a `Flat`. Out: a tree of texts, or of strings as they are written. Lengths and patterns that hold at once are put
together as automata. Where these are too large, and a grammar engine reads the tree anyway, it is left to the engine
(`Both`): it counts and matches side by side, as far as an answer goes.
"""

from __future__ import annotations

from dataclasses import replace

from gapless.constrain.charset import ANY, CharSet
from gapless.constrain.compile import both
from gapless.constrain.flat import Flat, Text, refusal
from gapless.constrain.language import NEVER, Both, Chars, Machine, Node, Repeat, lengths, letters
from gapless.constrain.limits import Limits, NotATable
from gapless.constrain.regex import found_in
from gapless.constrain.spelling import characters, format_text, quoted, spelled
from gapless.errors import InvalidRequest

MOST_WRITTEN_OUT = 64
"""States of an automaton that a grammar spells out: it takes a line for each, which lie within one another."""
SHARE_ON_HOST = 8
"""Of the limits this part (one over it) is tried where a grammar engine does the rest anyway: others wait meanwhile."""


class Strings:
    """For the places of one schema. `on_host`: a grammar engine reads what comes out."""

    def __init__(self, limits: Limits, *, on_host: bool) -> None:
        self._limits, self._on_host = limits, on_host
        part = (limits.work, limits.fragments, limits.states)
        work, fragments, states = (most // SHARE_ON_HOST for most in part)
        self._few = replace(limits, work=work, fragments=fragments, states=states)

    def written(self, flat: Flat) -> Node:
        """As JSON has them, between quotes."""
        texts = [self._text(text, flat.longest) for text in flat.texts]
        return quoted(self._together(flat, characters(_letters(texts)), texts, [spelled(text) for text in texts]))

    def text(self, flat: Flat) -> Node:
        """The texts themselves. Formats do not count, as they allow more than is written."""
        patterns = self.patterns(flat)
        return self._together(flat, Chars(_letters(patterns)), patterns, patterns)

    def patterns(self, flat: Flat) -> list[Node]:
        """What each of its patterns says, whatever the lengths say."""
        return [self._text(text) for text in flat.texts if text.keyword == "pattern"]

    def common(self, one: Node, other: Node) -> Node:
        """What is in both, `NEVER` if it is seen that nothing is."""
        if not self._on_host:
            return both(one, other, self._limits)
        try:
            found = both(one, other, self._few)
        except NotATable:
            return Both(one, other)
        if isinstance(found, Machine) and found.states > MOST_WRITTEN_OUT:
            return Both(one, other, found)
        return found

    def _together(self, flat: Flat, character: Node, texts: list[Node], written: list[Node]) -> Node:
        """`texts` as they are `written`, and of a schema's lengths, counted in `character`s, what they do not say by
        themselves."""
        if flat.longest is not None and flat.longest < flat.shortest:
            return NEVER
        each = [lengths(text) for text in texts if text != NEVER]
        ends = [most for _, most in each if most is not None]
        if any(most < flat.shortest for most in ends):
            return NEVER
        shortest = flat.shortest if all(least < flat.shortest for least, _ in each) else 0
        longest = flat.longest if flat.longest is not None and all(most > flat.longest for most in ends) else None
        if shortest or longest is not None or not written:
            written = [*written, Repeat(character, shortest, longest)]
        found = written[0]
        for text in written[1:]:
            found = self.common(found, text)
        return found

    def _text(self, text: Text, longest: int | None = None) -> Node:
        if text.keyword == "format":
            return format_text(text.content, longest)
        try:
            return found_in(text.content, self._limits)
        except InvalidRequest as error:
            raise refusal(text.pointer, "pattern", f"cannot be honoured: {error}") from error


def _letters(texts: list[Node]) -> CharSet:
    """Characters that all of these have: to count no others takes a state for each, where any takes up to nine."""
    found = ANY
    for text in texts:
        found &= letters(text)
    return found
