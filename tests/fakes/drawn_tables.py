"""Token tables drawn at random: any ids, classes and ways, and from each state some way to an end."""

from __future__ import annotations

import numpy as np

from gapless.constrain.graph import distances
from gapless.records import TokenTable
from gapless.token_table import END, FORBIDDEN


def drawn_table(seed: int, vocab: int, states: int, classes: int, *, end: int = 0, ids: int = 0) -> TokenTable:
    """Class 0 is never allowed, class 1 the end. `ids`: how many ids are ever allowed, 0: most of them. State s leads
    to s + 1 by one class at least, the last state may end, and some others may."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(2, classes, vocab)
    kinds[rng.permutation(vocab)[: vocab // 3 if not ids else vocab - ids]] = 0
    free = np.flatnonzero((kinds > 0) & (np.arange(vocab) != end))
    kinds[free[: classes - 2]] = np.arange(2, classes)[: len(free)]  # none is empty
    kinds[end] = END
    following = rng.integers(0, states, (states, classes)).astype(np.int16)
    following[rng.random((states, classes)) < 0.6] = FORBIDDEN
    following[:, :2] = FORBIDDEN
    onward = rng.integers(2, classes, states - 1)
    following[np.arange(states - 1), onward] = np.arange(1, states)
    accepting = rng.random(states) < 0.2
    accepting[-1] = True
    following[accepting, END] = np.flatnonzero(accepting)
    distance = distances(following, accepting).astype(np.int16)
    return TokenTable(kinds.astype(np.uint16), following, distance, np.full(states, -1, np.int32))
