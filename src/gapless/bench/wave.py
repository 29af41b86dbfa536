"""A wave: so many requests at once, each on a picture of its own, decoded until all have ended.

In: a `Session` and a number of rows. Out: what the steps of the wave took. All rows ride on every step from the last
prefill to the first end; `full` are those steps, and the period is theirs. Tokens per second and zombies are counted
from the first full step to the last row's end, ragged rest included.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gapless.bench.roofline import median_difference_ms
from gapless.bench.timed import Session, StepNote, TickTimes
from gapless.records import Picture, Prompt, Request, RowRef, Sampling, StepKind

PROMPT = 14
"""Ids after the picture block: with 730 of it and answers of about 110 tokens the mean context is about 800."""
FAR = 700
"""A token limit no answer reaches."""


@dataclass(frozen=True, slots=True)
class Wave:
    """Milliseconds, and counts. `period_ms` is None when there were fewer than two full steps; `wait_ms`: the host
    stood still for the device; `gap_ms`: from one full step's end to the next one's start, by the device's marks."""

    rows: int
    full_steps: int
    context: float
    period_ms: float | None
    device_ms: float
    gap_ms: float
    plan_ms: float
    launch_ms: float
    wait_ms: float
    commit_ms: float
    tokens: int
    seconds: float
    row_steps: int
    zombies: int

    @property
    def zombie_share(self) -> float:
        """Row-steps spent on rows that had ended, 0..1."""
        return self.zombies / self.row_steps

    @property
    def tokens_per_s(self) -> float:
        """Committed tokens over the device's time."""
        return self.tokens / self.seconds


def picture(seed: int, side: int) -> Picture:
    """A small picture of noise: the whole and one crop of it, `side` pixels each."""
    crops = np.random.default_rng(seed).integers(0, 256, (2, side, side, 3), dtype=np.uint8)
    return Picture(f"{seed:064x}", crops, (1, 1), side, side)


def questions(count: int, first: int, side: int | None, max_tokens: int = FAR) -> list[Request]:
    """`count` greedy requests with ids from `first` on; `side`: of each one's picture, None for no pictures."""
    asked = []
    for number in range(first, first + count):
        ids = tuple(10 + (7 * number + 3 * j) % 90 for j in range(PROMPT))
        shown = None if side is None else picture(number, side)
        ids = ids if shown is not None else (0, *ids)
        prompt = Prompt(ids, ((),) * len(ids), shown)
        asked.append(Request(number, prompt, "text", Sampling(max_tokens=max_tokens)))
    return asked


def ride(session: Session, requests: Sequence[Request], steps: int | None = None) -> Wave:
    """Ask, run until all has ended, or until `steps` steps with all rows are settled, and sum up.

    What still runs is cancelled, and the empty engine audited.
    """
    notes, ticks = len(session.watch.notes), len(session.ticks)
    session.submit(requests)
    try:
        advance(session, len(requests), steps)
    finally:
        session.stop()
    return sum_up(session.watch.notes[notes:], session.ticks[ticks:], len(requests))


def advance(session: Session, rows: int, steps: int | None) -> None:
    """Run until `steps` more steps of `rows` rows are settled (None: until all has ended)."""
    goal = None if steps is None else session.watch.settled_rows[rows] + steps

    def enough(at: Session) -> bool:
        return goal is not None and at.watch.settled_rows[rows] >= goal

    session.run(enough)


def sum_up(notes: Sequence[StepNote], ticks: Sequence[TickTimes], rows: int) -> Wave:
    """A wave's numbers from all its steps and ticks. Raises `ValueError` if no step carried all rows."""
    contexts = _contexts(notes)
    landed = [note for note in notes if note.step.kind is StepKind.DECODE and note.arrival is not None]
    full = [note for note in landed if len(note.step.rows) == rows]
    if not full:
        raise ValueError(f"no decode step carried all {rows} rows; the answers are too short for this wave")
    begins, last = full[0].step.id, full[-1].step.id
    counted = [note for note in landed if note.step.id >= begins]
    starts, ends = _times(counted)
    steady = [t for t in ticks if t.steady and t.launched is not None and begins <= t.launched.id <= last]
    return Wave(
        rows=rows,
        full_steps=len(full),
        context=statistics.fmean(contexts[note.step.id] for note in full),
        period_ms=median_difference_ms(starts[: len(full)]),
        device_ms=_median_ms([end - start for start, end in zip(starts, ends, strict=True)][: len(full)]),
        gap_ms=_median_ms([after - before for before, after in zip(ends, starts[1:], strict=False)][: len(full) - 1]),
        plan_ms=_median_ms([t.plan for t in steady]),
        launch_ms=_median_ms([t.launch for t in steady]),
        wait_ms=_median_ms([t.wait for t in steady]),
        commit_ms=_median_ms([t.commit for t in steady]),
        tokens=sum(note.tokens for note in counted),
        seconds=max(ends) - starts[0],
        row_steps=sum(len(note.step.rows) for note in counted),
        zombies=sum(note.muted for note in counted),
    )


def _times(notes: Sequence[StepNote]) -> tuple[list[float], list[float]]:
    """Starts and ends on the device's clock, in seconds."""
    arrivals = [note.arrival for note in notes if note.arrival is not None]
    return [a.started for a in arrivals], [a.ended for a in arrivals]


def _contexts(notes: Sequence[StepNote]) -> dict[int, float]:
    """Step id -> mean number of positions its rows attended to. Rows count from the prefill that began them."""
    attended: dict[RowRef, int] = {}
    contexts = {}
    for note in notes:
        for prefill in note.step.prefills:
            attended[prefill.start.ref] = prefill.position + len(prefill.ids)
        if note.step.kind is StepKind.DECODE:
            for ref in note.step.rows:
                attended[ref] += 1
            contexts[note.step.id] = statistics.fmean(attended[ref] for ref in note.step.rows)
    return contexts


def _median_ms(seconds: Sequence[float]) -> float:
    return 1e3 * statistics.median(seconds) if seconds else 0.0
