"""The benchmarks' CPU: the device of two workers. It has no graphs to replay and no profiler of its own."""

from __future__ import annotations

from gapless.bench.rig import Isolated, Rig
from gapless.bench.timed import Session
from gapless.bench.trace import StepWork
from gapless.config import EngineConfig
from gapless.constrain.table import Table
from gapless.device.base import Device
from gapless.device.host import HostDevice
from gapless.models.base import Model


class CpuRig(Rig):
    """See `Rig`."""

    @property
    def name(self) -> str:
        """See `Rig`."""
        return "cpu"

    def _open(self, model: Model, table: Table, config: EngineConfig) -> Device:
        return HostDevice(model, table, config)

    @property
    def looks_inside(self) -> bool:
        """See `Rig`."""
        return False

    def isolated(self, session: Session, rows: int) -> Isolated:
        """See `Rig`."""
        raise NotImplementedError("the CPU device has no graphs to time alone")

    def traced(self, session: Session, rows: int, steps: int) -> list[StepWork]:
        """See `Rig`."""
        raise NotImplementedError("the CPU device is not profiled; its accounting says how long it stood idle")
