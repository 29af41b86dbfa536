"""The decode benchmark's GPU: a model, a CUDA device per depth, and what is measured on them.

The one place of this room that looks inside a `CudaDevice`: for its graphs and its compute stream.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.bench.ending import EndingModel
from gapless.bench.gpu import best_read, clocks, describe_gpu, read_bandwidth, time_ms, traced, versions
from gapless.bench.machine import describe_machine
from gapless.bench.roofline import Roofline, decode_weight_bytes, kv_token_bytes
from gapless.bench.timed import Session
from gapless.bench.trace import StepWork
from gapless.bench.wave import PROMPT
from gapless.config import CudaDeviceConfig, EngineConfig
from gapless.constrain.table import Table, build_table
from gapless.device.base import Device
from gapless.device.cuda import CudaDevice
from gapless.models.base import Model
from gapless.models.moondream.templates import Templates
from gapless.models.registry import Loaded

PAGE_SIZE = 16
ANSWERS = (100, 121)
"""Lengths between which answers end, by no one's knowledge: about 110, and a mean context of about 800."""


def open_device(
    model: Model, table: Table, config: EngineConfig, *, graphs: bool = True, buckets: tuple[int, ...] | None = None
) -> CudaDevice:
    """A CUDA device around a model that is on the GPU. `buckets` None: all of them."""
    return CudaDevice(model, table, config, CudaDeviceConfig(graphs=graphs, buckets=buckets))


def compute_stream(device: Device) -> torch.cuda.Stream:
    """The stream all forwards go on."""
    assert isinstance(device, CudaDevice)
    return device.compute
