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


Node = Chars | Literal | Seq | Alt | Repeat | Listed | Members | Machine | Lexeme | Rule

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


def alt(options: Iterable[Node]) -> Node:
    """One of those that are something."""
    some = tuple(dict.fromkeys(option for option in options if option != NEVER))
    return some[0] if len(some) == 1 else Alt(some)
