"""From a model's name to a `VLM`: weights, tokenizer, device and engine thread put together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from gapless.api.desk import Desk
from gapless.api.runner import Runner
from gapless.api.vlm import VLM
from gapless.config import Constraints, DType, EngineConfig, HostDeviceConfig, ImageLimits
from gapless.constrain.table import build_table
from gapless.errors import InvalidRequest, shown
from gapless.images.crops import CropSpec
from gapless.models.moondream.config import VisionConfig
from gapless.models.moondream.templates import Templates
from gapless.skills.base import SkillContext, check_tokenizer
from gapless.skills.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gapless.models.registry import Loaded

DEVICES = ("auto", "cpu")
LARGEST = {"depth": 64, "max_rows": 1024, "page_size": 4096, "pages": 2**24, "threads": 1024}
"""The most that `load` takes: beyond it lies no use, only memory that runs out."""


def load(
    model: str | Path = "glint",
    *,
    device: str = "auto",
    dtype: DType = "auto",
    depth: int = 2,
    max_rows: int = 16,
    page_size: int = 16,
    pages: int | None = None,
    constraints: Constraints = "device",
    threads: int | None = None,
    image_limits: ImageLimits | None = None,
    revision: str | None = None,
) -> VLM:
    """Load a model and start its engine.

    `model`: a bundled name, a folder, or a hub id "owner/name" (with `revision`). `depth`: steps in flight, 1 is the
    blocking engine. `max_rows`: requests that run at once; more wait. `pages` of `page_size` tokens make the KV cache
    (None: enough for all rows). `constraints` "host" builds the sampling masks on the CPU after each commit instead of
    on the device: slower, same answers. `threads`: torch's on the CPU device (None: all cores but one).
    Raises `ModelNotFound`, `InvalidCheckpoint`, and `InvalidRequest` for values that do not exist.
    """
    if device not in DEVICES:
        raise InvalidRequest(
            f"device {shown(device)} is not there: this version runs on {', '.join(DEVICES)}", param="device"
        )
    if constraints not in get_args(Constraints):
        raise InvalidRequest(f'constraints must be "device" or "host", not {shown(constraints)}', param="constraints")
    _check_sizes({"depth": depth, "max_rows": max_rows, "page_size": page_size})
    _check_sizes({name: size for name, size in (("pages", pages), ("threads", threads)) if size is not None})
    if image_limits is not None and not isinstance(image_limits, ImageLimits):
        raise InvalidRequest(
            f"image_limits must be a gapless.config.ImageLimits, not {shown(image_limits)}", param="image_limits"
        )
    from gapless.models.registry import load_model  # torch: only whoever loads a model waits for its import

    loaded = load_model(model, "cpu", dtype, revision)
    config = EngineConfig(depth=depth, max_rows=max_rows, page_size=page_size, pages=pages, constraints=constraints)
    return assemble(loaded, config, HostDeviceConfig(threads=threads), image_limits or ImageLimits())


def assemble(loaded: Loaded, config: EngineConfig, host: HostDeviceConfig, limits: ImageLimits) -> VLM:
    """Put a loaded model on the CPU device behind an engine of its own."""
    from gapless.device.host import HostDevice

    templates = Templates.of(loaded.config)
    tokenizer = Tokenizer.from_file(loaded.tokenizer_path, templates.ids.all())
    check_tokenizer(templates, tokenizer)
    context = SkillContext(
        templates=templates,
        tokenizer=tokenizer,
        prefix=loaded.model.prefix,
        max_context=loaded.model.max_context,
        name=loaded.name,
    )
    table = build_table(templates.rules())
    device = HostDevice(loaded.model, table, config, host)
    runner = Runner(device, table, config)
    return VLM(Desk(context, crop_spec(loaded.config.vision), limits, runner, config.max_rows))


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
