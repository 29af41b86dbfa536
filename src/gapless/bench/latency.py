"""What callers waited for, request by request, and what that comes to.

Pure. In: a `Sample` a request and the accounting beside them. Out: percentiles, and a row of a query report. A
percentile is one of the values: the least that is not below so many percent of them (nearest rank).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gapless.bench.text import rounded
from gapless.observe.accounting import Accounting

PERCENTS = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Sample:
    """One request in milliseconds, as its caller's thread saw it. `prepare_ms`: decoding and cutting the picture;
    `ttft_ms`: from the call to the first token, that included; `latency_ms`: to the whole answer; `tpot_ms`: a token
    after the first one, the mean, None for an answer of one token. `tokens` of the answer, its end among them."""

    prepare_ms: float
    ttft_ms: float
    latency_ms: float
    tpot_ms: float | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Requests of so many callers at once: `seconds` from the first call to the last answer, and what the engine did
    meanwhile."""

    samples: tuple[Sample, ...]
    seconds: float
    spent: Accounting


def percentile(values: Sequence[float], percent: float) -> float:
    """See the module. Raises `ValueError` without a value."""
    if not values:
        raise ValueError("there is no value to take a percentile of")
    ranked = sorted(values)
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)]


def row_of(answer: str, concurrency: int, depth: int, slices: Sequence[Slice]) -> dict[str, Any]:
    """All slices of a kind as one row. Rates are sums over sums; idle and zombies are the engine's."""
    samples = [sample for one in slices for sample in one.samples]
    seconds = sum(one.seconds for one in slices)
    busy, idle = (sum(getattr(one.spent, name) for one in slices) for name in ("busy_ms", "idle_ms"))
    zombies = sum(one.spent.counters.zombies for one in slices)
    tokens = sum(sample.tokens for sample in samples)
    rates = [len(one.samples) / one.seconds for one in slices]
    return {
        "answer": answer,
        "concurrency": concurrency,
        "depth": depth,
        "requests": len(samples),
        "requests_per_s": rounded(len(samples) / seconds),
        **_percentiles("latency", [s.latency_ms for s in samples]),
        **_percentiles("ttft", [s.ttft_ms for s in samples]),
        **_percentiles("tpot", [s.tpot_ms for s in samples if s.tpot_ms is not None]),
        "prepare_p50_ms": rounded(percentile([s.prepare_ms for s in samples], 50)),
        "tokens_per_s": rounded(tokens / seconds),
        "answer_tokens": rounded(tokens / len(samples)),
        "idle_share": rounded(idle / (busy + idle)) if busy + idle else None,
        "zombie_share": rounded(zombies / (tokens + zombies)),
        "steps_in_flight": rounded(statistics.fmean(one.spent.steps_in_flight for one in slices)),
        "preemptions": sum(one.spent.counters.preemptions for one in slices),
        "slices": [rounded(rate) for rate in (min(rates), max(rates))],
        "observed_gain": None,
    }


def _percentiles(name: str, values: Sequence[float]) -> dict[str, float | None]:
    return {f"{name}_p{p}_ms": rounded(percentile(values, p)) if values else None for p in PERCENTS}
