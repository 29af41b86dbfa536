"""Reads a profiler trace: which device work belongs to which step, and how long the device stood idle between steps.

In: the JSON that `torch.profiler` exports (CUPTI's records), taken while every launch ran inside a named range (see
`mark`). Out: one `StepWork` a step and the `Gaps` between consecutive decode steps. A kernel is found to be a step's by
its correlation number: the one of the API call that launched it (a graph launch has one for all its kernels), which
lies inside the step's range on the host. Nothing here times anything, and nothing needs a device.

Records may be missing (CUPTI's buffers are finite): a step without kernels is left out together with the two gaps
beside it, and is counted.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from gapless.records import Step, StepKind

PREFIX = "gapless step"
CALLS = ("cuda_runtime", "cuda_driver")
KERNEL = "kernel"
COPIES = ("gpu_memcpy", "gpu_memset")


def mark(step: Step) -> str:
    """The name of the range a step's launch runs in."""
    return f"{PREFIX} {step.id} {step.kind} {len(step.rows)}"


@dataclass(frozen=True, slots=True)
class Span:
    """One record; times in microseconds on the trace's clock. `stream` -1: not on the device."""

    category: str
    name: str
    start: float
    end: float
    stream: int = -1
    correlation: int = -1


@dataclass(slots=True)
class StepWork:
    """What one step did on the device. `first`/`last`: start and end of its kernels on the compute stream, `first_any`/
    `last_any` those of its copies and memsets there too; `calls`: device API calls of its launch, by name."""

    id: int
    kind: StepKind
    rows: int
    kernels: int = 0
    busy: float = 0.0
    first: float = float("inf")
    last: float = float("-inf")
    first_any: float = float("inf")
    last_any: float = float("-inf")
    calls: Counter[str] = field(default_factory=Counter)

    def add(self, work: Span) -> None:
        """Take one record of the compute stream."""
        self.first_any, self.last_any = min(self.first_any, work.start), max(self.last_any, work.end)
        if work.category == KERNEL:
            self.kernels += 1
            self.busy += work.end - work.start
            self.first, self.last = min(self.first, work.start), max(self.last, work.end)


@dataclass(frozen=True, slots=True)
class Gaps:
    """Idle times between consecutive decode steps in milliseconds: from one step's last kernel to the next one's first.

    `pairs`: how many were measured; `missing`: decode steps without a kernel record; `any_ms`: the median if copies and
    memsets on the compute stream count as work; `period_ms`: median from first kernel to first kernel; `span_ms`:
    median from a step's first kernel to its last one's end; `kernels`: median number of them a step.
    """

    pairs: int
    missing: int
    median_ms: float | None
    mean_ms: float | None
    max_ms: float | None
    any_ms: float | None
    period_ms: float | None
    span_ms: float | None
    kernels: float | None


def read_spans(trace: Mapping[str, Any]) -> list[Span]:
    """The complete events of an exported trace; what is malformed is left out."""
    spans = []
    for event in trace.get("traceEvents", ()):
        if event.get("ph") != "X" or "ts" not in event:
            continue
        args = event.get("args") or {}
        start = float(event["ts"])
        spans.append(
            Span(
                category=str(event.get("cat", "")).lower(),
                name=str(event.get("name", "")),
                start=start,
                end=start + float(event.get("dur", 0.0)),
                stream=_number(args.get("stream")),
                correlation=_number(args.get("correlation")),
            )
        )
    return spans


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return -1


def steps_of(spans: Iterable[Span]) -> list[StepWork]:
    """Give every device record to the step whose range holds the call that launched it; steps in launch order."""
    spans = list(spans)
    ranges = sorted((s for s in spans if s.category == "user_annotation" and s.name.startswith(PREFIX)), key=_start)
    steps = [_named(r.name) for r in ranges]
    owner = _owners(spans, ranges, steps)
    work = [s for s in spans if s.category == KERNEL or s.category in COPIES]  # not: waits, ranges shown on streams
    mine = [(owner[s.correlation], s) for s in work if s.correlation in owner]
    stream = compute_stream(s for _, s in mine)
    for step, span in mine:
        if span.stream == stream:
            step.add(span)
    return steps


def compute_stream(spans: Iterable[Span]) -> int:
    """The stream with the most kernel time, -1 if there are no kernels."""
    time: dict[int, float] = defaultdict(float)
    for span in spans:
        if span.category == KERNEL:
            time[span.stream] += span.end - span.start
    return max(time, key=time.__getitem__, default=-1)


def _owners(spans: list[Span], ranges: list[Span], steps: list[StepWork]) -> dict[int, StepWork]:
    """Correlation number -> step, for calls inside a step's range; counts the calls on the way."""
    starts = [r.start for r in ranges]
    owner = {}
    for call in spans:
        if call.category not in CALLS:
            continue
        at = bisect_right(starts, call.start) - 1
        if at >= 0 and call.start <= ranges[at].end:
            steps[at].calls[call.name] += 1
            if call.correlation >= 0:
                owner[call.correlation] = steps[at]
    return owner


def _named(name: str) -> StepWork:
    number, kind, rows = name.removeprefix(PREFIX).split()
    return StepWork(int(number), StepKind(kind), int(rows))


def _start(span: Span) -> float:
    return span.start


def gaps_of(steps: Sequence[StepWork]) -> Gaps:
    """Idle times between decode steps that follow one another directly."""
    pairs = [(a, b) for a, b in pairwise(steps) if a.kind is b.kind is StepKind.DECODE and a.kernels and b.kernels]
    decodes = [s for s in steps if s.kind is StepKind.DECODE]
    whole = [s for s in decodes if s.kernels]
    idle = [max(0.0, b.first - a.last) / 1e3 for a, b in pairs]
    return Gaps(
        pairs=len(pairs),
        missing=len(decodes) - len(whole),
        median_ms=_median(idle),
        mean_ms=statistics.fmean(idle) if idle else None,
        max_ms=max(idle, default=None),
        any_ms=_median([max(0.0, b.first_any - a.last_any) / 1e3 for a, b in pairs]),
        period_ms=_median([(b.first - a.first) / 1e3 for a, b in pairs]),
        span_ms=_median([(s.last - s.first) / 1e3 for s in whole]),
        kernels=_median([float(s.kernels) for s in whole]),
    )


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
