"""What a set of kernels may offer for rows: to feed a step, and to end one, with or without temperatures and logprobs.

In and out are the tensors of the device room; which column holds what is told once, as `Columns`. Row for row the same
as the plain lines there, which are the specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Columns:
    """Where things are in a row's integers and reals, in a line of results, and what marks nothing."""

    token: int
    position: int
    state: int
    left: int
    left_next: int
    objects_left: int
    done: int
    epoch: int
    adapter: int
    adjusted: int
    least: int
    grammar: int
    grammar_state: int
    seed: int
    top_logprobs: int
    value: int
    """Of the first of two reals that ride on a token."""
    temperature: int
    top_p: int
    repetition: int
    frequency: int
    presence: int
    alternatives: int
    """Of the first of a line's alternatives: as many ids, then as many logprobs."""
    width: int
    """Of a line."""
    poison: int


@dataclass(frozen=True, slots=True)
class Marks:
    """Numbers with a meaning: what is asked of a row, which head gives a value, how a row ended, classes of tokens."""

    nothing: int
    sample: int
    coord: int
    size: int
    stop: int
    length: int
    nonfinite: int
    muted: int
    other: int
    ending: int


@dataclass(frozen=True, slots=True)
class Automata:
    """Tables of rules: `masks` bool [m, vocab], `mask` and `on_limit` int64 [states], `classes` int64 [vocab]; the
    others [states, classes]: `following` and `head` int64, `ends`, `counts` and `resets` bool."""

    masks: Tensor
    mask: Tensor
    classes: Tensor
    following: Tensor
    head: Tensor
    ends: Tensor
    counts: Tensor
    resets: Tensor
    on_limit: Tensor


@dataclass(frozen=True, slots=True)
class Grammars:
    """Token tables by slot: `classes` int16 [slots, vocab], the bits of unsigned ones; `spans` int64 [slots, 3]: where
    a slot's states are in `numbers` int16, how many classes each has, and how many states there are. There lie the
    following states [states, classes], -1 where there is none, and behind them the distances [states] to an end.
    `answers` bool [states of the rules]: whether a row is in its answer, which alone is ruled. Slot 0 is none."""

    classes: Tensor
    numbers: Tensor
    spans: Tensor
    answers: Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """`counts` int64 [rows, ...], `reals` float64 [rows, ...], `pages` int64 [rows, entries]; row 0 is padding."""

    counts: Tensor
    reals: Tensor
    pages: Tensor


@dataclass(frozen=True, slots=True)
class Said:
    """What adjusts logits, see `device.adjust`: `words` int32 [rows, vocab], `biases` float32 [rows, n], of which the
    first is 0; and the id that `end`s answers."""

    words: Tensor
    biases: Tensor
    end: int


@dataclass(frozen=True, slots=True)
class Ends:
    """A step's end: `step` int64 [1], `rows` and `asked` int64 [B], `logits` float32 [B, vocab], `lines` float64
    [B, width], `values`: what the heads say for tokens that carry some, float32 [B] and [B, 2], or None; `masks` bool
    [B, vocab]: those of the rows if they do not come from the rules; `grammars`: None if no row has a token table."""

    step: Tensor
    rows: Tensor
    asked: Tensor
    logits: Tensor
    lines: Tensor
    values: tuple[Tensor, Tensor] | None
    masks: Tensor | None = None
    grammars: Grammars | None = None


class RowKernels(Protocol):
    """See the module."""

    def feed(self, store: Rows, rows: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows int64 [B] -> ids int64 [B], values float32 [B, 2], positions int64 [B], tables int64 [B, columns]."""
        ...

    def adapters(self, store: Rows, rows: Tensor) -> Tensor:
        """Rows int64 [B] -> the slots of their adapters int64 [B], 0 for rows that are done."""
        ...

    def wishes(self, store: Rows, rows: Tensor, may: Tensor) -> Tensor:
        """Rows int64 [B], `may` int32 [states] -> int32 [B]: that of each row's state, 0 for rows that are done."""
        ...

    def adjust(
        self,
        store: Rows,
        said: Said,
        rules: Automata,
        grammars: Grammars | None,
        rows: Tensor,
        asked: Tensor,
        logits: Tensor,
        masks: Tensor | None,
    ) -> None:
        """Change the logits float32 [B, vocab] of adjusted rows int64 [B] that are `asked` for a token. `masks` bool
        [B, vocab]: those of the rows if they do not come from the rules and from token tables, if there are any."""
        ...

    def count(self, store: Rows, said: Said, rules: Automata, rows: Tensor, asked: Tensor) -> None:
        """Count the token that each of these rows has just been given, if it is adjusted and goes on."""
        ...

    def greedy(self, store: Rows, rules: Automata, end: Ends) -> None:
        """Choose the likeliest allowed token of each row, move the row on, write its line. Masks are those of the
        rules."""
        ...

    def likeliest(self, store: Rows, rules: Automata, end: Ends) -> None:
        """The same, whatever masks there are."""
        ...

    def full(self, store: Rows, rules: Automata, end: Ends) -> None:
        """Sample each row as it wishes, with logprobs where it wants some, move the row on, write its line."""
        ...
