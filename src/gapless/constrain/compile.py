"""Trees to smallest automata, and trees of what only automata can say: both of two languages, one without another."""

from __future__ import annotations

from gapless.constrain.automaton import build
from gapless.constrain.dfa import Dfa, determinize, difference, intersection
from gapless.constrain.language import NEVER, Literal, Node, alt
from gapless.constrain.limits import Limits
from gapless.constrain.minimal import minimized


def automaton(node: Node, limits: Limits) -> Dfa | None:
    """The smallest automaton of a language, `None` for the empty one. Raises `NotATable` beyond the limits."""
    return _least(determinize(build(node, limits), limits))


def compact(node: Node, limits: Limits) -> Node:
    """The same as its smallest automaton: for what is put into a tree many times."""
    return _tree(automaton(node, limits))


def both(one: Node, other: Node, limits: Limits) -> Node:
    """What is in both, `NEVER` if nothing is."""
    a, b = automaton(one, limits), automaton(other, limits)
    return NEVER if a is None or b is None else _tree(_least(intersection(a, b, limits)))


def without(one: Node, other: Node, limits: Limits) -> Node:
    """What is in `one` alone."""
    a, b = automaton(one, limits), automaton(other, limits)
    if a is None or b is None:
        return one if a is not None else NEVER
    return _tree(_least(difference(a, b, limits)))


def _tree(found: Dfa | None) -> Node:
    return NEVER if found is None else found.machine()


def _least(found: Dfa | None) -> Dfa | None:
    return None if found is None else minimized(found)


def trie(texts: tuple[str, ...]) -> Node:
    """One of these texts; the automaton of it is a trie whose ends are shared."""
    return alt(Literal(text.encode()) for text in texts)
