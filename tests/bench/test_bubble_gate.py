"""The judging of the GPU's gate, without a GPU: the GPU's device on an imaginary one whose clock counts marks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from tests.fakes.inline_runtime import InlineRuntime
from tests.fakes.micro import CROP_SIZE, micro_config, micro_model
from tests.gpu.bubble_gate import beside, idle_of_steps, judge, settle

from gapless.bench.ending import EndingModel
from gapless.bench.timed import Session
from gapless.bench.trace import StepWork
from gapless.bench.wave import advance
from gapless.config import CudaDeviceConfig, EngineConfig
from gapless.constrain.table import build_table
from gapless.device.cuda import CudaDevice
from gapless.models.moondream.config import read_config
from gapless.models.moondream.templates import Templates
from gapless.records import StepKind

MODEL = micro_model(max_context=800)
TABLE = build_table(Templates.of(read_config(micro_config(800))).rules())
ROWS = 3


def steps_of(busy: float, idle: float) -> Iterator[float]:
    """A clock in microseconds for marks at a step's begin and end alone: `busy` between them, `idle` behind."""
    now = 1e6
    for mark in count():
        yield now
        now += idle if mark % 2 else busy


@pytest.fixture(params=[(900.0, 10.0), (900.0, 400.0)], ids=["no bubble", "a bubble"])
def times(request) -> tuple[float, float]:
    return request.param


@pytest.fixture
def session(times) -> Iterator[Session]:
    config = EngineConfig(depth=2, max_rows=ROWS, page_size=16, pages=400, prefills_per_step=ROWS)
    runtime = InlineRuntime(clock=count(1))
    model = EndingModel(MODEL, 0, MODEL.max_context, MODEL.max_context + 1)
    device = CudaDevice(model, TABLE, config, CudaDeviceConfig(graphs=False, arena_bytes=2**20), runtime)
    session = Session(device, TABLE, config)
    settle(session, ROWS, CROP_SIZE)
    assert not session.engine.pipeline.empty
    session.drain()
    runtime.clock = steps_of(*times)
    yield session
    session.stop()
    device.close()


def test_a_bubble_does_not_pass_the_gate(session, times):
    advance(session, ROWS, 4)
    idle = idle_of_steps(session, ROWS, 12)
    assert idle == pytest.approx([times[1] / 1e3] * 12)
    if times[1] < 50:
        judge(idle)
    else:
        with pytest.raises(AssertionError, match=r"idle for 0\.4000 ms a step"):
            judge(idle)


def test_the_accounting_is_set_beside_a_trace_of_the_same_steps(session, times):
    advance(session, ROWS, 4)
    seen = len(session.watch.notes)
    advance(session, ROWS, 10)
    works = []
    for place, note in enumerate(session.watch.notes[seen:]):
        work = StepWork(note.step.id, StepKind.DECODE, ROWS, kernels=9 * (place != 4))  # one was lost
        work.first_any = work.first = place * sum(times)
        work.last = work.first + times[0] - 20
        work.last_any = work.first + times[0]
        works.append(work)
    found = beside(session, works)
    assert found.pairs >= 5
    assert found.accounting == pytest.approx(found.profiler) == pytest.approx(times[1] / 1e3)
    assert found.kernels == pytest.approx(times[1] / 1e3 + 0.02)
    assert found.period == pytest.approx(sum(times) / 1e3)
