"""The host's part of a step: plan, launch and commit at several numbers of rows.

In: a device (the null one, or a real one with a model of its own) and the numbers of rows. Out: one `HostPart` each,
with how often the device's protocol was called a step, and, where a profiler looked, how many device API calls a launch
made. Neither may grow with the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gapless.bench.null import NullDevice
from gapless.bench.timed import Session
from gapless.bench.wave import advance, mean_step, questions
from gapless.config import EngineConfig
from gapless.constrain.table import Rules, build_table
from gapless.records import DeviceLimits

ROWS = (1, 32, 64, 128)
STEPS = 100
NULL = "null"
"""The name of the device that computes nothing."""
MOST_TOKENS = 400
RULES = Rules(vocab=256, end=0, answer=3, coord=5, size=6, mask_answer=True)


@dataclass(frozen=True, slots=True)
class HostPart:
    """Mean milliseconds of one steady tick's parts; `wait_ms`: the host stood still. `calls_per_step`: calls
    of the device's protocol over decode steps; `api_calls`: device API calls of one launch, by name, None if not
    looked at."""

    device: str
    rows: int
    depth: int
    plan_ms: float
    launch_ms: float
    wait_ms: float
    commit_ms: float
    calls_per_step: float
    api_calls: dict[str, int] | None = None

    def with_calls(self, calls: dict[str, int]) -> HostPart:
        """The same with the device API calls of a launch."""
        return replace(self, api_calls=calls)

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON, to a tenth of a microsecond."""
        return {key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_rows(session: Session, name: str, rows: int, depth: int, first: int, steps: int = STEPS) -> HostPart:
    """Run `steps` steps of `rows` rows without pictures (request ids from `first` on)."""
    ticks = len(session.ticks)
    session.submit(questions(rows, first, None, MOST_TOKENS))
    try:
        advance(session, rows, 2 * depth)  # past the prefills
        before = sum(session.watch.calls.values())
        advance(session, rows, steps)
        calls = sum(session.watch.calls.values()) - before
        step = mean_step(session.ticks[ticks:], rows)
    finally:
        session.stop()
    return HostPart(
        name, rows, depth, step.plan_ms, step.launch_ms, step.wait_ms, step.commit_ms, calls_per_step=calls / steps
    )


def measure_null(rows: Sequence[int] = ROWS, depth: int = 2, steps: int = STEPS) -> list[HostPart]:
    """The engine alone, on a device that does nothing."""
    return [measure_rows(null_session(count, depth), NULL, count, depth, 1, steps) for count in rows]


def null_session(rows: int, depth: int, context: int = 2048) -> Session:
    """An engine on the device that does nothing, with pages for `rows` rows of `context` positions at most."""
    limits = DeviceLimits(rows + 1, rows * context // 16 + 1, 16, context, 730, depth, RULES.vocab)
    return Session(NullDevice(limits), build_table(RULES), EngineConfig(depth=depth, max_rows=rows))
