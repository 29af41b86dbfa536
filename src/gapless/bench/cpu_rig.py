"""The benchmarks' CPU: the device of two workers. It has no graphs to replay and no profiler of its own."""

from __future__ import annotations

from gapless.bench.rig import Rig
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
