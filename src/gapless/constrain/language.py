"""Languages as trees: what a regex or a schema says, before it is an automaton over bytes.

Values only. `automaton.build` turns a tree into a nondeterministic automaton; nothing here knows how. A tree denotes a
set of byte strings; those of `Chars` are whole UTF-8 characters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gapless.constrain.charset import CharSet


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    set: CharSet


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly these bytes; none for the empty string."""

    text: bytes


@dataclass(frozen=True, slots=True)
class Seq:
    """One part after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of them; of none, nothing at all (the empty set)."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`least` to `most` times (None: any number) the same."""

    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Listed:
    """`least` to `most` elements (None: any number) with `between` between them.

    The first are `heads`, all others `rest`; without a `rest` there are no others.
    """

    heads: tuple[Node, ...]
    rest: Node | None
    least: int
    most: int | None
    between: Node


@dataclass(frozen=True, slots=True)
class Member:
    """A part that may be left out unless it is `required`."""

    part: Node
    required: bool


@dataclass(frozen=True, slots=True)
class Members:
    """Parts in this order with `between` between those that are there, then any number of `more`."""

    members: tuple[Member, ...]
    more: Node | None
    between: Node


@dataclass(frozen=True, slots=True)
class Machine:
    """An automaton over bytes, perhaps nondeterministic. State 0 begins; `moves`: (from, first byte, last byte, to)."""

    states: int
    moves: tuple[tuple[int, int, int, int], ...]
    accepting: frozenset[int]


@dataclass(frozen=True, slots=True)
class Both:
    """What is in both of two languages, within a lexeme; `machine`: what that is, None if nobody could work it out."""

    one: Node
    other: Node
    machine: Machine | None = None


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A part that a reader of JSON takes as one piece: a string, a number, a name, a separator with its spaces.

    None of them is the beginning of another with which it could be confused: what follows a piece never goes on as the
    piece could have. Grammars with rules are read piece by piece.
    """

    part: Node


@dataclass(frozen=True, slots=True)
class Rule:
    """What a rule of this number says, which may lead to itself again. No automaton has such parts."""

    number: int


Node = Chars | Literal | Seq | Alt | Repeat | Listed | Members | Machine | Both | Lexeme | Rule

EMPTY = Literal(b"")
NEVER = Alt(())


def seq(*parts: Node) -> Node:
    """One after the other; nothing at all if one of them is."""
    if any(part == NEVER for part in parts):
        return NEVER
    return parts[0] if len(parts) == 1 else Seq(parts)


def lexeme(part: Node) -> Node:
    """A part in one piece; nothing if it is nothing."""
    return part if part == NEVER or isinstance(part, Lexeme) else Lexeme(part)


def lengths(text: Node) -> tuple[int, int | None]:
    """The fewest and the most characters of a language of texts that is something, None for any number. `text` has
    characters and what is made of them."""
    match text:
        case Chars():
            return 1, 1
        case Seq(parts):
            each = [lengths(part) for part in parts]
            return sum(least for least, _ in each), _total([most for _, most in each])
        case Alt(options) if options:
            each = [lengths(option) for option in options]
            longest = [most for _, most in each]
            return min(least for least, _ in each), None if None in longest else max(filter(None, longest), default=0)
        case Repeat(part, least, most):
            shortest, inner = lengths(part)
            return least * shortest, 0 if inner == 0 else None if inner is None or most is None else most * inner
        case _:
            return 0, 0 if text == EMPTY else None


def letters(text: Node) -> CharSet:
    """The characters that texts of a language have. `text` has characters and what is made of them."""
    match text:
        case Chars(set):
            return set
        case Seq(parts) | Alt(parts):
            return CharSet.of(*(each for part in parts for each in letters(part).ranges))
        case Repeat(part):
            return letters(part)
        case _:
            return CharSet.of()


def _total(counts: list[int | None]) -> int | None:
    return None if None in counts else sum(filter(None, counts))


def alt(options: Iterable[Node]) -> Node:
    """One of those that are something."""
    some = tuple(dict.fromkeys(option for option in options if option != NEVER))
    return some[0] if len(some) == 1 else Alt(some)
