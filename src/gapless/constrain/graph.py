"""Ways through an automaton: what can be reached, and how far it is to an end. Arrays in, arrays out.

`following` is int [S, C] everywhere, -1 where there is no way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.signedinteger[Any]]
_BLOCK = 2**24
"""Cells of the array in which edges of dense automata are ticked off at a time."""


def edges(following: Numbers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Each pair (from, to) once, in order of `from`.

    Few columns are sorted. Of many, most lead to the same few states, so those are ticked off, row by row.
    """
    states = len(following)
    if following.size <= _BLOCK // 16:
        source, column = np.nonzero(following >= 0)
        codes = np.unique(source * states + following[source, column])
        return codes // states, codes % states
    rows = max(_BLOCK // states, 1)
    found = []
    for first in range(0, states, rows):
        block = following[first : first + rows].astype(np.int64)
        ticks = np.zeros((len(block), states + 1), dtype=np.bool_)
        ticks[np.arange(len(block))[:, None], block] = True  # -1 ticks the last column
        source, target = np.nonzero(ticks[:, :states])
        found.append((source + first, target))
    return np.concatenate([pair[0] for pair in found]), np.concatenate([pair[1] for pair in found])


def distances(following: Numbers, accepting: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """Int32 [S]: the fewest moves from each state to an accepting one, -1 where there is none."""
    source, target = edges(following)
    source = source[np.argsort(target, kind="stable")]
    begins = np.append(0, np.cumsum(np.bincount(target, minlength=len(following))))
    distance = np.where(accepting, 0, -1).astype(np.int32)
    front, step = np.flatnonzero(accepting), 0
    while len(front):
        step += 1
        front = _neighbours(source, begins, front)
        front = front[distance[front] < 0]
        distance[front] = step
    return distance


def reached(following: Numbers, start: int) -> npt.NDArray[np.int64]:
    """The states that can be reached, `start` first, in order of distance."""
    seen = np.zeros(len(following) + 1, dtype=np.bool_)
    seen[[start, -1]] = True  # the last one stands for no way
    front = np.array([start], dtype=np.int64)
    found = [front]
    while len(front):
        front = np.unique(following[front])
        front = front[~seen[front]].astype(np.int64)
        seen[front] = True
        found.append(front)
    return np.concatenate(found)


def _neighbours(
    ends: npt.NDArray[np.int64], begins: npt.NDArray[np.int64], front: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Each state once that has an edge with one of `front`; the edges of s are ends[begins[s]:begins[s + 1]]."""
    if len(front) <= 4:  # long chains come state by state
        return np.unique(np.concatenate([ends[begins[s] : begins[s + 1]] for s in front.tolist()]))
    counts = begins[front + 1] - begins[front]
    offsets = np.repeat(begins[front] - np.append(0, np.cumsum(counts)[:-1]), counts)
    return np.unique(ends[offsets + np.arange(counts.sum())])
