"""A few decode steps out of a recording: the stretch that a figure shows.

In: an engine's spans. Out: a `Window` of consecutive decode steps with the same rows: the typical one, whose steps are
nearest to the median step in length and in idle time. Two engines are compared over steps of as many rows. Idle is what
lies between pieces of work on the compute stream, as in `observe.bubble`.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from gapless.errors import InvalidRequest
from gapless.observe.recording import LOOP, Span
from gapless.records import Lane, Step, StepKind

STEPS = 3
"""Decode steps a window has."""
ENOUGH = 5
"""Windows to choose from; with that many, steps of more rows are preferred."""


@dataclass(frozen=True, slots=True)
class Work:
    """One step on the compute stream: its spans from first to last."""

    step: Step
    spans: tuple[Span, ...]

    @property
    def start(self) -> float:
        """When it began."""
        return self.spans[0].start

    @property
    def end(self) -> float:
        """When it ended."""
        return max(span.end for span in self.spans)


@dataclass(frozen=True, slots=True)
class Window:
    """`steps` decode steps of `rows` rows, or of other kinds if it shows a moment: from the first one's start to the
    start of the one behind the last; seconds.

    `first`: the id of the first step; `spans`: all of the engine's; `gaps`: when its compute stream stood idle, each
    (from, to). `moment`: what the stretch shows; empty for decode steps that are all alike.
    """

    depth: int
    rows: int
    steps: int
    first: int
    start: float
    end: float
    spans: tuple[Span, ...]
    gaps: tuple[tuple[float, float], ...]
    moment: str = ""

    @property
    def period(self) -> float:
        """A step with the gap behind it, the mean."""
        return (self.end - self.start) / self.steps

    @property
    def idle(self) -> float:
        """Idle time of a step, the mean."""
        inside = [(a, b) for a, b in self.gaps if a >= self.start and b <= self.end]
        return sum(b - a for a, b in inside) / self.steps

    @property
    def lead(self) -> float:
        """How long before its start the host began to plan and launch the first step."""
        launch = [s for s in self.spans if s.lane == LOOP and s.name == "launch" and s.start <= self.start]
        plan = [s for s in self.spans if s.lane == LOOP and s.name == "plan" and launch and s.start < launch[-1].start]
        return self.start - plan[-1].start if plan else 0.0


def compare(
    one: Sequence[Span], other: Sequence[Span], depths: tuple[int, int], rows: int | None = None, steps: int = STEPS
) -> list[Window]:
    """A window of each of two engines, of as many rows: `rows`, or the most rows that are common in both.

    Raises `InvalidRequest` if they have no such steps in common.
    """
    found = [_by_rows(spans, steps) for spans in (one, other)]
    wanted = set() if rows is None else {rows}
    common = found[0].keys() & found[1].keys() & (wanted or found[0].keys())
    if not common:
        raise InvalidRequest(
            f"the runs at depth {depths[0]} and {depths[1]} have no {steps + 1} decode steps one after another with "
            f"{'as many' if rows is None else rows} rows; trace a command with longer answers",
            param="png",
        )

    def suits(count: int) -> tuple[int, int]:
        return min(ENOUGH, len(found[0][count]), len(found[1][count])), count

    best = max(common, key=suits)
    both = zip((one, other), found, depths, strict=True)
    return [_window(spans, windows[best], depth, best, steps) for spans, windows, depth in both]


def _window(spans: Sequence[Span], windows: list[list[Work]], depth: int, rows: int, steps: int) -> Window:
    """The typical one."""
    measured = [[_measured(a, b) for a, b in pairwise(works)] for works in windows]
    length, idle = (statistics.median(step[i] for window in measured for step in window) for i in (0, 1))
    strange = [sum(abs(took - length) + abs(stood - idle) for took, stood in window) for window in measured]
    works = windows[strange.index(min(strange))]
    first, last = works[0], works[-1]
    return Window(depth, rows, steps, first.step.id, first.start, last.start, tuple(spans), gaps_of(spans))


def _measured(work: Work, following: Work) -> tuple[float, float]:
    """A step's length with the gap behind it, and how much of that was idle; seconds."""
    busy = sum(span.end - span.start for span in work.spans)
    return following.start - work.start, following.start - work.start - busy


def _by_rows(spans: Sequence[Span], steps: int) -> dict[int, list[list[Work]]]:
    """Rows -> every `steps + 1` consecutive decode steps that carried so many."""
    works = works_of(spans)
    found: dict[int, list[list[Work]]] = defaultdict(list)
    for at in range(len(works) - steps):
        some = works[at : at + steps + 1]
        rows = {len(work.step.rows) for work in some}
        if len(rows) == 1 and all(work.step.kind is StepKind.DECODE for work in some):
            found[rows.pop()].append(some)
    return found


def works_of(spans: Sequence[Span]) -> list[Work]:
    """The steps of one engine on the compute stream, in its order."""
    mine: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        if span.lane == Lane.COMPUTE and span.step is not None:
            mine[span.step.id].append(span)
    works = []
    for some in mine.values():
        ordered = sorted(some, key=attrgetter("start"))
        assert ordered[0].step is not None
        works.append(Work(ordered[0].step, tuple(ordered)))
    return sorted(works, key=attrgetter("start"))


def gaps_of(spans: Sequence[Span]) -> tuple[tuple[float, float], ...]:
    """When the compute stream stood idle, each (from, to); seconds."""
    computed = sorted((s for s in spans if s.lane == Lane.COMPUTE), key=attrgetter("start"))
    return tuple((a.end, b.start) for a, b in pairwise(computed) if b.start > a.end)
