"""Deterministic automata over bytes: made from nondeterministic ones, and from one another.

In: an `Nfa`, or two `Dfa`s. Out: a `Dfa` in which every state can be reached and leads to an accepting one, save that
an empty language is `None`. Bytes that no state tells apart share a class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gapless.constrain.automaton import ByteSet, Nfa
from gapless.constrain.graph import distances, reached
from gapless.constrain.language import Machine
from gapless.constrain.limits import Limits

States = npt.NDArray[np.int32]
DEAD = -1


@dataclass(frozen=True, slots=True)
class Dfa:
    """State 0 begins. `classes` uint8 [256] of bytes, `following` int32 [S, K] (-1: none), `accepting` bool [S]."""

    classes: npt.NDArray[np.uint8]
    following: States
    accepting: npt.NDArray[np.bool_]

    @property
    def states(self) -> int:
        """How many."""
        return len(self.accepting)

    def accepts(self, text: bytes) -> bool:
        """Whether `text` as a whole is in the language."""
        state = 0
        for byte in text:
            state = int(self.following[state, self.classes[byte]])
            if state < 0:
                return False
        return bool(self.accepting[state])

    def machine(self) -> Machine:
        """The same as a part of a tree."""
        moves: list[tuple[int, int, int, int]] = []
        whole = self.following[:, self.classes]
        edges = np.flatnonzero(np.diff(self.classes.astype(np.int64))) + 1
        firsts, lasts = [0, *edges.tolist()], [*(edges - 1).tolist(), 255]
        for first, last in zip(firsts, lasts, strict=True):
            column = whole[:, first]
            live = np.flatnonzero(column >= 0)
            moves += [(s, first, last, t) for s, t in zip(live.tolist(), column[live].tolist(), strict=True)]
        return Machine(self.states, tuple(moves), frozenset(np.flatnonzero(self.accepting).tolist()))


def determinize(nfa: Nfa, limits: Limits) -> Dfa | None:
    """Subset construction. Raises `NotATable` when it takes more states or work than the limits allow."""
    return _Subsets(nfa, limits).dfa()


class _Subsets:
    """Sets of the other automaton's states, numbered as they are found."""

    def __init__(self, nfa: Nfa, limits: Limits) -> None:
        self._nfa, self._limits = nfa, limits
        self._work = 0
        self._closures: dict[int, frozenset[int]] = {}
        self._numbers: dict[frozenset[int], int] = {}
        self._found: list[frozenset[int]] = []

    def dfa(self) -> Dfa | None:
        self._number(self._closure(0))
        rows: list[list[tuple[ByteSet, int]]] = []
        for subset in self._found:  # grows meanwhile
            rows.append([(label, self._number(then)) for label, then in self._partition(subset)])
        accepting = np.fromiter((self._nfa.end in subset for subset in self._found), np.bool_, len(self._found))
        return trimmed(*_dense(rows), accepting)

    def _number(self, subset: frozenset[int]) -> int:
        number = self._numbers.setdefault(subset, len(self._found))
        if number == len(self._found):
            if number >= self._limits.states:
                raise self._limits.exceeded("states", self._limits.states)
            self._found.append(subset)
        return number

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > self._limits.work:
            raise self._limits.exceeded("steps of construction", self._limits.work)

    def _closure(self, state: int) -> frozenset[int]:
        """What is reached by nothing, as far as it matters: states that read a byte, and the end."""
        known = self._closures.get(state)
        if known is not None:
            return known
        seen, todo = {state}, [state]
        while todo:
            for then in self._nfa.free[todo.pop()]:
                if then not in seen:
                    seen.add(then)
                    todo.append(then)
        self._spend(len(seen))
        closure = frozenset(s for s in seen if self._nfa.moves[s] or s == self._nfa.end)
        self._closures[state] = closure
        return closure

    def _partition(self, subset: frozenset[int]) -> list[tuple[ByteSet, frozenset[int]]]:
        """The bytes, by where they lead from `subset`."""
        labels: dict[ByteSet, frozenset[int]] = {}
        for state in subset:
            for label, target in self._nfa.moves[state]:
                closure = self._closure(target)
                known = labels.get(label)
                labels[label] = closure if known is None else known | closure
                self._spend(1 if known is None else len(known))
        self._spend(len(subset))
        if len(labels) <= 1:
            return list(labels.items())
        parts: list[tuple[ByteSet, frozenset[int]]] = []
        for label, targets in labels.items():
            parts = self._refine(parts, label, targets)
        merged: dict[frozenset[int], ByteSet] = {}
        for label, targets in parts:
            merged[targets] = merged.get(targets, 0) | label
        return [(label, targets) for targets, label in merged.items()]

    def _refine(
        self, parts: list[tuple[ByteSet, frozenset[int]]], label: ByteSet, targets: frozenset[int]
    ) -> list[tuple[ByteSet, frozenset[int]]]:
        out: list[tuple[ByteSet, frozenset[int]]] = []
        for known, leads in parts:
            both = known & label
            if not both:
                out.append((known, leads))
                continue
            self._spend(len(leads))
            out.append((both, leads | targets))
            if known != both:
                out.append((known ^ both, leads))
            label ^= both
        if label:
            out.append((label, targets))
        return out


def _dense(rows: list[list[tuple[ByteSet, int]]]) -> tuple[npt.NDArray[np.uint8], States]:
    """Byte classes and the array of following states. Bytes are told apart only by the labels that occur."""
    labels = list(dict.fromkeys(label for row in rows for label, _ in row))
    packed = np.frombuffer(b"".join(label.to_bytes(32, "little") for label in labels), np.uint8)
    bits = np.unpackbits(packed.reshape(len(labels), 32), axis=1, bitorder="little")
    columns = [bits[:, byte].tobytes() for byte in range(256)]
    numbers = {column: i for i, column in enumerate(dict.fromkeys(columns))}
    classes = np.array([numbers[column] for column in columns], dtype=np.uint8)
    within = {label: np.unique(classes[bits[i] > 0]) for i, label in enumerate(labels)}
    following = np.full((len(rows), len(numbers)), DEAD, dtype=np.int32)
    for state, row in enumerate(rows):
        for label, target in row:
            following[state, within[label]] = target
    return classes, following


def trimmed(
    classes: npt.NDArray[np.uint8], following: States, accepting: npt.NDArray[np.bool_], start: int = 0
) -> Dfa | None:
    """Only the states that can be reached and lead to an end, `start` first; `None` if there is no such way."""
    useful = distances(following, accepting) >= 0
    if not useful[start]:
        return None
    following = np.where((following >= 0) & useful[following], following, DEAD)
    keep = reached(following, start)
    numbers = np.full(len(accepting) + 1, DEAD, dtype=np.int32)
    numbers[keep] = np.arange(len(keep), dtype=np.int32)
    classes, following = merged_columns(classes, numbers[following[keep]])
    return Dfa(classes, following, accepting[keep])


def merged_columns(classes: npt.NDArray[np.uint8], following: States) -> tuple[npt.NDArray[np.uint8], States]:
    """Classes of bytes with equal columns become one."""
    transposed = np.ascontiguousarray(following.T)
    numbers: dict[bytes, int] = {}
    to = np.array([numbers.setdefault(column.tobytes(), len(numbers)) for column in transposed], dtype=np.uint8)
    _, firsts = np.unique(to, return_index=True)
    return to[classes], np.ascontiguousarray(transposed[firsts].T)


def intersection(one: Dfa, other: Dfa, limits: Limits) -> Dfa | None:
    """What both accept."""
    return _product(one, other, limits, other.accepting)


def difference(one: Dfa, other: Dfa, limits: Limits) -> Dfa | None:
    """What `one` accepts and `other` does not."""
    sink = other.states
    following = np.where(other.following >= 0, other.following, sink)
    following = np.concatenate([following, np.full((1, following.shape[1]), sink)]).astype(np.int32)
    rejecting = np.append(~other.accepting, True)
    return _product(one, Dfa(other.classes, following, rejecting), limits, rejecting)


def _product(one: Dfa, other: Dfa, limits: Limits, accepting: npt.NDArray[np.bool_]) -> Dfa | None:
    """Both side by side: a state is a pair, found round by round from the pair of the starts."""
    pairs = one.classes.astype(np.int64) * 256 + other.classes
    kinds, classes = np.unique(pairs, return_inverse=True)
    left, right = one.following[:, kinds // 256], other.following[:, kinds % 256]
    width = other.states
    numbers: dict[int, int] = {0: 0}
    rows: list[States] = []
    found = front = np.zeros(1, dtype=np.int64)
    while len(front):
        a, b = left[front // width].astype(np.int64), right[front % width].astype(np.int64)
        codes = np.where((a >= 0) & (b >= 0), a * width + b, DEAD)
        each, inverse = np.unique(codes, return_inverse=True)
        new = np.array([code for code in each.tolist() if code >= 0 and code not in numbers], dtype=np.int64)
        numbers |= {code: len(numbers) + i for i, code in enumerate(new.tolist())}
        if len(numbers) > limits.states:
            raise limits.exceeded("states", limits.states)
        named = np.array([numbers.get(code, DEAD) for code in each.tolist()], dtype=np.int32)
        rows.append(named[inverse.reshape(codes.shape)])
        found, front = np.concatenate([found, new]), new
    accepted = one.accepting[found // width] & accepting[found % width]
    return trimmed(classes.astype(np.uint8), np.concatenate(rows), accepted)
