"""Token tables: an automaton over bytes as an automaton over a model's ids, and one sequence's place in it.

In: a `Dfa` and a `Vocabulary`. Out: a `TokenTable`: which ids may come in each state, and where they lead. Ids that do
the same in every state share a class. Invariants: every state can be reached, and from every state some way leads to an
end, so a walk that takes what is allowed never gets stuck; where nothing but the end is left, the end alone is allowed.

What an id does is a function from states to states, and an id's function is that of its bytes but the last, followed by
the last byte. So functions are found byte by byte for all ids at once, each kind of function is worked out once, and
ids come to share a class by having the same function. Whole tokens are never looked at one by one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gapless.constrain.dfa import Dfa
from gapless.constrain.graph import distances, reached
from gapless.constrain.limits import DEFAULT, Limits, NotATable
from gapless.constrain.vocabulary import Vocabulary
from gapless.records import Mask
from gapless.token_table import END, FORBIDDEN, NEVER, Following, TokenTable


def token_table(dfa: Dfa, vocabulary: Vocabulary, limits: Limits = DEFAULT) -> TokenTable:
    """Compile. Raises `NotATable` if the vocabulary cannot spell any text of the language, or beyond the limits."""
    began = time.perf_counter()
    kinds, functions = _Functions(dfa, vocabulary, limits).of_ids()
    classes, following = _columns(dfa, vocabulary, kinds, functions)
    distance = distances(following, dfa.accepting)
    if distance[0] < 0:
        raise NotATable("no text that the rule allows can be written with this model's tokens")
    following, distance = _pruned(following, distance)
    classes, following = _merged(classes, following)
    table = TokenTable(
        classes.astype(np.uint16),
        following,
        distance.astype(np.int16),
        _forced(classes, following),
        time.perf_counter() - began,
    )
    if table.nbytes > limits.table_bytes:
        raise limits.exceeded("bytes", limits.table_bytes)
    return table


class _Functions:
    """What strings of bytes do to all states at once: int16 [S + 1], state S being the dead one."""

    def __init__(self, dfa: Dfa, vocabulary: Vocabulary, limits: Limits) -> None:
        if dfa.states > min(limits.states, np.iinfo(np.int16).max - 1):
            raise limits.exceeded("states", limits.states)
        self._vocabulary, self._limits = vocabulary, limits
        dead = dfa.states
        moves = np.where(dfa.following >= 0, dfa.following, dead).astype(np.int16)
        self._moves = np.concatenate([moves, np.full((1, moves.shape[1]), dead, np.int16)]).T.copy()
        self._of_byte = dfa.classes.astype(np.int64)
        self._dead = np.full(dead + 1, dead, np.int16).tobytes()
        identity = np.arange(dead + 1, dtype=np.int16)
        self._known: dict[bytes, int] = {self._dead: 0, identity.tobytes(): 1}
        self._rows = [np.frombuffer(self._dead, np.int16), identity]

    def of_ids(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int16]]:
        """Int64 [vocab]: the function of each id, 0 if it is never allowed; and the functions, int16 [n, S + 1]."""
        v = self._vocabulary
        kinds = np.where(v.lengths > 0, 1, 0)
        live, depth = np.flatnonzero(kinds), 0
        while len(live):
            byte = self._of_byte[v.data[v.begins[live] + depth]]
            kinds[live] = self._then(kinds[live], byte)
            depth += 1
            live = live[(v.lengths[live] > depth) & (kinds[live] > 0)]
        return kinds, np.stack(self._rows)

    def _then(self, kinds: npt.NDArray[np.int64], bytes_: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The functions `kinds`, each followed by a byte of a class."""
        width = len(self._moves)
        pairs, inverse = np.unique(kinds * width + bytes_, return_inverse=True)
        numbers = np.empty(len(pairs), dtype=np.int64)
        for i, pair in enumerate(pairs.tolist()):
            kind, byte = divmod(pair, width)
            numbers[i] = self._number(self._moves[byte].take(self._rows[kind]))
        return numbers[inverse]

    def _number(self, function: npt.NDArray[np.int16]) -> int:
        key = function.tobytes()
        number = self._known.setdefault(key, len(self._rows))
        if number == len(self._rows):
            if 2 * number * len(key) > self._limits.scratch_bytes:
                raise self._limits.exceeded("bytes while it is made", self._limits.scratch_bytes)
            self._rows.append(np.frombuffer(key, np.int16))
        return number


def _columns(
    dfa: Dfa, vocabulary: Vocabulary, kinds: npt.NDArray[np.int64], functions: npt.NDArray[np.int16]
) -> tuple[npt.NDArray[np.int64], Following]:
    """Classes of the ids and following states [S, C]: never, the end, then the functions that ids have."""
    used = np.unique(kinds[kinds > 0])
    to = np.zeros(len(functions), dtype=np.int64)
    to[used] = np.arange(len(used)) + 2
    classes = to[kinds]
    classes[vocabulary.end] = END
    following = np.full((dfa.states, len(used) + 2), FORBIDDEN, dtype=np.int16)
    following[:, 2:] = functions[used, : dfa.states].T
    following[following == dfa.states] = FORBIDDEN
    ends = np.flatnonzero(dfa.accepting)
    following[ends, END] = ends
    return classes, following


def _pruned(following: Following, distance: npt.NDArray[np.int32]) -> tuple[Following, npt.NDArray[np.int32]]:
    """Without ways that lead to no end, and without states that cannot be reached."""
    lost = np.append(distance < 0, True)  # -1 is lost too
    following = np.where(lost[following], np.int16(FORBIDDEN), following)
    keep = reached(following, 0)
    numbers = np.full(len(distance) + 1, FORBIDDEN, dtype=np.int16)
    numbers[keep] = np.arange(len(keep))
    return numbers[following[keep]], distance[keep]


def _merged(classes: npt.NDArray[np.int64], following: Following) -> tuple[npt.NDArray[np.int64], Following]:
    """Classes that do the same in the states that are left become one; what is nowhere allowed becomes `NEVER`."""
    columns = np.ascontiguousarray(following.T)
    numbers: dict[object, int] = {columns[NEVER].tobytes(): NEVER}
    firsts = [NEVER, END]
    to = np.zeros(len(columns), dtype=np.int64)
    to[END] = END
    for i in range(2, len(columns)):
        to[i] = numbers.setdefault(columns[i].tobytes(), len(firsts))
        if to[i] == len(firsts):
            firsts.append(i)
    if len(firsts) > np.iinfo(np.uint16).max:
        raise NotATable(f"the rule tells {len(firsts)} kinds of token apart, more than a table can hold")
    return to[classes], np.ascontiguousarray(columns[firsts].T)


def _forced(classes: npt.NDArray[np.int64], following: Following) -> npt.NDArray[np.int32]:
    sizes = np.bincount(classes, minlength=following.shape[1])
    examples = np.zeros(following.shape[1], dtype=np.int64)
    examples[classes] = np.arange(len(classes))
    allowed = following >= 0
    only = examples[np.argmax(allowed, axis=1)]
    single = (allowed.sum(axis=1) == 1) & (sizes[np.argmax(allowed, axis=1)] == 1)
    return np.where(single, only, -1).astype(np.int32)


@dataclass(slots=True)
class TokenWalker:
    """One sequence's place in a token table, moved by committed tokens. `ended`: the end was taken."""

    table: TokenTable
    state: int = 0
    ended: bool = False

    @property
    def complete(self) -> bool:
        """Whether the text so far is one that the rule allows."""
        return bool(self.table.distance[self.state] == 0)

    @property
    def fewest(self) -> int:
        """Tokens that must still come, the end among them."""
        return 0 if self.ended else int(self.table.distance[self.state]) + 1

    def mask(self, left: int | None = None) -> Mask:
        """Bool [vocab], True where the next token may be.

        With `left`, the number of tokens that may still come, only what leaves room to finish: after such a token the
        shortest way to the end fits in the rest. If there was not enough room to begin with, nothing is held back.
        """
        row = self.table.following[self.state]
        allowed = row >= 0
        if left is not None and self.fewest <= left:
            room = self.table.distance[np.maximum(row, 0)] + 2 <= left
            room[END] = True
            allowed &= room
        found: Mask = allowed[self.table.classes]
        return found

    def allows(self, token_id: int) -> bool:
        """Whether the next token may be this one."""
        return not self.ended and bool(self.table.following[self.state, self.table.classes[token_id]] >= 0)

    def advance(self, token_id: int) -> bool:
        """Move over one token; whether it was the end. Raises `ValueError` for one that is not allowed."""
        if not self.allows(token_id):
            raise ValueError(f"token {token_id} is not allowed in state {self.state}")
        cls = int(self.table.classes[token_id])
        self.state = int(self.table.following[self.state, cls])
        self.ended = cls == END
        return self.ended
