"""Ways through an automaton: what can be reached, and how far it is to an end. Arrays in, arrays out.

`following` is int [S, C] everywhere, -1 where there is no way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.signedinteger[Any]]


def edges(following: Numbers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Each pair (from, to) once, in order of `to`."""
    source, column = np.nonzero(following >= 0)
    codes = np.unique(following[source, column].astype(np.int64) * len(following) + source)
    return codes % len(following), codes // len(following)


def distances(following: Numbers, accepting: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """Int32 [S]: the fewest moves from each state to an accepting one, -1 where there is none."""
    source, target = edges(following)
    begins = np.searchsorted(target, np.arange(len(following) + 1))
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
    target, source = edges(following)[::-1]
    order = np.argsort(source, kind="stable")
    source, target = source[order], target[order]
    begins = np.searchsorted(source, np.arange(len(following) + 1))
    seen = np.zeros(len(following), dtype=np.bool_)
    seen[start] = True
    front = np.array([start], dtype=np.int64)
    found = [front]
    while len(front):
        front = _neighbours(target, begins, front)
        front = front[~seen[front]]
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
