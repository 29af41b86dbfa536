"""From what `load` was asked for to weights on an open device; in the caller's process or in an engine's own.

In: an `Opening`. Out: a model, a device, and what the engine needs beside them. Nothing here knows pictures or text, so
an engine process imports neither PIL nor a tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gapless.api.shelf import SLOTS, Shelf
from gapless.config import CudaDeviceConfig, EngineConfig, HostDeviceConfig, Opening
from gapless.constrain.table import Table, build_table
from gapless.device.base import Device
from gapless.errors import NotEnoughMemory
from gapless.models.moondream.templates import Templates
from gapless.weights.progress import Progress

if TYPE_CHECKING:
    from gapless.device.sizing import GpuPlan
    from gapless.models.registry import Loaded

ROWS = {"cpu": 16, "cuda": 64}
"""Requests that run at once, unless the caller says otherwise."""
CPU_ALLOCATOR = "DefaultCPUAllocator"
MAX_STEP_MS = {"cpu": None, "cuda": 8.0}
"""Milliseconds of a prefill step while others decode, unless the caller says otherwise."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A model on the device `where`, not yet put to work there."""

    loaded: Loaded
    where: str
    table: Table
    config: EngineConfig
    shelf: Shelf | None
    """Its adapters; None for a model without slots for any."""


def load_weights(opening: Opening, progress: Progress | None = None) -> Weights:
    """Choose the device and bring the weights there. Raises as `load` does."""
    from gapless.device.gpus import TorchDriver, choose_device  # torch: only whoever loads a model waits for it

    where = choose_device(opening.device, TorchDriver())
    kind = where.partition(":")[0]
    config = opening.engine(ROWS[kind], MAX_STEP_MS[kind])
    loaded, shelf = _load_model(opening, where, progress), None
    if opening.adapters or opening.max_adapters is not None:
        shelf = Shelf.of(loaded, opening.adapters, opening.max_adapter_rank)
        config = replace(config, adapters=opening.max_adapters or SLOTS, adapter_rank=shelf.maker.rank)
    return Weights(loaded, where, build_table(Templates.of(loaded.config).rules()), config, shelf)


def open_device(weights: Weights, opening: Opening, progress: Progress | None) -> tuple[Device, GpuPlan | None]:
    """Make the device for a model, ready for its first step. Raises `NotEnoughMemory`."""
    loaded, table, config = weights.loaded, weights.table, weights.config
    if weights.where == "cpu":
        return _open_cpu(loaded, table, config, opening.threads), None
    return _open_gpu(loaded, table, config, opening.graphs, progress)


def _load_model(opening: Opening, device: str, progress: Progress | None) -> Loaded:
    import torch

    from gapless.models.registry import load_model

    try:
        return load_model(  # which checks it
            opening.model,
            device,
            opening.dtype,
            opening.revision,
            progress=progress,
            max_context=opening.max_context,
            kv_dtype=opening.kv_dtype,
        )
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(torch.device(device))
        raise NotEnoughMemory(
            f"the weights of {opening.model} do not fit on {device}: {free / 1e9:.2f} of {total / 1e9:.2f} GB were "
            f"left when it failed ({error}); free memory on the GPU, or use another --device or --dtype",
            param="device",
        ) from error
    except (MemoryError, RuntimeError) as error:
        if not _is_memory(error):
            raise
        raise NotEnoughMemory(
            f"the system gave no memory for the weights of {opening.model} ({error}); use another --dtype or model, or "
            "a machine with more",
            param="dtype",
        ) from error


def _is_memory(error: Exception) -> bool:
    """Whether the system gave a CPU no more memory: torch's errors have no class of their own for that."""
    return isinstance(error, MemoryError) or CPU_ALLOCATOR in str(error)


def _open_cpu(loaded: Loaded, table: Table, config: EngineConfig, threads: int | None) -> Device:
    from gapless.device.host import HostDevice

    try:
        return HostDevice(loaded.model, table, config, HostDeviceConfig(threads=threads))
    except (MemoryError, RuntimeError) as error:
        if not _is_memory(error):
            raise
        raise NotEnoughMemory(
            f"the system gave no memory for the KV cache and the steps ({error}); lower kv_memory, max_rows or "
            "max_context, or use a machine with more",
            param="kv_memory",
        ) from error


def _open_gpu(
    loaded: Loaded, table: Table, config: EngineConfig, graphs: bool, progress: Progress | None
) -> tuple[Device, GpuPlan]:
    from gapless.device.cuda import CudaDevice
    from gapless.device.graphs import buckets_for
    from gapless.models.moondream.model import Moondream

    if graphs and isinstance(loaded.model, Moondream):
        if progress is not None:
            progress.show("compiling kernels", 0, 1)
        loaded.model.compile_ahead(buckets_for(config.max_rows), config.page_size)
    device = CudaDevice(loaded.model, table, config, CudaDeviceConfig(graphs=graphs))
    try:
        for stage in device.prepare():
            if progress is not None:
                progress.show(f"capturing {stage.name}", stage.done, stage.total)
    except BaseException:  # an error's traceback would keep the GPU's memory from who tries again with less
        device.close()
        raise
    return device, replace(device.plan, tiles=loaded.tiles)
