"""The decode benchmark's GPU: a model, a CUDA device per depth, and what is measured on them.

The one place of this room that looks inside a `CudaDevice`: at its graphs and its rows.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gapless.bench.ending import EndingModel
from gapless.bench.gpu import best_read, clocks, describe_gpu, read_bandwidth, time_ms, traced, versions, warm_profiler
from gapless.bench.machine import describe_machine
from gapless.bench.roofline import Roofline, decode_weight_bytes, kv_token_bytes
from gapless.bench.timed import Session
from gapless.bench.trace import StepWork
from gapless.bench.wave import PROMPT
from gapless.config import CudaDeviceConfig, EngineConfig
from gapless.constrain.table import Table, build_table
from gapless.device.cuda import CudaDevice
from gapless.device.tail import TailKind
from gapless.models.base import Model
from gapless.models.moondream.config import MoondreamConfig
from gapless.models.moondream.templates import Templates

PAGE_SIZE = 16
ANSWERS = (100, 121)
"""Lengths between which answers end, unknown to the engine: about 110, and so a mean context of about 800."""
REPLAYS = 20


def open_device(
    model: Model,
    table: Table,
    config: EngineConfig,
    *,
    graphs: bool = True,
    buckets: tuple[int, ...] | None = None,
    poison: bool = False,
) -> CudaDevice:
    """A CUDA device around a model that is on the GPU, its graphs captured. `buckets` None: the usual ones."""
    device = CudaDevice(model, table, config, CudaDeviceConfig(graphs=graphs, buckets=buckets, poison=poison))
    for _ in device.prepare():
        pass
    return device


class CudaRig:
    """See `bench.decode_run.Rig`. `buckets`: the batch sizes that are captured; the last is the most rows of a step."""

    def __init__(
        self, model: Model, config: MoondreamConfig, name: str, buckets: tuple[int, ...], graphs: bool = True
    ) -> None:
        self._model = model
        self._config = config
        self._name = name
        self._buckets = buckets
        self._graphs = graphs
        self._sessions: dict[int, Session] = {}
        self._devices: dict[int, CudaDevice] = {}
        self._clocks: dict[str, dict[str, str]] = {}
        self._note_clocks("before")
        self._bandwidth = read_bandwidth(model.device)
        self._note_clocks("after reading memory")
        torch.cuda.empty_cache()
        self._profiled = False

    @property
    def name(self) -> str:
        """See `Rig`."""
        return f"cuda, {'graphs' if self._graphs else 'no graphs'}"

    @property
    def roofline(self) -> Roofline:
        """See `Rig`."""
        text, size = self._config.text, self._model.dtype.itemsize
        return Roofline(decode_weight_bytes(text, size), kv_token_bytes(text, size), best_read(self._bandwidth))

    @property
    def side(self) -> int:
        """See `Rig`."""
        return self._config.vision.crop_size

    def session(self, depth: int) -> Session:
        """See `Rig`."""
        if depth not in self._sessions:
            self._sessions[depth] = self._open(depth)
        return self._sessions[depth]

    def _open(self, depth: int) -> Session:
        templates, rows = Templates.of(self._config), self._buckets[-1]
        table = build_table(templates.rules())
        first = self._model.prefix + PROMPT
        model = EndingModel(self._model, templates.rules().end, first + ANSWERS[0], first + ANSWERS[1])
        config = EngineConfig(
            depth=depth, max_rows=rows, page_size=PAGE_SIZE, pages=rows * self._pages_a_row() + 1, prefills_per_step=8
        )
        self._devices[depth] = open_device(model, table, config, graphs=self._graphs, buckets=self._buckets)
        return Session(self._devices[depth], table, config)

    def _pages_a_row(self) -> int:
        """Pages of a row with a picture of its own, with room for what is granted ahead."""
        block = -(-self._model.prefix // PAGE_SIZE)
        own = -(-(PROMPT + ANSWERS[1] + EngineConfig().lookahead) // PAGE_SIZE) + 2
        return block + own

    @torch.inference_mode()
    def isolated(self, session: Session, rows: int) -> tuple[float | None, float | None]:
        """See `Rig`. The rows are those of the last step; what the tail moved is put back."""
        device = next(d for d in self._devices.values() if d is session.watch.device)
        reach = session.watch.notes[-1].step
        if len(reach.rows) != rows:
            raise ValueError(f"the last step carried {len(reach.rows)} rows, not {rows}")
        graphs, store = device.graphs, device.program.rows
        bucket = graphs.bucket(rows)
        context = self._model.prefix + PROMPT + ANSWERS[1]
        width = graphs.width(-(-context // PAGE_SIZE))
        with device.runtime.setting_up():
            saved = [tensor.clone() for tensor in _state(store)]
            forward = time_ms(lambda: graphs.forward(bucket, width), REPLAYS)
            sampling = time_ms(lambda: graphs.tail(bucket, TailKind()), REPLAYS)
            for tensor, kept in zip(_state(store), saved, strict=True):
                tensor.copy_(kept)
            torch.cuda.synchronize()
        self._note_clocks(f"after isolated graphs of {rows} rows")
        return forward, sampling

    def traced(self, session: Session, rows: int, steps: int) -> list[StepWork]:
        """See `Rig`."""
        if not self._profiled:
            warm_profiler()
            self._profiled = True
        return traced(session, rows, steps)

    def facts(self) -> dict[str, Any]:
        """See `Rig`."""
        plans = {f"depth {depth}": asdict(device.plan) for depth, device in self._devices.items()}
        return {
            "machine": {**describe_machine().as_dict(), **describe_gpu(self._model.device)},
            "versions": versions(),
            "clocks": self._clocks,
            "command": _command(),
            "device": self.name,
            "model": {"name": self._name, "dtype": str(self._model.dtype).removeprefix("torch.")},
            "read_gb_per_s": {name: round(rate / 1e9, 1) for name, rate in self._bandwidth.items()},
            "memory": plans,
        }

    def _note_clocks(self, when: str) -> None:
        if when not in self._clocks:
            self._clocks[when] = clocks(self._model.device.index or 0)

    def close(self) -> None:
        """Free all devices."""
        for device in self._devices.values():
            device.close()


def _command() -> str:
    """How this process was started."""
    program = "gapless" if Path(sys.argv[0]).stem == "gapless" else "python -m gapless.bench.decode"
    return " ".join([program, *sys.argv[1:]])


def _state(store: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What a tail moves, and the page tables."""
    return store.counts, store.reals, store.pages
