"""What a `CudaDevice` is made of, allocated once and in the order in which memory is known.

In: a model on its GPU and the settings. Out: the program with a cache as large as fits beside one full step, which is
run once and measured; pinned memory; graphs, not captured yet; and the plan of it all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from gapless.config import CudaDeviceConfig, EngineConfig
from gapless.constrain.table import Table
from gapless.device.graphs import Graphs, buckets_for, widths_for
from gapless.device.packet import Layout
from gapless.device.pictures import MOST_CROPS
from gapless.device.pinned import Arena, Lanes, Slot
from gapless.device.program import Program
from gapless.device.runtime import Runtime
from gapless.device.sizing import (
    GpuPlan,
    adapter_memory,
    device_limits,
    gpu_pages,
    step_layout,
    table_memory,
    with_pages,
)
from gapless.device.tail import MASKED, Feeds
from gapless.errors import InvalidRequest, NotEnoughMemory
from gapless.models.base import Model
from gapless.models.machine import machine_memory
from gapless.records import DeviceLimits

UNBOUNDED = 2**62
"""Memory that leaves every row its full context; what a GPU really has is seen after one step was measured."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything allocated. `prompts` int64: where the prompts of one step arrive on the GPU; `kept`: see
    `Program.host_pictures`."""

    limits: DeviceLimits
    layout: Layout
    program: Program
    slots: list[Slot]
    lanes: Lanes
    arena: Arena
    prompts: torch.Tensor
    kept: list[torch.Tensor]
    graphs: Graphs
    plan: GpuPlan


@torch.inference_mode()
def build(runtime: Runtime, model: Model, table: Table, config: EngineConfig, cuda: CudaDeviceConfig) -> Parts:
    """Allocate. Raises `InvalidRequest` for settings that cannot work and `NotEnoughMemory` with the numbers."""
    runtime.settle()  # what loading left behind is nobody's
    free, total = runtime.memory()
    try:
        return _build(runtime, model, table, config, cuda)
    except torch.OutOfMemoryError as error:
        raise NotEnoughMemory(
            f"one step of max_rows = {config.max_rows} and its buffers do not fit beside the weights: "
            f"{free / 1e9:.2f} of {total / 1e9:.2f} GB were free ({error}); lower max_rows, or free memory on the GPU",
            param="max_rows",
        ) from error


def _build(runtime: Runtime, model: Model, table: Table, config: EngineConfig, cuda: CudaDeviceConfig) -> Parts:
    wanted = device_limits(model, config, UNBOUNDED, machine_memory())
    buckets = _buckets(config, cuda)
    layout = step_layout(wanted, config, buckets[-1])
    free, total = runtime.memory()
    adapters = adapter_memory(model, config, free)
    tables = table_memory(model, config, free - adapters)
    with runtime.setting_up():
        program = Program(model, table, with_pages(wanted, 2), layout, plain=cuda.plain)
        peak = runtime.peak_of(partial(full_step, program, layout))
        page_bytes = model.page_bytes(config.page_size)
        pages, reserve = gpu_pages(wanted, config, page_bytes, runtime.memory()[0], peak)
        limits = with_pages(wanted, pages)
        program.cache = model.new_cache(pages, config.page_size)
        if cuda.poison:
            program.cache.poison(tuple(range(1, pages)))
        slots = [Slot(runtime, layout, limits) for _ in range(limits.depth)]
        prompts = torch.zeros(len(slots[0].prompts), dtype=torch.int64, device=runtime.device)
        lanes, arena = Lanes(runtime, limits), Arena(runtime, cuda.arena_bytes)
        kept = _host_pictures(runtime, program, limits)
    widths = widths_for(limits.max_context, limits.page_size, len(buckets) * (2 if program.adapters else 1))
    if cuda.buckets is not None and len(cuda.buckets) == 1:
        widths = widths[-1:]
    graphs = Graphs(runtime, program, [slot.lines for slot in slots], buckets, widths, cuda.graphs)
    plan = GpuPlan(
        gpu=runtime.name,
        total=total,
        held=total - free,
        reserve=reserve,
        cache=pages * page_bytes,
        pages=pages,
        page_size=limits.page_size,
        rows=limits.rows - 1,
        adapters=adapters,
        host=limits.host_pictures * limits.picture_bytes,
        host_pictures=limits.host_pictures,
        grammars=tables,
    )
    return Parts(limits, layout, program, slots, lanes, arena, prompts, kept, graphs, plan)


def _host_pictures(runtime: Runtime, program: Program, limits: DeviceLimits) -> list[torch.Tensor]:
    try:
        return program.host_pictures(limits, runtime.pinned)
    except NotEnoughMemory as error:
        size = limits.host_pictures * limits.picture_bytes / 1e9
        raise NotEnoughMemory(
            f"picture_cache_host of {size:.2f} GB cannot be had ({error}); lower it",
            param="picture_cache_host",
        ) from error


def full_step(program: Program, layout: Layout) -> None:
    """A part of a prompt as large as any, as many crops as a launch may have, and a decode step of all rows, padding
    all of them, with every kind of tail: the most that is held at once."""
    program.widest_prompt()
    if program.pictures is not None:
        program.pictures.encode(MOST_CROPS)
    if program.packs is not None:
        program.empty_pack(program.packs.buckets[-1])
        program.together(program.packs.buckets[-1])
    program.forward(layout.rows, layout.max_pages, Feeds(program.adapters is not None, True))
    for kind in (*program.kinds, MASKED._replace(adjusted=True)):
        program.end(program.batch.lines, kind)


def _buckets(config: EngineConfig, cuda: CudaDeviceConfig) -> tuple[int, ...]:
    """Batch sizes, ascending."""
    if cuda.buckets is None:
        return buckets_for(config.max_rows)
    buckets = tuple(sorted(set(cuda.buckets)))
    if not buckets or buckets[0] < 1 or buckets[-1] < config.max_rows:
        raise InvalidRequest(
            f"buckets {list(cuda.buckets)} hold no step of max_rows = {config.max_rows}; add a larger one",
            param="buckets",
        )
    return buckets
