"""Rows of a serving report, from runs of both sides.

Pure. In: runs. Out: rows; a percentile is of the nearest rank, a rate a sum over a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gapless.bench.latency import PERCENTS, percentile
from gapless.bench.serve_load import Heard, Run
from gapless.bench.text import rounded

HTTP, HERE = "http", "in-process"
"""The sides."""
Row = dict[str, Any]


def load_row(side: str, concurrency: int, runs: Sequence[Run]) -> Row:
    """All runs of one side at one number of callers."""
    heard = [one for run in runs for one in run.heard]
    seconds = sum(run.seconds for run in runs)
    spent = [run.spent for run in runs]
    busy, idle = sum(look.busy_ms for look in spent), sum(look.idle_ms for look in spent)
    tokens = sum(one.tokens for one in heard)
    rates = [len(run.heard) / run.seconds for run in runs]
    return {
        "side": side,
        "concurrency": concurrency,
        "requests": len(heard),
        "requests_per_s": rounded(len(heard) / seconds),
        **_percentiles("latency", [one.latency_ms for one in heard]),
        **_percentiles("ttft", [one.ttft_ms for one in heard]),
        "tokens_per_s": rounded(tokens / seconds),
        "answer_tokens": rounded(tokens / len(heard)),
        "finishes": _finishes(heard),
        "idle_share": rounded(idle / (busy + idle)) if busy + idle else None,
        "client_cpu": rounded(sum(run.cpu_s for run in runs) / seconds) if side == HTTP else None,
        "server_cpu": rounded(sum(look.cpu_s for look in spent) / seconds) if side == HTTP else None,
        "slices": [rounded(rate) for rate in rates],
        "overhead": None,
    }


def stream_row(side: str, runs: Sequence[Run]) -> Row:
    """The decode steps of one side while all streams were busy. Raises `ValueError` if they never were."""
    parts = [run.busy() for run in runs]
    steps = sum(part.decode_steps for part in parts)
    seconds = sum(part.asked for part in parts)
    heard = [one for run in runs for one in run.heard]
    return {
        "side": side,
        "streams": len(runs[0].heard),
        "steps": int(steps),
        "rows_per_step": rounded(sum(part.tokens for part in parts) / steps),
        "prefill_steps": int(sum(part.prefill_steps for part in parts)),
        "step_ms": rounded(sum(part.busy_ms + part.idle_ms for part in parts) / steps),
        "busy_ms": rounded(sum(part.busy_ms for part in parts) / steps),
        "idle_ms": rounded(sum(part.idle_ms for part in parts) / steps),
        "tokens_per_s": rounded(sum(part.tokens for part in parts) / seconds),
        "answer_tokens": rounded(sum(one.tokens for one in heard) / len(heard)),
        "finishes": _finishes(heard),
        "events": rounded(sum(one.events for one in heard) / len(heard)) if side == HTTP else None,
        "server_cpu": rounded(sum(part.cpu_s for part in parts) / seconds) if side == HTTP else None,
        "slices": [rounded((part.busy_ms + part.idle_ms) / part.decode_steps) for part in parts],
        "step_cost": None,
    }


def fill_overheads(rows: Sequence[Row]) -> None:
    """What HTTP takes of the requests per second at each number of callers."""
    here = {row["concurrency"]: row["requests_per_s"] for row in rows if row["side"] == HERE}
    for row in rows:
        base = here.get(row["concurrency"])
        if row["side"] == HTTP and base:
            row["overhead"] = rounded(1 - row["requests_per_s"] / base)


def fill_step_costs(rows: Sequence[Row]) -> None:
    """How much longer a step takes beside streams over HTTP."""
    base = next((row["step_ms"] for row in rows if row["side"] == HERE), None)
    for row in rows:
        if row["side"] == HTTP and base:
            row["step_cost"] = rounded(row["step_ms"] / base - 1)


def _finishes(heard: Sequence[Heard]) -> list[str]:
    """Why the answers ended, each reason once."""
    return sorted({one.finish for one in heard})


def _percentiles(name: str, values: Sequence[float]) -> dict[str, float | None]:
    return {f"{name}_p{p}_ms": rounded(percentile(values, p)) for p in PERCENTS}
