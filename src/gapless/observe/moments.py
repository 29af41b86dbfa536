"""Stretches of steps in which something happens: a prompt is fed, an answer ends, a row waits for its mask.

In: an engine's spans. Out: a `Window` for the figure: of all the times that it happened the shortest, which other
programs of the machine have disturbed the least. It shows what follows what; averages are `observe.window`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from gapless.errors import InvalidRequest
from gapless.observe.recording import Span
from gapless.observe.window import Window, Work, gaps_of, works_of
from gapless.records import StepKind


class Moment(Enum):
    """What happens, and the kinds of the steps around it."""

    PREFILL = (StepKind.DECODE, StepKind.PREFILL, StepKind.DECODE, StepKind.DECODE)
    """A prompt is fed while others decode."""
    END = (StepKind.DECODE,) * 4
    """An answer ends while others go on."""
    PARKED = (StepKind.DECODE, StepKind.DECODE, StepKind.PARKED, StepKind.DECODE)
    """A row whose mask is not there in time sits a step out, and is sampled by itself."""


def find(spans: Sequence[Span], depth: int, moment: Moment, others: int, since: float = 0.0) -> Window:
    """A window of one engine, of steps that began after `since` (seconds, as in spans), with so many `others` beside
    the row to which it happens.

    Raises `InvalidRequest` if it never happened.
    """
    works = [work for work in works_of(spans) if work.start > since]
    steps = len(moment.value)
    stretches = [works[at : at + steps + 1] for at in range(len(works) - steps)]
    found = sorted((some for some in stretches if _shows(some[:-1], depth, moment, others)), key=_length)
    if not found:
        raise InvalidRequest(
            f"the run at depth {depth} has no {moment.name.lower()} beside {others} rows", param="moment"
        )
    some = found[0]
    first, last = some[0], some[-1]
    rows = len(first.step.rows)
    return Window(
        depth, rows, steps, first.step.id, first.start, last.start, tuple(spans), gaps_of(spans), moment=moment.name
    )


def _shows(works: Sequence[Work], depth: int, moment: Moment, others: int) -> bool:
    """Whether rows come and go as they do then; `beside`: how many more or fewer than `others` ride on each step."""
    beside = {
        Moment.PREFILL: [0, 1 - others, 1, 1],
        Moment.END: [1] * depth + [0] * (4 - depth),  # its last step, and its rides as a zombie
        Moment.PARKED: [1, 0, 1 - others, 1],
    }[moment]
    zombies = depth - 1 if moment is Moment.END else 0
    return (
        tuple(work.step.kind for work in works) == moment.value
        and [len(work.step.rows) for work in works] == [others + more for more in beside]
        and [work.spans[0].zombies or 0 for work in works] == [int(0 < at <= zombies) for at in range(4)]
    )


def _length(works: Sequence[Work]) -> float:
    return works[-1].start - works[0].start
