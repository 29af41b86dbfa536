"""How large the device is made: pure arithmetic from the engine's settings, the model and the machine's memory."""

from __future__ import annotations

import os

from gapless.config import EngineConfig
from gapless.device.packet import Layout
from gapless.errors import InvalidRequest
from gapless.models.base import Model
from gapless.records import DeviceLimits

MEMORY_SHARE = 4
"""Without `pages`, the KV cache takes at most this fraction (one over it) of the machine's memory."""
UNKNOWN_MEMORY = 8 * 2**30


def device_limits(model: Model, config: EngineConfig, memory: int) -> DeviceLimits:
    """Sizes for a model on a machine with `memory` bytes.

    Rows: `max_rows` and the padding row. Pages: `config.pages` if given (all of them, page 0 included). Otherwise
    enough for every row at full context, each with a picture of its own whose last, partly filled page is kept beside
    the row's copy, plus page 0; but no more than a quarter of the memory holds, and no fewer than one row needs.
    Raises `InvalidRequest` for settings that cannot work.
    """
    for name in ("depth", "max_rows", "page_size", "prefills_per_step"):
        if getattr(config, name) < 1:
            raise InvalidRequest(f"{name} is {getattr(config, name)}, but must be at least 1", param=name)
    if config.pages is not None and config.pages < 2:
        raise InvalidRequest(f"pages is {config.pages}: page 0 is reserved, give at least 2", param="pages")
    return DeviceLimits(
        rows=config.max_rows + 1,
        pages=_pages(model, config, memory) if config.pages is None else config.pages,
        page_size=config.page_size,
        max_context=model.max_context,
        prefix=model.prefix,
        depth=config.depth,
        vocab=model.vocab,
    )


def step_layout(limits: DeviceLimits, config: EngineConfig, rows: int) -> Layout:
    """How large one step's words are: `rows` rows, each granted what the planner may grant it in one step."""
    per_row = -(-config.lookahead // limits.page_size) + 2
    return Layout(rows, rows * per_row, -(-limits.max_context // limits.page_size))


def machine_memory() -> int:
    """Bytes of physical memory, or 8 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return UNKNOWN_MEMORY


def _pages(model: Model, config: EngineConfig, memory: int) -> int:
    per_row = -(-model.max_context // config.page_size) + (model.prefix % config.page_size != 0)
    affordable = memory // MEMORY_SHARE // model.page_bytes(config.page_size)
    return max(per_row + 1, min(config.max_rows * per_row + 1, affordable))
