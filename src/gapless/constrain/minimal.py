"""The smallest automaton that accepts the same.

Hopcroft's refinement in the form of Valmari and Lehtinen ("Efficient minimization of DFAs with partial transition
functions", 2008): blocks of states and blocks of moves split one another, the smaller half each time, so it takes
O(m log m) for m moves and knows no dead state.
"""

from __future__ import annotations

import numpy as np

from gapless.constrain.dfa import Dfa, trimmed


class _Partition:
    """Numbers 0..n-1 in blocks, each a run of `elements`. `mark` some, then `split` every block into the two kinds."""

    def __init__(self, n: int) -> None:
        self.elements = list(range(n))
        self.place = list(range(n))
        self.block = [0] * n
        self.first = [0] if n else []
        self.past = [n] if n else []
        self._marked = [0] if n else []
        self._touched: list[int] = []

    def mark(self, element: int) -> None:
        """Move it to its block's marked front, where it is not yet."""
        block = self.block[element]
        i, j = self.place[element], self.first[block] + self._marked[block]
        if i < j:
            return
        other = self.elements[j]
        self.elements[i], self.elements[j] = other, element
        self.place[other], self.place[element] = i, j
        if not self._marked[block]:
            self._touched.append(block)
        self._marked[block] += 1

    def split(self) -> None:
        """Each block with marked and other numbers becomes two; the smaller one gets a new number."""
        for block in self._touched:
            first, past = self.first[block], self.past[block]
            middle = first + self._marked[block]
            self._marked[block] = 0
            if middle == past:
                continue
            if middle - first <= past - middle:
                new = (first, middle)
                self.first[block] = middle
            else:
                new = (middle, past)
                self.past[block] = middle
            number = len(self.first)
            self.first.append(new[0])
            self.past.append(new[1])
            self._marked.append(0)
            for element in self.elements[new[0] : new[1]]:
                self.block[element] = number
        self._touched.clear()

    @classmethod
    def grouped(cls, labels: list[int]) -> _Partition:
        """Blocks of equal labels, which must ascend."""
        made = cls(0)
        made.elements, made.place = list(range(len(labels))), list(range(len(labels)))
        for i, label in enumerate(labels):
            if i == 0 or label != labels[i - 1]:
                if i:
                    made.past.append(i)
                made.first.append(i)
                made._marked.append(0)
            made.block.append(len(made.first) - 1)
        if labels:
            made.past.append(len(labels))
        return made


def minimized(dfa: Dfa) -> Dfa:
    """The same language in as few states as it can have. Every state of `dfa` leads to an end, as `trimmed` has it."""
    states, moves = _Partition(dfa.states), np.nonzero(dfa.following.T >= 0)
    tails = moves[1].tolist()
    heads = dfa.following[moves[1], moves[0]]
    cords = _Partition.grouped(moves[0].tolist())
    order = np.argsort(heads, kind="stable")
    begins = np.searchsorted(heads[order], np.arange(dfa.states + 1)).tolist()
    incoming = order.tolist()
    for state in np.flatnonzero(dfa.accepting).tolist():
        states.mark(state)
    states.split()
    _refine(states, cords, tails, begins, incoming)
    return _merged(dfa, np.array(states.block, dtype=np.int64), len(states.first))


def _refine(states: _Partition, cords: _Partition, tails: list[int], begins: list[int], incoming: list[int]) -> None:
    """Until no block of moves splits a block of states, nor the other way round."""
    settled, cord = 1, 0
    while True:
        while settled < len(states.first):
            for state in states.elements[states.first[settled] : states.past[settled]]:
                for move in incoming[begins[state] : begins[state + 1]]:
                    cords.mark(move)
            cords.split()
            settled += 1
        if cord == len(cords.first):
            return
        for move in cords.elements[cords.first[cord] : cords.past[cord]]:
            states.mark(tails[move])
        states.split()
        cord += 1


def _merged(dfa: Dfa, blocks: np.ndarray[tuple[int], np.dtype[np.int64]], count: int) -> Dfa:
    """One state for each block."""
    _, examples = np.unique(blocks, return_index=True)
    assert len(examples) == count
    numbers = np.append(blocks, -1).astype(np.int32)
    made = trimmed(dfa.classes, numbers[dfa.following[examples]], dfa.accepting[examples], int(blocks[0]))
    assert made is not None
    return made
