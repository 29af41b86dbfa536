"""The benchmarks' GPU: a CUDA device per depth, its graphs replayed alone, and a profiler.

The one place of this room that looks inside a `CudaDevice`: at its graphs and its rows.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gapless.bench.gpu import clocks, traced, warm_profiler
from gapless.bench.rates import time_ms
from gapless.bench.rig import ADAPTED, PAGE_SIZE, SPATIAL, Inside, Isolated, Rig, Wants
from gapless.bench.timed import Session
from gapless.bench.trace import StepWork
from gapless.config import CudaDeviceConfig, EngineConfig
from gapless.constrain.table import Table
from gapless.device.base import Device
from gapless.device.cuda import CudaDevice
from gapless.device.runtime import Runtime
from gapless.device.tail import Feeds, TailKind
from gapless.models.base import Model
from gapless.models.moondream.model import Moondream
from gapless.models.registry import Loaded

REPLAYS = 20


def open_device(
    model: Model,
    table: Table,
    config: EngineConfig,
    *,
    graphs: bool = True,
    buckets: tuple[int, ...] | None = None,
    poison: bool = False,
    plain: bool = False,
    runtime: Runtime | None = None,
) -> CudaDevice:
    """A CUDA device around a model that is on the GPU, its graphs captured. `buckets` None: the usual ones."""
    cuda = CudaDeviceConfig(graphs=graphs, buckets=buckets, poison=poison, plain=plain)
    device = CudaDevice(model, table, config, cuda, runtime)
    for _ in device.prepare():
        pass
    return device


class CudaRig(Rig):
    """See `Rig`. `graphs`: `buckets` are captured; `plain`: torch's kernels alone."""

    def __init__(
        self, loaded: Loaded, buckets: tuple[int, ...], wants: Wants, *, graphs: bool = True, plain: bool = False
    ) -> None:
        self._plain = plain
        self._graphs = graphs
        self._devices: dict[int, CudaDevice] = {}
        self._clocks: dict[str, dict[str, str]] = {"before": clocks(loaded.model.device.index or 0)}
        super().__init__(loaded, buckets, wants)
        self._note_clocks("after the rates")
        torch.cuda.empty_cache()
        self._profiled = False

    @property
    def name(self) -> str:
        """See `Rig`."""
        return f"cuda, {'graphs' if self._graphs else 'no graphs'}"

    def _open(self, model: Model, table: Table, config: EngineConfig) -> Device:
        graphs, buckets, plain = self._graphs, self._buckets, self._plain
        if isinstance(self._model, Moondream) and not plain:
            self._model.compile_ahead(buckets, config.page_size)
        device = open_device(model, table, config, graphs=graphs, buckets=buckets, plain=plain, runtime=self._runtime())
        self._devices[config.depth] = device
        return device

    def _runtime(self) -> Runtime | None:
        """None: the model's GPU."""
        return None

    @property
    def inside(self) -> Inside:
        """See `Rig`."""
        return self

    @torch.inference_mode()
    def isolated(self, session: Session, rows: int, kind: str | None = None) -> Isolated:
        """See `Rig`. The rows are those of the last step; what the tail moved is put back."""
        device = next(d for d in self._devices.values() if d is session.watch.device)
        reach = session.watch.notes[-1].step
        if len(reach.rows) != rows:
            raise ValueError(f"the last step carried {len(reach.rows)} rows, not {rows}")
        graphs, where = device.graphs, self._model.device
        bucket = graphs.bucket(rows)
        context = self._model.prefix + self._prompt + self._answers[1]
        width = graphs.width(-(-context // PAGE_SIZE))
        with device.runtime.setting_up():
            state = (*_state(device.program.rows), device.program.inbox.words)
            saved = [tensor.clone() for tensor in state]
            feeds, kinds = (
                Feeds(kind == ADAPTED, kind == SPATIAL),
                (TailKind(f, kind == SPATIAL) for f in (False, True)),
            )
            forward = time_ms(partial(graphs.forward, bucket, width, feeds), REPLAYS, where)
            read = _experts_read(self._model)
            greedy, default = (time_ms(partial(graphs.tail, 0, bucket, of), REPLAYS, where) for of in kinds)
            for tensor, kept in zip(state, saved, strict=True):
                tensor.copy_(kept)
            device.runtime.settle()
        self._note_clocks(f"after isolated graphs of {rows} rows")
        return Isolated(forward, greedy, default, read)

    def traced(self, session: Session, rows: int, steps: int) -> list[StepWork]:
        """See `Rig`."""
        if not self._profiled:
            warm_profiler()
            self._profiled = True
        return traced(session, rows, steps)

    def facts(self) -> dict[str, Any]:
        """See `Rig`."""
        plans = {f"depth {depth}": asdict(device.plan) for depth, device in self._devices.items()}
        return {**super().facts(), "clocks": self._clocks, "memory": plans}

    def _note_clocks(self, when: str) -> None:
        if when not in self._clocks:
            self._clocks[when] = clocks(self._model.device.index or 0)


def _experts_read(model: Model) -> float | None:
    """Experts that the rows of the last forward took, the mean of the layers."""
    taken = model.experts_taken if isinstance(model, Moondream) else None
    return None if taken is None else float((taken > 0).sum(dim=1).double().mean())


def _state(store: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What a tail moves, and the page tables."""
    return store.counts, store.reals, store.pages
