"""Rows of a decode report: what waves, isolated graphs and traces say, and the gains that follow.

Pure. A row is a number of streams, a depth and a sampler; what was not measured is None.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from gapless.bench.cost_model import predict_rows
from gapless.bench.rig import ADAPTED, SPATIAL, Isolated
from gapless.bench.roofline import Roofline, gain
from gapless.bench.text import rounded
from gapless.bench.trace import Gaps
from gapless.bench.wave import Wave

GREEDY, DEFAULT = "greedy", "default"
SAMPLERS = (GREEDY, DEFAULT)
"""Temperature 0, and what a query uses whose caller sets nothing."""
KINDS = (SPATIAL, ADAPTED)
"""Rows of temperature 0 that do more than write text; they stand where a sampler does."""
COLUMNS = (
    "sampler",
    "streams",
    "depth",
    "context",
    "forward_ms",
    "sampling_ms",
    "period_ms",
    "idle_ms",
    "gap_ms",
    "plan_ms",
    "launch_ms",
    "commit_ms",
    "zombie_share",
    "tokens_per_s",
    "gb_per_s",
    "roofline_share",
    "predicted_gain",
    "observed_gain",
    "over_greedy",
)
Row = dict[str, Any]
Key = tuple[str, int, int]
"""Sampler, streams and depth."""


def row_of(key: Key, waves: Sequence[Wave], roofline: Roofline) -> Row:
    """Waves of as many rows as a row of the report, the median one's; what other sections fill in is null."""
    ranked = sorted(waves, key=attrgetter("tokens_per_s"))
    wave = ranked[len(ranked) // 2]
    step, rows = wave.mean, wave.rows
    row: Row = dict.fromkeys(COLUMNS)
    row.update(zip(("sampler", "streams", "depth"), key, strict=True))
    times = ("period_ms", "plan_ms", "launch_ms", "commit_ms", "device_ms", "wait_ms")
    row.update({name: rounded(getattr(step, name)) for name in times}, gap_ms=rounded(step.idle_ms))
    row.update(
        context=round(wave.context, 1),
        zombie_share=rounded(wave.zombie_share),
        tokens_per_s=round(wave.tokens_per_s, 1),
        waves=[round(w.tokens_per_s, 1) for w in (ranked[0], ranked[-1])],
        measured=len(waves),
        steps=wave.full_steps,
        idle_share=rounded(wave.spent.idle_share),
        steps_in_flight=rounded(wave.spent.steps_in_flight),
        floor_ms=rounded(roofline.floor_ms(rows, wave.context)),
        gb_per_s=round(roofline.achieved_gb_per_s(rows, wave.context, step.period_ms), 1),
        roofline_share=rounded(roofline.share(rows, wave.context, step.period_ms)),
        answer_tokens=rounded(statistics.fmean(w.answered / rows for w in waves)),
    )
    return row


def fill_isolated(
    rows: Mapping[Key, Row], streams: int, found: Isolated, roofline: Roofline, kind: str | None = None
) -> None:
    """Give every row of so many streams the parts of its step alone: they are the same at every depth. `kind`: one
    of `KINDS`, or None for rows that are of none. Where experts were counted, what a step must read follows from that.
    """
    sampling = {kind: found.greedy_ms} if kind else {GREEDY: found.greedy_ms, DEFAULT: found.default_ms}
    for (sampler, count, _), row in rows.items():
        if count == streams and sampler in sampling:
            row.update(forward_ms=rounded(found.forward_ms), sampling_ms=rounded(sampling[sampler]))
            if found.experts_read is not None:
                _count_experts(row, count, found.experts_read, roofline)


def _count_experts(row: Row, count: int, read: float, roofline: Roofline) -> None:
    """The floor of a row's step, and what follows from it, with so many experts of a layer read."""
    context, period = row["context"], row["period_ms"]
    row.update(
        experts_read=round(read, 2),
        floor_ms=rounded(roofline.floor_ms(count, context, read)),
        gb_per_s=round(roofline.achieved_gb_per_s(count, context, period, read), 1),
        roofline_share=rounded(roofline.share(count, context, period, read)),
    )


def fill_gains(rows: Mapping[Key, Row]) -> None:
    """Each row's throughput over that of depth 1 with as many streams and the same sampler, as it should be and as it
    is, where there is one; and its period over that of greedy rows of the same number and depth, less 1."""
    for sampler in (*SAMPLERS, *KINDS):
        group = [row for key, row in rows.items() if key[0] == sampler]
        for row, predicted in zip(group, predict_rows(group), strict=True):
            row["predicted_gain"] = rounded(predicted)
    for (sampler, streams, depth), row in rows.items():
        greedy = rows.get((GREEDY, streams, depth), {}).get("period_ms")
        row["over_greedy"] = rounded(row["period_ms"] / greedy - 1.0) if greedy else None
        blocking = rows.get((sampler, streams, 1))
        if blocking is not None:
            row["observed_gain"] = rounded(gain(row["tokens_per_s"], blocking["tokens_per_s"]))


def fill_trace(row: Row, gaps: Gaps) -> None:
    """Give a row what a profiler says of the same step: from one's last kernel to the next one's first. It slows the
    host."""
    row["idle_ms"] = rounded(gaps.median_ms)
    row["trace"] = {
        "pairs": gaps.pairs,
        "missing": gaps.missing,
        "idle_mean_ms": rounded(gaps.mean_ms),
        "idle_max_ms": rounded(gaps.max_ms),
        "idle_with_copies_ms": rounded(gaps.any_ms),
        "period_ms": rounded(gaps.period_ms),
        "span_ms": rounded(gaps.span_ms),
        "kernels": gaps.kernels,
    }
