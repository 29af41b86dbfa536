"""From a model's name to a `VLM`: weights, tokenizer, device and engine thread put together."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from gapless.api.desk import Desk
from gapless.api.opening import ROWS, load_weights, open_device
from gapless.api.runner import Runner
from gapless.api.shelf import Shelf, adapter_path
from gapless.api.vlm import VLM
from gapless.config import (
    GRAMMAR_MEMORY,
    GRAMMARS,
    PICTURE_CACHE,
    Constraints,
    DType,
    EngineConfig,
    ImageLimits,
    KVDType,
    Opening,
    bytes_of,
)
from gapless.constrain.table import Table
from gapless.device.base import Device
from gapless.errors import InvalidRequest, shown
from gapless.images.crops import CropSpec
from gapless.models.moondream.config import VisionConfig
from gapless.models.moondream.identify import identify
from gapless.models.moondream.templates import Templates
from gapless.skills.base import SkillContext
from gapless.skills.own_tokenizer import open_tokenizer
from gapless.skills.settings import adapter_name
from gapless.skills.tokenizer import Tokenizer
from gapless.weights.folder import find_files
from gapless.weights.hub import Located, locate
from gapless.weights.progress import Progress

if TYPE_CHECKING:
    from gapless.device.sizing import GpuPlan
    from gapless.models.registry import Loaded

__all__ = ["LARGEST", "ROWS", "Progress", "assemble", "check_size", "crop_spec", "load", "open_model"]

LARGEST = {"depth": 64, "max_rows": 1024, "page_size": 4096, "pages": 2**24, "threads": 1024}
LARGEST |= {"max_adapters": 256, "max_adapter_rank": 64, "max_context": 2**31 - 1, "grammars": 1024}
"""The most that `load` takes: beyond it lies no use, only memory that runs out. A context's limit is its model's."""
LEAST_STEP_MS, MOST_STEP_MS = 0.1, 60_000.0
"""What `max_step_ms` may be."""
SPARE_PICTURES = 4
"""Room of an engine process for pictures of requests that wait, beside those of all rows."""


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
    process: bool = False,
    adapters: Mapping[str, str | Path] | None = None,
    max_adapters: int | None = None,
    max_adapter_rank: int | None = None,
    max_context: int | None = None,
    kv_memory: int | str | None = None,
    prefix_cache: bool = True,
    picture_cache: int | str = PICTURE_CACHE,
    picture_cache_host: int | str = 0,
    max_step_ms: float | None = None,
    kv_dtype: KVDType = "auto",
    grammars: int = GRAMMARS,
    grammar_memory: int | str = GRAMMAR_MEMORY,
) -> VLM:
    """Load a model and start its engine.

    `model`: a bundled name, a folder, or a hub id "owner/name" (with `revision`). `device`: "cpu", "cuda", "cuda:N", or
    "auto" for the first GPU that can be used, else the CPU. `depth`: steps in flight, 1 is the blocking engine.
    `max_rows`: requests that run at once; more wait (None: 16, on a GPU 64). `pages` of `page_size` tokens make the KV
    cache (None: enough for all rows, or what fits on the GPU). `graphs` False runs a GPU's steps without CUDA graphs,
    for debugging; `progress` is told how their capture goes. `constraints` "host" builds the sampling masks on the CPU
    after each commit instead of on the device: slower, same answers. `threads`: torch's on the CPU device (None: all
    cores but one). `process` runs the engine in a process of its own (extra "process"), so that what the caller's does
    costs its steps nothing; it ends with that. `grammars`: different rules for answers that may be followed on the
    device at once (0: none), whose tables take up to `grammar_memory` bytes. `adapters`: LoRA adapters, a folder or
    file by name; a call chooses one with `settings={"adapter": name}`, and calls with different ones run in one batch.
    `max_adapters` run at once, others wait (None: 8); given alone it makes room for `VLM.load_adapter`.
    `max_adapter_rank`: of any of them (None: the largest of `adapters`, or 64). `kv_memory`: instead of `pages`, bytes
    of the KV cache, as a number or like "8GB". `prefix_cache`: what was computed of pictures, prompts and answers is
    kept in it for later calls that begin alike, until running ones want the room.
    `picture_cache`: bytes of decoded pictures that are kept in the caller's process likewise (0: none);
    `picture_cache_host`: of host memory for what vision made of those whose KV cache is gone, page-locked for a GPU.
    `max_step_ms`: while others decode, prompts and pictures are cut into parts of about so many milliseconds (None: 8
    on a GPU, no limit on a CPU; 0: no limit). `max_context`: positions of a prompt and its answer together (None: as
    the checkpoint says). `kv_dtype` "fp8": keys and values in a byte each, half the memory; answers may differ.
    Raises `ModelNotFound`, `InvalidCheckpoint`, `NotEnoughMemory`, and `InvalidRequest` for values that do not exist.
    """
    usual = Opening(str(model), device, dtype, depth, max_rows, page_size, pages, constraints, threads, revision)
    slots = replace(usual, adapters=_adapters(adapters), max_adapters=max_adapters, max_adapter_rank=max_adapter_rank)
    memory = None if kv_memory is None else _bytes("kv_memory", kv_memory)
    host, tables = _bytes("picture_cache_host", picture_cache_host, 0), _bytes("grammar_memory", grammar_memory, 0)
    sized = replace(slots, max_context=max_context, kv_memory=memory, picture_cache_host=host, grammar_memory=tables)
    how = replace(sized, graphs=graphs, prefix_cache=prefix_cache, max_step_ms=max_step_ms, kv_dtype=kv_dtype)
    kept, opening = _bytes("picture_cache", picture_cache, 0), replace(how, grammars=grammars)
    return open_model(opening, image_limits, process=process, progress=progress, picture_cache=kept)


def _bytes(name: str, size: object, least: int = 1) -> int:
    try:
        return bytes_of(size, least)  # type: ignore[arg-type]
    except ValueError as error:
        raise InvalidRequest(f"{name} {error}; got {shown(size)}", param=name) from error


def _adapters(named: Mapping[str, str | Path] | None) -> tuple[tuple[str, str], ...]:
    if named is None:
        return ()
    if not isinstance(named, Mapping):
        raise InvalidRequest(f"adapters must be a dict of paths by name, not {shown(named)}", param="adapters")
    return tuple((name, adapter_path(path)) for name, path in named.items())


def open_model(
    opening: Opening,
    image_limits: ImageLimits | None = None,
    *,
    process: bool = False,
    progress: Progress | None = None,
    picture_cache: int = PICTURE_CACHE,
) -> VLM:
    """`load`, of arguments that were put together before."""
    _check(opening)
    if image_limits is not None and not isinstance(image_limits, ImageLimits):
        raise InvalidRequest(
            f"image_limits must be a gapless.config.ImageLimits, not {shown(image_limits)}", param="image_limits"
        )
    if not isinstance(process, bool):
        raise InvalidRequest(f"process must be True or False, not {shown(process)}", param="process")
    limits = image_limits or ImageLimits()
    return (_load_apart if process else _load_here)(opening, limits, picture_cache, progress)


def _check(opening: Opening) -> None:
    if opening.dtype not in get_args(DType):
        known = ", ".join(get_args(DType))
        raise InvalidRequest(f"dtype {shown(opening.dtype)} is unknown; use {known}", param="dtype")
    if opening.kv_dtype not in get_args(KVDType):
        known = " or ".join(map(repr, get_args(KVDType)))
        raise InvalidRequest(f"kv_dtype must be {known}, not {shown(opening.kv_dtype)}", param="kv_dtype")
    if opening.constraints not in get_args(Constraints):
        raise InvalidRequest(
            f'constraints must be "device" or "host", not {shown(opening.constraints)}', param="constraints"
        )
    if not isinstance(opening.prefix_cache, bool):
        raise InvalidRequest(
            f"prefix_cache must be True or False, not {shown(opening.prefix_cache)}", param="prefix_cache"
        )
    check_step_limit(opening.max_step_ms)
    if opening.pages is not None and opening.kv_memory is not None:
        raise InvalidRequest("pages and kv_memory both say how large the KV cache is; give one", param="kv_memory")
    _check_sizes({"depth": opening.depth, "page_size": opening.page_size})
    check_size("grammars", opening.grammars, LARGEST["grammars"], 0)
    for name, _ in opening.adapters:
        adapter_name(name)
    sizes = ("max_rows", "pages", "threads", "max_adapters", "max_adapter_rank", "max_context")
    given = [(name, getattr(opening, name)) for name in sizes]
    _check_sizes({name: size for name, size in given if size is not None})


def _load_here(opening: Opening, limits: ImageLimits, picture_cache: int, progress: Progress | None) -> VLM:
    weights = load_weights(opening, progress)
    loaded, table, config = weights.loaded, weights.table, weights.config
    open_tokenizer(Templates.of(loaded.config), loaded.tokenizer_path)
    opened, plan = open_device(weights, opening, progress)
    try:
        return assemble(loaded, opened, table, config, limits, plan, weights.shelf, picture_cache)
    except BaseException:
        opened.close()
        raise


def _arena_bytes(crops: CropSpec, limits: ImageLimits, rows: int) -> int:
    """Room for a usual picture of every row and some to come, and for the longest one that is let in."""
    usual = (rows + SPARE_PICTURES) * crops.bytes_of(crops.max_crops)
    return max(usual, crops.bytes_of(crops.most_tiles(limits.max_pixels)))


def _load_apart(opening: Opening, limits: ImageLimits, picture_cache: int, progress: Progress | None) -> VLM:
    """Everything but the engine is here. The files are looked at first: most errors need no process."""
    missing = [name for name in ("zmq", "msgspec") if find_spec(name) is None]
    if missing or sys.platform == "win32":
        what = f"the packages of the extra 'process' ({', '.join(missing)} missing)" if missing else "a POSIX system"
        raise InvalidRequest(
            f"process=True needs {what}; pip install 'gapless[process]', or load without it", param="process"
        )
    from gapless.api.remote import RemoteRunner
    from gapless.api.spawn import EngineProcess

    for name, word in (("device", opening.device), ("revision", opening.revision)):
        if not isinstance(word, str) and (name, word) != ("revision", None):
            raise InvalidRequest(f"{name} must be a string, not {shown(word)}", param=name)
    located = locate(opening.model, opening.revision)
    files = find_files(located.folder, located.tokenizer)
    config = identify(files, located.behaves)
    tokenizer = open_tokenizer(Templates.of(config), files.tokenizer)
    crops = crop_spec(config.vision)
    rows = opening.max_rows or max(ROWS.values())
    orders = _for_child(opening, located)
    process = EngineProcess(_arena_bytes(crops, limits, rows))
    try:
        ready = process.open(orders, progress)
        plan = _plan(ready.plan)
    except BaseException:
        process.kill()
        process.end()
        raise
    context = SkillContext(Templates.of(config), tokenizer, ready.prefix, ready.max_context, located.name)
    runner = RemoteRunner(process, ready, opening.constraints == "host")
    return VLM(Desk(context, crops, limits, runner, ready.rows, picture_cache, plan is not None), plan)


def _for_child(opening: Opening, located: Located) -> Opening:
    """The child looks published models up in the cache, where their tokenizers are too; anything else is a folder.
    Raises `InvalidRequest` for a name that cannot be told to another process."""
    if located.tokenizer is None:
        opening = replace(opening, model=str(located.folder), revision=located.behaves)
    for name, word in (("model", opening.model), ("device", opening.device), ("revision", opening.revision or "")):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{name} {shown(word)} holds bytes that are no UTF-8, and cannot be told to an engine process; use "
                "another name",
                param=name,
            ) from error
    return opening


def _plan(fields: Mapping[str, Any] | None) -> GpuPlan | None:
    if fields is None:
        return None
    from gapless.device.sizing import GpuPlan

    return GpuPlan(**fields)


def assemble(
    loaded: Loaded,
    device: Device,
    table: Table,
    config: EngineConfig,
    limits: ImageLimits,
    plan: GpuPlan | None = None,
    shelf: Shelf | None = None,
    picture_cache: int = PICTURE_CACHE,
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
    runner = Runner(device, table, config, shelf)
    crops, on_gpu = crop_spec(loaded.config.vision), plan is not None
    desk = Desk(context, crops, limits, runner, config.max_rows, picture_cache, on_gpu)
    return VLM(desk, plan)


def _check_sizes(sizes: Mapping[str, object]) -> None:
    for name, size in sizes.items():
        check_size(name, size, LARGEST[name])


def check_step_limit(limit: object) -> None:
    """Raise `InvalidRequest` unless it is None, 0, or milliseconds that a step may take."""
    number = isinstance(limit, int | float) and not isinstance(limit, bool)
    if limit is not None and not (number and (limit == 0 or LEAST_STEP_MS <= limit <= MOST_STEP_MS)):  # type: ignore[operator]
        raise InvalidRequest(
            f"max_step_ms must be milliseconds, a number from {LEAST_STEP_MS:g} to {MOST_STEP_MS:g}, or 0 for no "
            f"limit; got {shown(limit)}",
            param="max_step_ms",
        )


def check_size(name: str, size: object, largest: int, least: int = 1) -> None:
    """Raise `InvalidRequest` for what is no whole number from `least` to `largest`."""
    if isinstance(size, bool) or not isinstance(size, int) or not least <= size <= largest:
        raise InvalidRequest(
            f"{name} must be a whole number from {least} to {largest}; got {shown(size)} ({type(size).__name__})",
            param=name,
        )


def crop_spec(vision: VisionConfig) -> CropSpec:
    """How this model's pictures are cut."""
    return CropSpec(vision.crop_size, vision.enc_patch_size, vision.overlap_margin, vision.max_crops)
