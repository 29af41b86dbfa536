"""Languages with rules: places of a schema that lead to themselves.

In: places in the order in which they are entered and left. Out: `Ruled`, a tree whose `Rule` parts stand for other
trees. Invariant: every rule has a text of finite length; a place that has none is buried, and the schema is then read
again as if nothing were allowed there, so that no answer can begin what it cannot finish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gapless.constrain.language import (
    NEVER,
    Alt,
    Lexeme,
    Listed,
    Member,
    Members,
    Node,
    Repeat,
    Rule,
    Seq,
    alt,
)

Place = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Ruled:
    """A tree and what its rules stand for, by number."""

    start: Node
    rules: Mapping[int, Node]


class Rules:
    """The rules of one schema while it is read."""

    def __init__(self) -> None:
        self.bodies: dict[int, Node] = {}
        self._open: dict[Place, int | None] = {}
        self._places: dict[int, Place] = {}
        self._buried: set[Place] = set()

    def enter(self, place: Place) -> Node | None:
        """Begin to read a place; what is known without: that nothing is allowed, or the rule that is being read."""
        if place in self._buried:
            return NEVER
        if place not in self._open:
            self._open[place] = None
            return None
        number = self._open[place]
        if number is None:
            number = self._open[place] = len(self._places)
            self._places[number] = place
        return Rule(number)

    def leave(self, place: Place, body: Node) -> Node:
        """The place was read: a rule if it led to itself, or else its tree."""
        number = self._open.pop(place)
        if number is None:
            return body
        self.bodies[number] = body
        return Rule(number)

    def bury(self) -> bool:
        """Bury places that no finite text can leave. Whether there were any, so that all must be read again."""
        finite: set[int] = set()
        while new := {n for n, body in self.bodies.items() if n not in finite and _Ends(finite).ends(body)}:
            finite |= new
        endless = self.bodies.keys() - finite
        if endless:
            self._buried |= {self._places[number] for number in endless}
            self.bodies.clear()
            self._places.clear()
        return bool(endless)


class _Ends:
    """Whether trees have finite texts, given the rules that are known to."""

    def __init__(self, finite: set[int]) -> None:
        self._finite = finite
        self._known: dict[int, bool] = {}

    def ends(self, node: Node) -> bool:
        """Each part is looked at once, however often it is shared."""
        if id(node) not in self._known:
            self._known[id(node)] = self._look(node)
        return self._known[id(node)]

    def _look(self, node: Node) -> bool:
        match node:
            case Rule(number):
                return number in self._finite
            case Alt(options):
                return any(self.ends(option) for option in options)
            case _:
                return all(self.ends(part) for part in _needed(node))


def _needed(node: Node) -> Iterable[Node]:
    """The parts that every text of a tree has, if it is no choice."""
    parts: Iterable[Node] = ()
    match node:
        case Seq(parts):
            pass
        case Repeat(part, least, _):
            parts = (part,) if least else ()
        case Listed(heads, rest, least):
            parts = heads[:least] if least <= len(heads) else (*heads, NEVER if rest is None else rest)
        case Members(members):
            parts = (member.part for member in members if member.required)
        case Lexeme(part):
            parts = (part,)
    return parts


def some_member(all: Members) -> Node:
    """The same without the empty text: the first member that is there is one of them, or one of no declared name."""
    options: list[Node] = []
    for i, member in enumerate(all.members):
        options.append(Members((Member(member.part, True), *all.members[i + 1 :]), all.more, all.between))
        if member.required:
            return alt(options)
    if all.more is not None:
        options.append(Listed((), all.more, 1, None, all.between))
    return alt(options)
