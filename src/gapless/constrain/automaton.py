"""A language's tree to a nondeterministic automaton over bytes (Thompson's construction).

In: a tree. Out: an `Nfa`, whose moves carry sets of bytes as 256-bit numbers. Invariants: a part is built from a state
to a new one and adds no move into the state it began at, so parts never leak into one another; every state and every
visit counts against the limits, so no bound or nesting makes it grow unseen.
"""

from __future__ import annotations

from collections.abc import Callable

from gapless.constrain.language import (
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
from gapless.constrain.limits import Limits, NotATable

ByteSet = int
"""Bit b is set if byte b is in it."""


def byte_range(first: int, last: int) -> ByteSet:
    """The bytes from `first` to `last`."""
    return ((1 << (last - first + 1)) - 1) << first


class Nfa:
    """State 0 begins. `free[s]`: states reached from s by nothing; `moves[s]`: (bytes, to); `end` accepts."""

    def __init__(self, limits: Limits) -> None:
        self.free: list[list[int]] = []
        self.moves: list[list[tuple[ByteSet, int]]] = []
        self.end = 0
        self._limits = limits
        self._visits = 0
        self._adders: dict[type, Callable[..., int]] = {
            Chars: self._chars,
            Literal: self._literal,
            Seq: self._seq,
            Alt: self._alt,
            Repeat: self._repeat,
            Listed: self._listed,
            Members: self._members,
            Machine: self._machine,
            Both: self._both,
            Lexeme: self._lexeme,
            Rule: self._rule,
        }

    def state(self) -> int:
        """A new one."""
        if len(self.free) >= self._limits.fragments:
            raise self._limits.exceeded("places", self._limits.fragments)
        self.free.append([])
        self.moves.append([])
        return len(self.free) - 1

    def add(self, node: Node, start: int) -> int:
        """Build `node` from `start` on; the state where it has been read."""
        self._visits += 1
        if self._visits > self._limits.fragments:
            raise self._limits.exceeded("parts", self._limits.fragments)
        return self._adders[type(node)](node, start)

    def _unroll(self, copies: int) -> None:
        """Refuse what would be built so many times before any of it is: each takes a place at least."""
        if copies > self._limits.fragments:
            raise self._limits.exceeded("places", self._limits.fragments)

    def _copy(self, node: Node, start: int, copies: int) -> int:
        """Build the first of so many copies; refuse the others, which take as much each, before they are built."""
        before = len(self.free)
        end = self.add(node, start)
        self._unroll(copies * (len(self.free) - before))
        return end

    def _chars(self, node: Chars, start: int) -> int:
        """Sequences that end alike share their ends: a set of all characters takes seven inner states."""
        end = self.state()
        tails: dict[object, int] = {(): end}
        for sequence in node.set.sequences():
            for cut in range(len(sequence) - 1, -1, -1):
                source = start if cut == 0 else tails.get(sequence[cut:], -1)
                if source < 0:
                    source = tails[sequence[cut:]] = self.state()
                elif cut:
                    continue
                self.moves[source].append((byte_range(*sequence[cut]), tails[sequence[cut + 1 :]]))
        return end

    def _literal(self, node: Literal, start: int) -> int:
        for byte in node.text:
            then = self.state()
            self.moves[start].append((1 << byte, then))
            start = then
        return start

    def _seq(self, node: Seq, start: int) -> int:
        for part in node.parts:
            start = self.add(part, start)
        return start

    def _alt(self, node: Alt, start: int) -> int:
        end = self.state()
        for option in node.options:
            self.free[self.add(option, self._from(start))].append(end)
        return end

    def _from(self, start: int) -> int:
        """A state of its own behind `start`."""
        own = self.state()
        self.free[start].append(own)
        return own

    def _repeat(self, node: Repeat, start: int) -> int:
        """What must be there one after the other, then a loop, or copies each of which leads to the end."""
        self._unroll(max(node.least, node.most or 0))
        for i in range(node.least if node.most is not None else node.least - 1):
            start = self._copy(node.part, start, max(node.least, node.most or 0) - i)
        if node.most is None:
            loop = self._from(start)
            last = self.add(node.part, self._from(loop))
            self.free[last].append(loop)
            return last if node.least else loop
        end = self.state()
        for i in range(node.most - node.least):
            self.free[start].append(end)
            start = self._copy(node.part, start, node.most - node.least - i)
        self.free[start].append(end)
        return end

    def _listed(self, node: Listed, start: int) -> int:
        end = self.state()
        if node.least == 0:
            self.free[start].append(end)
        singly = len(node.heads) if node.rest is None else max(len(node.heads), node.least - 1)
        if node.most is not None:
            singly = node.most if node.rest is not None else min(node.most, len(node.heads))
        self._unroll(singly)
        for i in range(singly):
            part = node.heads[i] if i < len(node.heads) else node.rest
            assert part is not None
            entry = self._from(start if i == 0 else self.add(node.between, start))
            start = self._copy(part, entry, singly - i if part is node.rest else 1)
            if i + 1 >= node.least:
                self.free[start].append(end)
        if node.most is None and node.rest is not None:
            entry = self._from(start if singly == 0 else self.add(node.between, start))
            last = self.add(node.rest, self._from(entry))
            self.free[self.add(node.between, last)].append(entry)
            self.free[last].append(end)
        return end

    def _members(self, node: Members, start: int) -> int:
        """Two lines side by side: nothing is there yet, and something is. Each part is built once, between them."""
        none, some = self._from(start), self.state()
        for member in node.members:
            entry, none_next, some_next = self.state(), self.state(), self.state()
            self.free[none].append(entry)
            self.free[self.add(node.between, some)].append(entry)
            self.free[self.add(member.part, entry)].append(some_next)
            if not member.required:
                self.free[none].append(none_next)
                self.free[some].append(some_next)
            none, some = none_next, some_next
        end = self.state()
        if node.more is not None:
            entry = self._from(none)
            self.free[self.add(node.between, some)].append(entry)
            last = self.add(node.more, self._from(entry))
            self.free[self.add(node.between, last)].append(entry)
            self.free[last].append(end)
        self.free[none].append(end)
        self.free[some].append(end)
        return end

    def _machine(self, node: Machine, start: int) -> int:
        own = [self.state() for _ in range(node.states)]
        end = self.state()
        self.free[start].append(own[0])
        for source, first, last, target in node.moves:
            self.moves[own[source]].append((byte_range(first, last), own[target]))
        for state in node.accepting:
            self.free[own[state]].append(end)
        return end

    def _both(self, node: Both, start: int) -> int:
        if node.machine is None:
            raise NotATable("what a pattern and a length say together is too large to be told from other texts")
        return self._machine(node.machine, start)

    def _lexeme(self, node: Lexeme, start: int) -> int:
        return self.add(node.part, start)

    def _rule(self, node: Rule, start: int) -> int:
        raise NotATable("what leads to itself again cannot be told from other values")


def build(node: Node, limits: Limits) -> Nfa:
    """The automaton of a tree. Raises `NotATable` beyond the limits."""
    nfa = Nfa(limits)
    nfa.end = nfa.add(node, nfa.state())
    return nfa
