"""Constraint tables: small automata whose states say what may be sampled, what it means and when it ends.

One table serves all programs of a model (text, reason, point, detect, segment, and forced-point, which has at least one
point), so every skill mixes in one batch.
The device holds these arrays and advances rows itself; `Walker` does the same on the host, one sequence at a time,
for masks built there, for exact resume after preemption, and for the certain cap on what is still to come.

A token's *class* (end, answer, coord, size, other) selects the transition. All arrays are indexed [state] or
[state, class]; states are absolute numbers, a program is its first state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from gapless.records import Flags, Mask, ValueHead


class TokenClass(IntEnum):
    """What a token id means to the automata."""

    OTHER = 0
    END = 1
    ANSWER = 2
    COORD = 3
    SIZE = 4


@dataclass(frozen=True, slots=True)
class Rules:
    """The ids and habits of one model revision.

    `mask_answer`: the answer id is forbidden after an answer's first token, and end and size ids are forbidden after a
    reasoning's first token (Moondream 2 does, Moondream 3 does not). `any_opens`: a model without coordinate ids in
    its tokenizer says with any id but the end that one more object follows.
    """

    vocab: int
    end: int
    answer: int
    coord: int
    size: int
    mask_answer: bool
    any_opens: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The automata of a model. S states, C = 5 classes, K masks.

    `masks` bool [K, vocab] (row 0 is all True), `classes` uint8 [vocab], `mask` int [S] -> K, `following` int [S, C]
    next state, `head` int [S, C] (`ValueHead`), `ends` bool [S, C], `counts` bool [S, C] (completes an object),
    `resets` bool [S, C] (a new phase: `left` becomes `left_next`), `on_limit` int [S] (state to go to when `left` runs
    out, -1: the end), `stride`/`offset` int [S]: with n objects to go at most `offset + stride * (n - 1)` tokens
    follow; stride 0 means that only `left` bounds them; `answers` bool [S]: an answer in text is being written.
    """

    masks: Mask
    classes: npt.NDArray[np.uint8]
    mask: npt.NDArray[np.int64]
    following: npt.NDArray[np.int64]
    head: npt.NDArray[np.int64]
    ends: npt.NDArray[np.bool_]
    counts: npt.NDArray[np.bool_]
    resets: npt.NDArray[np.bool_]
    on_limit: npt.NDArray[np.int64]
    stride: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    answers: npt.NDArray[np.bool_]
    programs: dict[str, int]


@dataclass(frozen=True, slots=True)
class _State:
    """One state while a table is being put together. `allow`: ids allowed, None for all; `deny`: ids taken away."""

    name: str
    other: str | None = None
    end: str | None = None
    answer: str | None = None
    coord: str | None = None
    size: str | None = None
    allow: tuple[int, ...] | None = None
    deny: tuple[int, ...] = ()
    heads: tuple[TokenClass, ...] = ()
    counts: bool = False
    resets_on_answer: bool = False
    on_limit: str | None = None
    stride: int = 0
    offset: int = 0
    answers: bool = False


_END = "end"
_HEAD_OF = dict.fromkeys(TokenClass, ValueHead.COORD) | {TokenClass.SIZE: ValueHead.SIZE}


def _states(r: Rules) -> list[_State]:
    late_answer = (r.answer,) if r.mask_answer else ()
    late_reason = (r.end, r.size) if r.mask_answer else ()
    both = (TokenClass.COORD, TokenClass.SIZE)
    coord, size = (TokenClass.COORD,), (TokenClass.SIZE,)

    def text(name: str, deny: tuple[int, ...]) -> _State:
        return _State(name, "text+", _END, "text+", "text+", "text+", deny=deny, answers=True)

    def reason(name: str, deny: tuple[int, ...]) -> _State:
        go = "reason+"
        return _State(
            name, go, go, "text", go, go, deny=deny, heads=coord, resets_on_answer=True, on_limit="reason-end"
        )

    def opening(name: str, then: str, stride: int, ends: bool = True) -> _State:
        if r.any_opens:
            every = tuple(cls for cls in TokenClass if cls not in (TokenClass.END, TokenClass.SIZE))
            deny = (r.size,) if ends else (r.size, r.end)
            return _State(name, then, _END, then, then, deny=deny, heads=every, stride=stride, offset=stride)
        allow = (r.coord, r.end) if ends else (r.coord,)
        return _State(name, end=_END, coord=then, allow=allow, heads=coord, stride=stride, offset=stride)

    return [
        text("text", ()),
        text("text+", late_answer),
        reason("reason", ()),
        reason("reason+", late_reason),
        _State("reason-end", answer="text", allow=(r.answer,), resets_on_answer=True),
        opening("point", "point-y", 2),
        opening("forced-point", "point-y", 2, ends=False),
        _State("point-y", coord="point", allow=(r.coord,), heads=coord, counts=True, stride=2, offset=1),
        opening("detect", "detect-y", 3),
        _State("detect-y", coord="detect-s", allow=(r.coord,), heads=coord, stride=3, offset=2),
        _State("detect-s", size="detect", allow=(r.size,), heads=size, counts=True, stride=3, offset=1),
        _State("segment", end=_END, coord="segment-y", allow=(r.coord, r.end), heads=coord),
        _State("segment-y", coord="segment-s", allow=(r.coord,), heads=coord),
        _State("segment-s", size="outline", allow=(r.size,), heads=size),
        _State("outline", "outline", _END, "outline", "outline", "outline", heads=both),
    ]


PROGRAMS = ("text", "reason", "point", "forced-point", "detect", "segment")


def build_table(rules: Rules) -> Table:
    """Compile the Moondream skills for one model's ids. Pure; called once at load."""
    states = _states(rules)
    number = {s.name: i for i, s in enumerate(states)}
    count, width = len(states), len(TokenClass)
    masks: list[Mask] = [np.ones(rules.vocab, dtype=np.bool_)]
    table = Table(
        masks=masks[0],
        classes=_classes(rules),
        mask=np.zeros(count, dtype=np.int64),
        following=np.tile(np.arange(count, dtype=np.int64)[:, None], (1, width)),
        head=np.zeros((count, width), dtype=np.int64),
        ends=np.zeros((count, width), dtype=np.bool_),
        counts=np.zeros((count, width), dtype=np.bool_),
        resets=np.zeros((count, width), dtype=np.bool_),
        on_limit=np.full(count, -1, dtype=np.int64),
        stride=np.array([s.stride for s in states], dtype=np.int64),
        offset=np.array([s.offset for s in states], dtype=np.int64),
        answers=np.array([s.answers for s in states], dtype=np.bool_),
        programs={name: number[name] for name in PROGRAMS},
    )
    for i, state in enumerate(states):
        table.mask[i] = _add_mask(masks, state, rules.vocab)
        if state.on_limit is not None:
            table.on_limit[i] = number[state.on_limit]
        _fill_transitions(table, i, state, number)
    return Table(**{**{f: getattr(table, f) for f in Table.__slots__}, "masks": np.stack(masks)})


def _classes(rules: Rules) -> npt.NDArray[np.uint8]:
    classes = np.zeros(rules.vocab, dtype=np.uint8)
    classes[rules.end] = TokenClass.END
    classes[rules.answer] = TokenClass.ANSWER
    classes[rules.coord] = TokenClass.COORD
    classes[rules.size] = TokenClass.SIZE
    return classes


def _add_mask(masks: list[Mask], state: _State, vocab: int) -> int:
    mask = np.ones(vocab, dtype=np.bool_)
    if state.allow is not None:
        mask[:] = False
        mask[list(state.allow)] = True
    mask[list(state.deny)] = False
    for k, known in enumerate(masks):
        if np.array_equal(known, mask):
            return k
    masks.append(mask)
    return len(masks) - 1


def _fill_transitions(table: Table, i: int, state: _State, number: dict[str, int]) -> None:
    targets = (state.other, state.end, state.answer, state.coord, state.size)
    for cls, target in zip(TokenClass, targets, strict=True):
        if target == _END:
            table.ends[i, cls] = True
        elif target is not None:
            table.following[i, cls] = number[target]
        if cls in state.heads:
            table.head[i, cls] = _HEAD_OF[cls]
            table.counts[i, cls] = state.counts
        table.resets[i, cls] = state.resets_on_answer and cls is TokenClass.ANSWER


@dataclass(slots=True)
class Walker:
    """One sequence's place in a table, moved by committed tokens."""

    table: Table
    state: int
    left: int
    left_next: int
    objects_left: int

    @classmethod
    def start(cls, table: Table, program: str, max_tokens: int, max_objects: int) -> Walker:
        """Stand at the first state of `program`."""
        return cls(table, table.programs[program], max_tokens, max_tokens, max_objects)

    def mask(self) -> Mask:
        """Bool [vocab], True where the next token may be. A view of the table: do not write."""
        row: Mask = self.table.masks[self.table.mask[self.state]]
        return row

    @property
    def answers(self) -> bool:
        """Whether the next token belongs to an answer in text, which a token table may rule."""
        return bool(self.table.answers[self.state])

    def remaining(self) -> int:
        """The most tokens that may still come; a row with that many in flight is not planned again."""
        stride = int(self.table.stride[self.state])
        if stride:
            return min(self.left, int(self.table.offset[self.state]) + stride * (self.objects_left - 1))
        after = self.left_next + 1 if self.table.on_limit[self.state] >= 0 else 0
        forced = self.left_next if self.table.resets[self.state].any() and not after else 0
        return self.left + after + forced

    def advance(self, token_id: int) -> tuple[ValueHead, Flags]:
        """Move over one token. Returns which head's value rides on it and whether it ended the sequence."""
        t, cls = self.table, int(self.table.classes[token_id])
        at = self.state
        head = ValueHead(int(t.head[at, cls]))
        self.state = int(t.following[at, cls])
        self.left -= 1
        if t.counts[at, cls]:
            self.objects_left -= 1
        if t.resets[at, cls]:
            self.left = self.left_next
        if t.ends[at, cls]:
            return head, Flags.STOP
        if t.counts[at, cls] and self.objects_left <= 0:
            return head, Flags.LENGTH
        if self.left <= 0:
            if t.on_limit[at] < 0 or t.resets[at, cls]:
                return head, Flags.LENGTH
            self.state = int(t.on_limit[at])
            self.left = 1
        return head, Flags.NONE
