"""Idle time from a trace: a synthetic one with known gaps, with missing records, and with strangers in it."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.bench.trace import gaps_of, mark, read_spans, steps_of
from gapless.records import RowRef, Step, StepKind

COMPUTE, COPY = 7, 20


def step(number: int, kind: StepKind = StepKind.DECODE, rows: int = 2) -> Step:
    return Step(number, kind, tuple(RowRef(i + 1, 1) for i in range(rows)), slot=0)


def complete(category: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "args": args}


def launch(number: int, host: float, forward: float, tail: float, kind: StepKind = StepKind.DECODE) -> list[dict]:
    """A step's records in microseconds: a copy in, a graph of two kernels at `forward`, one of one at `tail`, and its
    results' copy out on another stream."""
    base = 100 * number
    return [
        complete("user_annotation", mark(step(number, kind)), host, 50),
        complete("cuda_runtime", "cudaMemcpyAsync", host + 1, 2, correlation=base),
        complete("cuda_runtime", "cudaGraphLaunch", host + 5, 10, correlation=base + 1),
        complete("cuda_runtime", "cudaGraphLaunch", host + 20, 10, correlation=base + 2),
        complete("cuda_runtime", "cudaMemcpyAsync", host + 40, 2, correlation=base + 3),
        complete("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", forward - 3, 2, stream=COMPUTE, correlation=base),
        complete("kernel", "gemm", forward, 400, stream=COMPUTE, correlation=base + 1),
        complete("kernel", "attend", forward + 410, 400, stream=COMPUTE, correlation=base + 1),
        complete("kernel", "sample", tail, 100, stream=COMPUTE, correlation=base + 2),
        complete("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", tail + 105, 3, stream=COPY, correlation=base + 3),
    ]


def three_steps() -> list[dict]:
    """Steps that begin at 1000, 2000 and 3010, each 950 long: idle 50 and 60 microseconds."""
    strangers = [
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        complete("kernel", "before any step", 500, 10, stream=COMPUTE, correlation=1),
        complete("cuda_runtime", "cudaLaunchKernel", 499, 1, correlation=1),
        complete("kernel", "without a number", 700, 10, stream=COMPUTE),
        complete("cpu_op", "aten::add", 1, 2),
        complete("cuda_sync", "Stream Wait Event", 1900, 200, stream=COMPUTE, correlation=102),
        complete("gpu_user_annotation", "gapless step", 900, 3000, stream=COMPUTE, correlation=101),
        {"ph": "X", "cat": "kernel", "name": "no time"},
        complete("cuda_runtime", "cudaEventSynchronize", 5000, 1, correlation=2),
    ]
    return [
        *strangers,
        *launch(1, 800, 1000, 1850),
        *launch(2, 900, 2000, 2850),
        *launch(3, 1900, 3010, 3860),
    ]


def read(events: list[dict]) -> list:
    return steps_of(read_spans({"traceEvents": events}))


def test_gaps_are_from_the_last_kernel_to_the_next_ones_first() -> None:
    steps = read(three_steps())
    assert [(s.id, s.kind, s.rows, s.kernels) for s in steps] == [(i, StepKind.DECODE, 2, 3) for i in (1, 2, 3)]
    assert steps[0].busy == 900
    gaps = gaps_of(steps)
    assert gaps.pairs == 2 and gaps.missing == 0
    assert gaps.median_ms == pytest.approx(0.055) and gaps.mean_ms == pytest.approx(0.055)
    assert gaps.max_ms == pytest.approx(0.060)
    assert gaps.any_ms == pytest.approx(0.052)
    assert gaps.period_ms == pytest.approx(1.005)
    assert gaps.span_ms == pytest.approx(0.95)
    assert gaps.kernels == 3


def test_the_order_of_the_records_does_not_matter() -> None:
    assert gaps_of(read(three_steps()[::-1])) == gaps_of(read(three_steps()))


def test_calls_of_a_launch_are_counted_by_name() -> None:
    assert read(three_steps())[1].calls == {"cudaMemcpyAsync": 2, "cudaGraphLaunch": 2}


def test_a_step_without_kernels_is_left_out_with_its_gaps() -> None:
    lost = {201, 202}
    events = [e for e in three_steps() if e.get("cat") != "kernel" or e.get("args", {}).get("correlation") not in lost]
    gaps = gaps_of(read(events))
    assert (gaps.pairs, gaps.missing) == (0, 1)
    assert gaps.median_ms is None and gaps.mean_ms is None and gaps.max_ms is None and gaps.period_ms is None


def test_prefills_are_no_decode_steps() -> None:
    events = [*launch(1, 800, 1000, 1850), *launch(2, 900, 2000, 2850, StepKind.PREFILL), *launch(3, 1900, 3000, 3850)]
    gaps = gaps_of(read(events))
    assert (gaps.pairs, gaps.missing) == (0, 0)


def test_overlapping_kernels_are_no_negative_gap() -> None:
    gaps = gaps_of(read([*launch(1, 800, 1000, 1950), *launch(2, 900, 2000, 2850)]))
    assert gaps.median_ms == 0.0


def test_an_empty_trace_has_no_numbers() -> None:
    for trace in ({}, {"traceEvents": []}):
        gaps = gaps_of(steps_of(read_spans(trace)))
        assert (gaps.pairs, gaps.missing, gaps.median_ms) == (0, 0, None)
