"""A wave: so many requests at once, each on a picture of its own, decoded until all have ended.

In: a `Session` and a number of rows. Out: what the steps of the wave took, all by the engine's own accounting. All rows
ride on every step from the last prefill to the first end; `full` are those steps. Their parts are means and not
medians: now and then the host is late, throughput pays for it, and the parts of a step add up.
Tokens per second and zombies are counted from the first full step to the last row's end, ragged rest included.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gapless.bench.timed import Session, StepNote, TickTimes
from gapless.observe.accounting import Accounting
from gapless.records import Adapter, Picture, Prompt, Request, RowRef, Sampling, StepKind

PROMPT = 14
"""Ids after the picture block: with 730 of it and answers of about 110 tokens the mean context is about 800."""
FAR = 700
"""A token limit no answer reaches."""
GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class MeanStep:
    """The mean step, part by part, in milliseconds. `device_ms` in the step, `idle_ms` before it, `period_ms` both;
    `wait_ms`: the host stood still for the device."""

    period_ms: float
    device_ms: float
    idle_ms: float
    plan_ms: float
    launch_ms: float
    wait_ms: float
    commit_ms: float


@dataclass(frozen=True, slots=True)
class Wave:
    """`context`: mean number of positions that a row of a full step attends to; `spent`: from the first full step to
    the end; `answered`: tokens of all answers."""

    rows: int
    full_steps: int
    context: float
    mean: MeanStep
    spent: Accounting
    answered: int

    @property
    def zombie_share(self) -> float:
        """Row-steps spent on rows that had ended, 0..1."""
        zombies = self.spent.counters.zombies
        return zombies / (zombies + self.spent.counters.tokens)

    @property
    def tokens_per_s(self) -> float:
        """Committed tokens over the device's time, idle time included."""
        return 1e3 * self.spent.counters.tokens / (self.spent.busy_ms + self.spent.idle_ms)


def picture(seed: int, side: int) -> Picture:
    """A small picture of noise: the whole and one crop of it, `side` pixels each."""
    crops = np.random.default_rng(seed).integers(0, 256, (2, side, side, 3), dtype=np.uint8)
    return Picture(f"{seed:064x}", crops, (1, 1), side, side)


def questions(
    count: int,
    first: int,
    side: int | None,
    max_tokens: int = FAR,
    temperature: float = GREEDY.temperature,
    top_p: float = GREEDY.top_p,
    prompt: int = PROMPT,
    program: str = "text",
    adapters: Sequence[Adapter | None] = (None,),
) -> list[Request]:
    """`count` requests with ids from `first` on, each its own seed; `side`: of each one's picture, None for no
    pictures; `prompt`: ids after the picture block; `adapters`: those of the first requests, then again from the
    first."""
    asked = []
    for number in range(first, first + count):
        ids = tuple(10 + (7 * number + 3 * j) % 90 for j in range(prompt))
        shown = None if side is None else picture(number, side)
        ids = ids if shown is not None else (0, *ids)
        sampling = Sampling(
            temperature=temperature, top_p=top_p, max_tokens=max_tokens, max_objects=max_tokens, seed=number
        )
        adapter = adapters[(number - first) % len(adapters)]
        asked.append(Request(number, Prompt(ids, ((),) * len(ids), shown), program, sampling, adapter=adapter))
    return asked


def ride(session: Session, requests: Sequence[Request], steps: int | None = None) -> Wave:
    """Ask, run until all has ended, or until `steps` more steps with all rows are settled, and sum up.

    What still runs is cancelled, and the empty engine audited. Raises `ValueError` if no step carried all rows twice.
    """
    notes, ticks, rows = len(session.watch.notes), len(session.ticks), len(requests)
    before = Accounting.of(session.engine.meter)
    session.submit(requests)
    try:
        advance(session, rows, 1)
        full = Accounting.of(session.engine.meter)
        advance(session, rows, steps)
        after = Accounting.of(session.engine.meter)
    finally:
        session.stop()
    mine = _full(session.watch.notes[notes:], rows)
    mean = mean_step(session.ticks[ticks:], rows)
    contexts = _contexts(session.watch.notes[notes:])
    return Wave(
        rows=rows,
        full_steps=len(mine),
        context=statistics.fmean(contexts[note.step.id] for note in mine),
        mean=mean,
        spent=after - full,
        answered=(after - before).counters.tokens,
    )


def advance(session: Session, rows: int, steps: int | None) -> None:
    """Run until `steps` more steps of `rows` rows are settled (None: until all has ended)."""
    goal = None if steps is None else session.watch.settled_rows[rows] + steps

    def enough(at: Session) -> bool:
        return goal is not None and at.watch.settled_rows[rows] >= goal

    session.run(enough)


def mean_step(ticks: Sequence[TickTimes], rows: int) -> MeanStep:
    """The mean of ticks that launched and settled a decode step of `rows` rows. Raises `ValueError` without one."""
    steady = [tick for tick in ticks if tick.carries(rows)]
    if not steady:
        raise ValueError(f"no two decode steps carried all {rows} rows; the answers are too short for this wave")
    return MeanStep(
        period_ms=_mean_ms([t.busy + t.idle for t in steady]),
        device_ms=_mean_ms([t.busy for t in steady]),
        idle_ms=_mean_ms([t.idle for t in steady]),
        plan_ms=_mean_ms([t.plan for t in steady]),
        launch_ms=_mean_ms([t.launch for t in steady]),
        wait_ms=_mean_ms([t.wait for t in steady]),
        commit_ms=_mean_ms([t.commit for t in steady]),
    )


def _full(notes: Sequence[StepNote], rows: int) -> list[StepNote]:
    """Decode steps that came back and carried all rows."""
    return [
        note
        for note in notes
        if note.step.kind is StepKind.DECODE and note.arrival is not None and len(note.step.rows) == rows
    ]


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


def _mean_ms(seconds: Sequence[float]) -> float:
    return 1e3 * statistics.fmean(seconds)
