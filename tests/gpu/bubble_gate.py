"""How the bubble is judged on a GPU, apart from the GPU: so that the judging itself is tested without one.

What flows in: a session that is ticked by hand, and a profiler's steps. What flows out: idle milliseconds a step by the
engine's own accounting, beside the profiler's.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gapless.bench.timed import Session
from gapless.bench.trace import StepWork, gaps_of
from gapless.bench.wave import advance, questions
from gapless.observe.bubble import Bubble
from gapless.records import StepKind

LIMIT_MS = 0.05
"""The most that the device may stand idle between two decode steps at depth 2, the median."""
SETTLED = 20
"""Steps with all rows before anything is measured."""


@dataclass(frozen=True)
class Beside:
    """Idle time between consecutive decode steps, medians in milliseconds: by the accounting; by the profiler with
    copies on the compute stream as work, as the accounting sees them; by the profiler between kernels alone. `period`:
    of a step, while it was profiled."""

    accounting: float
    profiler: float
    kernels: float
    period: float
    pairs: int


def settle(session: Session, rows: int, side: int | None, first: int = 1) -> None:
    """Let `rows` requests on pictures of their own ride until all have been on `SETTLED` steps together."""
    session.submit(questions(rows, first, side))
    advance(session, rows, SETTLED)


def idle_of_steps(session: Session, rows: int, steps: int) -> list[float]:
    """Idle milliseconds that each of the next `steps` decode steps added to the accounting."""
    idle: list[float] = []
    bubble, seen = session.engine.bubble, session.watch.settled_rows
    while len(idle) < steps:
        before, count = bubble.idle, seen[rows]
        session.tick()
        assert session.engine.loop.busy, f"the answers ended after {len(idle)} of {steps} steps"
        if session.ticks[-1].steady and seen[rows] > count:
            idle.append(1e3 * (bubble.idle - before))
    return idle


def judge(idle: Sequence[float], limit: float = LIMIT_MS) -> None:
    """Raise if the device stood idle for longer than `limit` in the median step."""
    median = statistics.median(idle)
    assert median <= limit, f"the device stood idle for {median:.4f} ms a step (median of {len(idle)}), not {limit}"


def beside(session: Session, works: Sequence[StepWork]) -> Beside:
    """The accounting's idle time of exactly those pairs of steps that the profiler saw whole."""
    gaps = gaps_of(works)
    arrivals = {note.step.id: note.arrival for note in session.watch.notes if note.arrival is not None}
    idle = []
    for before, after in pairwise(works):
        pair = [arrivals.get(work.id) for work in (before, after)]
        if before.kind is after.kind is StepKind.DECODE and before.kernels and after.kernels and None not in pair:
            bubble = Bubble()
            for arrival in pair:
                bubble.note(StepKind.DECODE, arrival)
            idle.append(1e3 * bubble.idle)
    assert gaps.any_ms is not None and gaps.median_ms is not None and gaps.period_ms is not None and idle
    return Beside(statistics.median(idle), gaps.any_ms, gaps.median_ms, gaps.period_ms, len(idle))
