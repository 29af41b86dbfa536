"""The gate: at depth 2 a full-size Moondream 2 leaves no bubble, the accounting says what a profiler says, and a
timeline of it is whole. These tests time things, so they run by themselves."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.bubble_gate import LIMIT_MS, SETTLED, beside, idle_of_steps, judge, settle
from tests.observe.trace_schema import check_trace

from gapless.bench.cuda_rig import CudaRig
from gapless.bench.rig import Wants
from gapless.bench.wave import questions, ride
from gapless.models.registry import random_model
from gapless.observe.chrome import trace_of
from gapless.observe.recording import record

pytestmark = pytest.mark.gpu
ROWS, STEPS, TRACED = 8, 60, 24
LOOKED = 30
"""Steps alone, and as many that are watched: an answer has no more than a hundred."""
WATCHED = ("forward", "sampling")
TOLERANCE_MS = 0.02
"""How far accounting and profiler may be apart at depth 2. The accounting's marks lie around a step's kernels; where a
step brings words, their copy, some microseconds, is before its first mark and counts as idle."""
LOOSE = 0.1
"""At depth 1 the host is in the gap, and the profiler slows it between a copy and the mark behind it: they may be apart
by this part of the gap, or by `TOLERANCE_MS` if that is more."""
CLOCKS_US = 150.0
"""How far the GPU's clock may be off the host's in a timeline."""


@pytest.fixture(scope="module")
def loaded():
    return random_model("moondream-2", "cuda", "bfloat16")


def open_rig(loaded) -> CudaRig:
    return CudaRig(loaded, (ROWS,), Wants())


@pytest.fixture(scope="module")
def rig(loaded):
    rig = open_rig(loaded)
    yield rig
    rig.close()


def test_at_depth_2_the_gpu_is_idle_for_less_than_a_twentieth_of_a_millisecond(rig):
    session = rig.session(2)
    settle(session, ROWS, rig.side)
    try:
        idle = idle_of_steps(session, ROWS, STEPS)
    finally:
        session.stop()
    print(f"idle {sorted(idle)[STEPS // 2]:.4f} ms a step at depth 2, the limit is {LIMIT_MS}")
    judge(idle)


def test_steps_that_are_watched_tell_forward_from_sampling(rig):
    session = rig.session(2)
    settle(session, ROWS, rig.side, first=300)
    try:
        alone = idle_of_steps(session, ROWS, LOOKED)
        engine = session.engine
        engine.watch(10 * LOOKED)
        idle = idle_of_steps(session, ROWS, LOOKED)
        steps = [step for step in engine.watch(0) if step.sampling is not None]
        assert engine.watch(0) == ()
    finally:
        session.stop()
    assert len(steps) >= LOOKED - 4 and all(0 < step.sampling < step.forward for step in steps)
    forward, sampling = (sorted(1e3 * getattr(step, name) for step in steps)[len(steps) // 2] for name in WATCHED)
    print(
        f"forward {forward:.4f}, sampling {sampling:.4f} ms; idle {sorted(alone)[LOOKED // 2]:.4f} ms alone,", end=" "
    )
    print(f"{sorted(idle)[LOOKED // 2]:.4f} watched")
    judge(idle)


@pytest.mark.parametrize("depth", [2, 1])
def test_the_accounting_agrees_with_a_profiler(rig, depth):
    session = rig.session(depth)
    settle(session, ROWS, rig.side, first=1000 * depth)
    try:
        found = beside(session, rig.traced(session, ROWS, TRACED))
    finally:
        session.stop()
    print(found)
    assert found.pairs >= TRACED // 2
    allowed = TOLERANCE_MS if depth == 2 else max(TOLERANCE_MS, LOOSE * found.profiler)
    assert abs(found.accounting - found.profiler) <= allowed
    assert (found.accounting > LIMIT_MS) == (depth == 1)


def test_a_timeline_is_whole(loaded):
    with record() as recording:
        rig = open_rig(loaded)
        try:
            for depth in (1, 2):
                ride(rig.session(depth), questions(ROWS, 5000 * depth, rig.side), steps=SETTLED)
        finally:
            rig.close()
    trace = trace_of(recording)
    steps = check_trace(trace, tick=1.0, clocks=CLOCKS_US)
    print(trace["otherData"])
    assert [engine["depth"] for engine in trace["otherData"]["engines"]] == [1, 2]
    assert min(steps.values()) > SETTLED
    assert {e["name"] for e in trace["traceEvents"] if e["ph"] == "X"} >= {"forward", "sampling", "copy", "upload"}
    torch.cuda.empty_cache()
