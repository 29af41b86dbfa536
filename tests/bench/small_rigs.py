"""Rigs of the benchmarks with a micro model: on the CPU device, and on the CUDA device's own code without a GPU.

Answers end 12 to 19 tokens after the prompt. Rates of the machine are made up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fakes.inline_runtime import InlineRuntime
from tests.fakes.micro import CROP_SIZE, micro_config, micro_model

from gapless.bench import cuda_rig, rig
from gapless.bench.cpu_rig import CpuRig
from gapless.bench.cuda_rig import CudaRig
from gapless.bench.rates import Rates
from gapless.bench.rig import Wants
from gapless.bench.timed import Session
from gapless.bench.trace import StepWork
from gapless.bench.wave import PROMPT, advance
from gapless.device.runtime import Runtime
from gapless.models.moondream.config import read_config
from gapless.models.registry import Loaded

CONFIG = read_config(micro_config(800))
MODEL = micro_model(max_context=800)
LOADED = Loaded(MODEL, CONFIG, Path(), "micro", "")
LENGTHS = (12, 20)
FIRST = MODEL.prefix + PROMPT
ROWS = 3
RATES = Rates({"sum of float32": 1e9, "copy": 2e9}, {512: 1e11}, "float32")
SIDE = CROP_SIZE


class _Small:
    """What both have instead of measured rates."""

    def _measure_rates(self) -> Rates:
        return RATES


class MicroRig(_Small, CpuRig):
    """On the CPU device."""

    def __init__(self, rows: int = ROWS, prompt: int = PROMPT) -> None:
        super().__init__(LOADED, (rows,), Wants(prompt))


class InlineRig(_Small, CudaRig):
    """On the CUDA device's own code. Its profiler is made up, its clock counts."""

    def __init__(self, buckets: tuple[int, ...] = (1, ROWS), prompt: int = PROMPT, adapters: int = 0) -> None:
        super().__init__(LOADED, buckets, Wants(prompt, adapters))

    def _runtime(self) -> Runtime | None:
        return InlineRuntime()

    def traced(self, session: Session, rows: int, steps: int) -> list[StepWork]:
        seen = len(session.watch.notes)
        advance(session, rows, steps)
        works = []
        for i, note in enumerate(session.watch.notes[seen:]):
            work = StepWork(note.step.id, note.step.kind, len(note.step.rows), kernels=5)
            work.first = work.first_any = 1000.0 * i
            work.last = work.last_any = 1000.0 * i + 980.0
            work.calls["cudaGraphLaunch"] = 2
            works.append(work)
        return works


def shorten(monkeypatch: Any) -> None:
    """Short answers, and no process that asks a GPU for its clocks."""
    monkeypatch.setattr(rig, "ANSWERS", LENGTHS)
    monkeypatch.setattr(cuda_rig, "clocks", _no_clocks)


def _no_clocks(index: int) -> dict[str, str]:
    return {"name": f"GPU {index}"}
