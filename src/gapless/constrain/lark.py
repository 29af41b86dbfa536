"""Languages as grammars for a grammar engine, in its dialect of Lark.

In: a tree, with rules or without. Out: text. Everything is written in bytes, so the engine takes the same strings as an
automaton of the tree. A tree without lexemes is one terminal, since an engine that reads pieces takes the longest one
and never comes back; one with lexemes is made of terminals that cannot be confused (see `Lexeme`).

Each part that is not trivial has a name and is written once, however often it is shared, so the text is as long as the
tree's distinct parts are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gapless.constrain.cycles import Expressions, solve
from gapless.constrain.language import (
    EMPTY,
    Alt,
    Both,
    Chars,
    Lexeme,
    Listed,
    Literal,
    Machine,
    Members,
    Node,
    Repeat,
    Rule,
    Seq,
)
from gapless.constrain.limits import NotATable
from gapless.constrain.rules import Ruled

MOST_CHARACTERS = 2**20
"""Of a grammar's text."""
MOST_DEPTH = 400
"""Names of which each leads to the next. An engine follows them on its stack, up to four KiB for each, and where the
stack of a thread ends the whole process does: it may be two MiB."""
_NAME = re.compile(r"\b(?:T|part|rule)\d+\b")
_HEADER = '%llguidance {"no_forcing": true, "allow_invalid_utf8": true}'
"""Any way to cut a text into tokens is allowed, as in tables; bytes are what they are."""
_NOTHING = '""'


def lark(tree: Node | Ruled) -> str:
    """The grammar. Raises `NotATable` for one that would be too long, or too deep."""
    writer = _Writer()
    if isinstance(tree, Ruled):
        for number, body in tree.rules.items():
            writer.define(f"rule{number}", writer.rule(body))
        start = writer.rule(tree.start)
    else:
        start = writer.terminal(tree)
    writer.define("start", start)
    if (depth := _depth(writer.lines)) > MOST_DEPTH:
        raise NotATable(
            f"the rule is too large: {depth} parts of it lie within one another, and {MOST_DEPTH} may; it has too many "
            "properties or items that are each named"
        )
    return "\n".join([_HEADER, *writer.lines, ""])


def _depth(lines: Sequence[str]) -> int:
    """How deep an engine goes from the last line: as names lie within one another, or as it comes to rules, which may
    lead back, one after the other."""
    leads: dict[str, list[str]] = {}
    depths: dict[str, int] = {}
    for line in lines:
        name, _, expression = line.partition(": ")
        leads[name] = _NAME.findall(expression)
        depths[name] = 1 + max((depths.get(other, 0) for other in leads[name]), default=0)
    deepest, seen, path = max(depths.values()), set[str](), [iter(leads[name])]
    while path:
        other = next(path[-1], None)
        if other is None:
            path.pop()
        elif other in leads and other not in seen:
            seen.add(other)
            path.append(iter(leads[other]))
            deepest = max(deepest, len(path))
    return deepest


class _Writer:
    """Lines of a grammar; names of terminals are in capitals."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._size = 0
        self._names: dict[tuple[int, bool], str] = {}
        self._kept: list[Node] = []  # what was named stays alive: names go by identity

    def define(self, name: str, expression: str) -> str:
        """Write a line."""
        self.lines.append(f"{name}: {expression}")
        self._size += len(self.lines[-1])
        if self._size > MOST_CHARACTERS:
            raise NotATable(
                f"the rule is too large: a grammar of it takes more than {MOST_CHARACTERS} characters; lower its "
                "bounds or its number of alternatives"
            )
        return name

    def terminal(self, node: Node) -> str:
        """An expression of a part of a terminal."""
        return self._written(node, True)

    def rule(self, node: Node) -> str:
        """An expression of a part that is made of whole terminals."""
        return self._written(node, False)

    def _written(self, node: Node, inside: bool) -> str:
        match node:
            case Literal(text):
                return _bytes(text)
            case Rule(number):
                return f"rule{number}"
            case Lexeme(part) if inside:
                return self.terminal(part)
        key = id(node), inside
        if key not in self._names:
            inner = inside or isinstance(node, Chars | Machine | Both | Lexeme)
            expression = self._expression(node, inside)
            self._kept.append(node)
            self._names[key] = self.define(f"{'T' if inner else 'part'}{len(self.lines)}", expression)
        return self._names[key]

    def _expression(self, node: Node, inside: bool) -> str:
        match node:
            case Chars(set):
                found = " | ".join(_ranges(sequence) for sequence in set.sequences())
            case Seq(parts):
                found = " ".join(self._written(part, inside) for part in parts if part != EMPTY) or _NOTHING
            case Alt(options):
                found = " | ".join(self._written(option, inside) for option in options)
            case Repeat(part, least, most):
                found = _times(self._written(part, inside), least, most)
            case Lexeme(part):
                found = self.terminal(part)
            case Listed():
                found = self._listed(node, inside)
            case Members():
                found = self._members(node, inside)
            case Machine():
                found = self._machine(node)
            case Both(one, other):
                found = f"{self.terminal(one)} & {self.terminal(other)}"
            case _:
                raise AssertionError(f"{type(node).__name__} has no name")
        return found

    def _new(self, inside: bool, expression: str) -> str:
        return self.define(f"{'T' if inside else 'part'}{len(self.lines)}", expression)

    def _listed(self, node: Listed, inside: bool) -> str:
        """From the last element to the first: each is followed by what may still come."""
        heads = node.heads if node.most is None else node.heads[: node.most]
        between = self._written(node.between, inside)
        after = ""
        if node.rest is not None:
            after = self._more(node, between, len(heads), inside)
        for i in range(len(heads) - 1, -1, -1):
            own = f"{self._written(heads[i], inside)} {after}".strip()
            own = own if i == 0 else f"{between} {own}"
            after = self._new(inside, own) + ("" if i < node.least else "?")
        return after or _NOTHING

    def _more(self, node: Listed, between: str, before: int, inside: bool) -> str:
        """All elements behind `before` others."""
        assert node.rest is not None
        rest = self._written(node.rest, inside)
        least, most = max(node.least - before, 0), None if node.most is None else node.most - before
        if most == 0:
            return ""
        if before:
            return _times(self._new(inside, f"{between} {rest}"), least, most)
        again = _times(self._new(inside, f"{between} {rest}"), max(least - 1, 0), None if most is None else most - 1)
        found = self._new(inside, f"{rest} {again}".strip())
        return found if least else f"{found}?"

    def _members(self, node: Members, inside: bool) -> str:
        """From the last member to the first, in two lines: nothing is there yet, and something is."""
        between = self._written(node.between, inside)
        none = some = ""
        if node.more is not None:
            more = self._written(node.more, inside)
            some = self._new(inside, f"{between} {more}") + "*"
            none = self._new(inside, f"{more} {some}") + "?"
        for member in reversed(node.members):
            own = self._new(inside, f"{self._written(member.part, inside)} {some}".strip())
            if member.required:
                none, some = own, f"{between} {own}"
                continue
            if some or none:
                none, some = f"{own} | {none or _NOTHING}", f"{between} {own} | {some or _NOTHING}"
            else:
                none, some = f"{own}?", f"({between} {own})?"
            none, some = self._new(inside, none), self._new(inside, some)
        return none or _NOTHING

    def _machine(self, node: Machine) -> str:
        edges: Expressions = {}
        for source, first, last, to in node.moves:
            edges.setdefault((source, to), []).append(_byte_range(first, last))
        return solve(node.states, edges, node.accepting, lambda expression: self._new(True, expression))


def _times(expression: str, least: int, most: int | None) -> str:
    if most == 0:
        return _NOTHING
    if most is None and least <= 1:
        return expression + "*+"[least]
    if (least, most) in ((0, 1), (1, 1)):
        return expression + "?"[least:]
    return f"{expression}{{{least},{'' if most is None else most}}}"


def _bytes(text: bytes) -> str:
    return f"/(?-u:{''.join(map(_byte, text))})/" if text else _NOTHING


def _byte(value: int) -> str:
    plain = chr(value)
    return plain if plain.isascii() and plain.isalnum() else f"\\x{value:02x}"


def _byte_range(first: int, last: int) -> str:
    return _byte(first) if first == last else f"[{_byte(first)}-{_byte(last)}]"


def _ranges(sequence: tuple[tuple[int, int], ...]) -> str:
    return f"/(?-u:{''.join(_byte_range(first, last) for first, last in sequence)})/"
