"""From a model's name to a `VLM`: weights, tokenizer, device and engine thread put together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, get_args

from gapless.api.desk import Desk
from gapless.api.runner import Runner
from gapless.api.vlm import VLM
from gapless.config import Constraints, CudaDeviceConfig, DType, EngineConfig, HostDeviceConfig, ImageLimits
from gapless.constrain.table import Table, build_table
from gapless.device.base import Device
from gapless.errors import InvalidRequest, NotEnoughMemory, shown
from gapless.images.crops import CropSpec
from gapless.models.moondream.config import VisionConfig
from gapless.models.moondream.templates import Templates
from gapless.skills.base import SkillContext, check_tokenizer
from gapless.skills.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gapless.device.sizing import GpuPlan
    from gapless.models.registry import Loaded

ROWS = {"cpu": 16, "cuda": 64}
"""Requests that run at once, unless the caller says otherwise."""
LARGEST = {"depth": 64, "max_rows": 1024, "page_size": 4096, "pages": 2**24, "threads": 1024}
"""The most that `load` takes: beyond it lies no use, only memory that runs out."""


class Progress(Protocol):
    """Whoever wants to see a long start: told what comes next, and how much of how much is done."""

    def show(self, doing: str, done: int, total: int) -> None:
        """`done` of `total` parts are over; `doing` begins."""
        ...


def load(
    model: str | Path = "glint",
    *,
    device: str = "auto",
    dtype: DType = "auto",
    depth: int = 2,
    max_rows: int | None = None,
    page_size: int = 16,
    pages: int | None = None,
    constraints: Constraints = "device",
    threads: int | None = None,
    image_limits: ImageLimits | None = None,
    revision: str | None = None,
    graphs: bool = True,
    progress: Progress | None = None,
) -> VLM:
    """Load a model and start its engine.

    `model`: a bundled name, a folder, or a hub id "owner/name" (with `revision`). `device`: "cpu", "cuda", "cuda:N", or
    "auto" for the first GPU that can be used, else the CPU. `depth`: steps in flight, 1 is the blocking engine.
    `max_rows`: requests that run at once; more wait (None: 16, on a GPU 64). `pages` of `page_size` tokens make the KV
    cache (None: enough for all rows, or what fits on the GPU). `graphs` False runs a GPU's steps without CUDA graphs,
    for debugging; `progress` is told how their capture goes. `constraints` "host" builds the sampling masks on the CPU
    after each commit instead of on the device: slower, same answers. `threads`: torch's on the CPU device (None: all
    cores but one).
    Raises `ModelNotFound`, `InvalidCheckpoint`, `NotEnoughMemory`, and `InvalidRequest` for values that do not exist.
    """
    if constraints not in get_args(Constraints):
        raise InvalidRequest(f'constraints must be "device" or "host", not {shown(constraints)}', param="constraints")
    _check_sizes({"depth": depth, "page_size": page_size})
    given = (("max_rows", max_rows), ("pages", pages), ("threads", threads))
    _check_sizes({name: size for name, size in given if size is not None})
    if image_limits is not None and not isinstance(image_limits, ImageLimits):
        raise InvalidRequest(
            f"image_limits must be a gapless.config.ImageLimits, not {shown(image_limits)}", param="image_limits"
        )
    from gapless.device.gpus import TorchDriver, choose_device  # torch: only whoever loads a model waits for it

    where = choose_device(device, TorchDriver())
    rows = ROWS[where.partition(":")[0]] if max_rows is None else max_rows
    config = EngineConfig(depth=depth, max_rows=rows, page_size=page_size, pages=pages, constraints=constraints)
    loaded = _load_weights(model, where, dtype, revision)
    templates = Templates.of(loaded.config)
    check_tokenizer(templates, Tokenizer.from_file(loaded.tokenizer_path, templates.ids.all()))
    table = build_table(templates.rules())
    limits = image_limits or ImageLimits()
    if where == "cpu":
        return assemble(loaded, _open_cpu(loaded, table, config, threads), table, config, limits)
    opened, plan = _open_gpu(loaded, table, config, graphs, progress)
    try:
        return assemble(loaded, opened, table, config, limits, plan)
    except BaseException:
        opened.close()
        raise


def _load_weights(model: str | Path, device: str, dtype: DType, revision: str | None) -> Loaded:
    import torch

    from gapless.models.registry import load_model

    try:
        return load_model(model, device, dtype, revision)
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(torch.device(device))
        raise NotEnoughMemory(
            f"the weights of {model} do not fit on {device}: {free / 1e9:.2f} of {total / 1e9:.2f} GB were left when "
            f"it failed ({error}); free memory on the GPU, or use another --device or --dtype",
            param="device",
        ) from error


def _open_cpu(loaded: Loaded, table: Table, config: EngineConfig, threads: int | None) -> Device:
    from gapless.device.host import HostDevice

    return HostDevice(loaded.model, table, config, HostDeviceConfig(threads=threads))


def _open_gpu(
    loaded: Loaded, table: Table, config: EngineConfig, graphs: bool, progress: Progress | None
) -> tuple[Device, GpuPlan]:
    from gapless.device.cuda import CudaDevice

    device = CudaDevice(loaded.model, table, config, CudaDeviceConfig(graphs=graphs))
    try:
        for stage in device.prepare():
            if progress is not None:
                progress.show(f"capturing {stage.name}", stage.done, stage.total)
    except BaseException:  # an error's traceback would keep the GPU's memory from who tries again with less
        device.close()
        raise
    return device, device.plan


def assemble(
    loaded: Loaded, device: Device, table: Table, config: EngineConfig, limits: ImageLimits, plan: GpuPlan | None = None
) -> VLM:
    """Put a loaded model on an open device behind an engine of its own.

    Its tokenizer may be another model's, as that of random weights is: then answers are noise.
    """
    templates = Templates.of(loaded.config)
    tokenizer = Tokenizer.from_file(loaded.tokenizer_path, templates.ids.all())
    context = SkillContext(
        templates=templates,
        tokenizer=tokenizer,
        prefix=loaded.model.prefix,
        max_context=loaded.model.max_context,
        name=loaded.name,
    )
    runner = Runner(device, table, config)
    return VLM(Desk(context, crop_spec(loaded.config.vision), limits, runner, config.max_rows), plan)


def _check_sizes(sizes: Mapping[str, object]) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST[name]:
            raise InvalidRequest(
                f"{name} must be a whole number from 1 to {LARGEST[name]}; got {shown(size)} ({type(size).__name__})",
                param=name,
            )


def crop_spec(vision: VisionConfig) -> CropSpec:
    """How this model's pictures are cut."""
    return CropSpec(vision.crop_size, vision.enc_patch_size, vision.overlap_margin, vision.max_crops)
