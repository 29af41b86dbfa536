"""Automata over bytes as regular expressions, one name for each state.

In: the edges of an automaton. Out: definitions in order, and the expression of its language. The text from a state on
is one of its edges followed by the text from there on: where no state leads back, that is a definition already, and
states share what they lead to, so the definitions are as many as the edges. Where states lead back to themselves, one
after the other is eliminated (Arden's rule: X = a X | b is a* b), those with the fewest ways through them first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from gapless.constrain.limits import NotATable

MOST_TOGETHER = 256
"""States that lead to one another; beyond, expressions grow with the square of their number."""
MOST_WAYS = 20_000
"""Ways through states that are eliminated."""

Expressions = dict[tuple[int, int], list[str]]
"""Of each edge (from, to) the byte ranges, in the syntax of regexes."""


def solve(states: int, edges: Expressions, accepting: Iterable[int], define: Callable[[str], str]) -> str:
    """The expression of the language from state 0 on. `define` gives an expression a name. Raises `NotATable`."""
    out: dict[int, dict[int, str]] = defaultdict(dict)
    for (source, to), ranges in edges.items():
        out[source][to] = f"/(?-u:{'|'.join(ranges)})/"
    ends, texts = set(accepting), dict[int, str]()
    for together in _components(states, out):
        _Component(together, out, ends, texts, define).solve()
    return texts[0]


class _Component:
    """States that lead to one another; those they lead to besides have their texts already."""

    def __init__(
        self,
        states: list[int],
        out: dict[int, dict[int, str]],
        ends: set[int],
        texts: dict[int, str],
        define: Callable[[str], str],
    ) -> None:
        if len(states) > MOST_TOGETHER:
            raise NotATable(f"the rule goes round in more than {MOST_TOGETHER} states, too many for a grammar")
        inside = set(states)
        self._define, self._texts, self._states, self._ways = define, texts, states, 0
        self._leaving = {s: self._leave(out[s], inside, s in ends) for s in states}
        self._edges = {s: {t: e for t, e in out[s].items() if t in inside} for s in states}

    def _leave(self, edges: dict[int, str], inside: set[int], ends: bool) -> list[str]:
        found = [f"{e} {self._texts[t]}" for t, e in edges.items() if t not in inside and t in self._texts]
        return [*found, '""'] if ends else found

    def solve(self) -> None:
        """Fill in the texts."""
        order: list[int] = []
        left = set(self._states)
        while left:
            state = min(left, key=lambda s: (self._weight(s, left), s))
            left.discard(state)
            self._eliminate(state, left)
            order.append(state)
        for state in reversed(order):
            parts = [f"{e} {self._texts[t]}" for t, e in self._edges[state].items() if t in self._texts]
            parts += self._leaving[state]
            if parts:
                self._texts[state] = self._define(" | ".join(parts))

    def _weight(self, state: int, left: set[int]) -> int:
        into = sum(state in self._edges[s] for s in left if s != state)
        return into * len(self._edges[state].keys() - {state})

    def _eliminate(self, state: int, left: set[int]) -> None:
        """Write all that leads into the state without it."""
        own = self._edges[state]
        loop = own.pop(state, None)
        if loop is not None:
            again = f"({loop})*"
            self._edges[state] = own = {t: self._define(f"{again} {e}") for t, e in own.items()}
            self._leaving[state] = [again if e == '""' else f"{again} {e}" for e in self._leaving[state]]
        behind = " | ".join(self._leaving[state])
        leaves = self._define(behind) if behind else None
        for source in left:
            into = self._edges[source].pop(state, None)
            if into is None:
                continue
            for to, expression in own.items():
                self._add(source, to, f"{into} {expression}")
            if leaves is not None:
                self._leaving[source].append(f"{into} {leaves}")

    def _add(self, source: int, to: int, expression: str) -> None:
        self._ways += 1
        if self._ways > MOST_WAYS:
            raise NotATable(f"the rule goes round in more than {MOST_WAYS} ways, too many for a grammar")
        known = self._edges[source].get(to)
        self._edges[source][to] = self._define(expression if known is None else f"{known} | {expression}")


def _components(states: int, out: dict[int, dict[int, str]]) -> list[list[int]]:
    """States that lead to one another, each set after all that it leads to (Tarjan's algorithm, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for root in range(states):
        if root in index:
            continue
        work = [(root, iter(list(out[root])))]
        while work:
            state, targets = work[-1]
            if state not in index:
                index[state] = low[state] = len(index)
                stack.append(state)
                on_stack.add(state)
            for then in targets:
                if then not in index:
                    work.append((then, iter(list(out[then]))))
                    break
                if then in on_stack:
                    low[state] = min(low[state], index[then])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[state])
                if low[state] == index[state]:
                    cut = stack.index(state)
                    found.append(stack[cut:])
                    on_stack.difference_update(stack[cut:])
                    del stack[cut:]
    return found
