"""How large the device is made: pure arithmetic from the engine's settings, the model and the machine's memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gapless.config import EngineConfig
from gapless.device.packet import Layout
from gapless.errors import InvalidRequest, NotEnoughMemory
from gapless.models.base import Model
from gapless.models.footprint import pages_of_a_row, token_tables
from gapless.records import DeviceLimits

MEMORY_SHARE = 4
"""Without `pages`, the KV cache takes at most this fraction (one over it) of the machine's memory."""
ADAPTER_SHARE = 2
"""Slots for adapters take at most this fraction (one over it) of the machine's memory; the cache's is of what is left.
"""
TABLE_SHARE = 2
"""And tables of rules, where the machine's memory is the device's; what no rule has used was never touched."""
HOST_SPARE = 8
"""Of the machine's memory this fraction (one over it) at least is not for pictures."""
MOST_PAGES = 2**24
"""Of any size: more are never of use."""
SPARE = 2**30
"""Bytes of a GPU left free beside what was measured: prompts, pictures, what the driver and libraries take later."""


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """How a GPU's memory is divided, in bytes, and what the start cost.

    `held`: weights and whatever else was there before; `reserve`: for steps, prompts, pictures and graphs; `cache`:
    `pages` pages; `adapters`: all their slots; `graphs` were captured in `seconds` and took `graph_bytes` of the
    reserve. `tiles`: where those of decode steps are from, "" if such steps have no kernels of their own. `host`: bytes
    of the machine's own memory, for `host_pictures` pictures. `grammars`: token tables, all their slots.
    """

    gpu: str
    total: int
    held: int
    reserve: int
    cache: int
    pages: int
    page_size: int
    rows: int
    graphs: int = 0
    graph_bytes: int = 0
    seconds: float = 0.0
    adapters: int = 0
    tiles: str = ""
    host: int = 0
    host_pictures: int = 0
    grammars: int = 0

    def __str__(self) -> str:
        captured = (
            f"{self.graphs} graphs in {self.seconds:.1f} s and {_gb(self.graph_bytes)}" if self.graphs else "no graphs"
        )
        slots = f"adapters {_gb(self.adapters)}, " if self.adapters else ""
        slots += f"token tables {_gb(self.grammars)}, " if self.grammars else ""
        host = f"; {_gb(self.host)} of host memory for {self.host_pictures} pictures" if self.host else ""
        tiles = f"; tiles {self.tiles}" if self.tiles else ""
        return (
            f"{self.gpu}, {_gb(self.total)}: weights and others {_gb(self.held)}, {slots}KV cache {_gb(self.cache)} "
            f"({self.pages} pages of {self.page_size} tokens, {self.rows} rows), reserve {_gb(self.reserve)}; "
            f"{captured}{tiles}{host}"
        )


def gpu_pages(limits: DeviceLimits, config: EngineConfig, page_bytes: int, free: int, peak: int) -> tuple[int, int]:
    """Pages for a GPU with `free` bytes, on which one full step held `peak` bytes; and the bytes left for steps.

    Slots for adapters are there already. Twice the peak is left, since eager steps and graphs keep memory apart, and
    `SPARE`. `limits.pages` is what is wanted: as it stands if `config` asked for it, else as much of it as fits, but no
    fewer than one row needs. Raises `NotEnoughMemory`.
    """
    reserve = 2 * peak + SPARE
    fits = max(0, free - reserve) // page_bytes
    asked = config.pages is not None or config.kv_memory is not None
    least = limits.pages if asked else pages_of_a_row(limits.max_context, limits.prefix, limits.page_size) + 1
    if fits < least:
        slots = f" and {limits.adapters} slots for adapters" if limits.adapters else ""
        fewer = f", max_adapters (now {limits.adapters}), max_adapter_rank" if limits.adapters else ""
        size = "pages" if config.kv_memory is None else "kv_memory"
        raise NotEnoughMemory(
            f"the GPU has {_gb(free)} free after the weights{slots}, but {_gb(least * page_bytes + reserve)} are "
            f"needed: {_gb(least * page_bytes)} for {least} pages and {_gb(reserve)} for steps; "
            f"lower max_rows (now {limits.rows - 1}){fewer}, {size} or page_size, or free memory on the GPU",
            param=size,
        )
    return min(limits.pages, fits), reserve


def adapter_memory(model: Model, config: EngineConfig, room: int) -> int:
    """Bytes of all slots for adapters, the empty one included. Raises `NotEnoughMemory` if they exceed `room`."""
    if not config.adapters:
        return 0
    each = model.adapter_bytes(config.adapter_rank)
    whole = each * (config.adapters + 1)
    if whole > room:
        raise NotEnoughMemory(
            f"{config.adapters} slots for adapters of rank {config.adapter_rank} take {_gb(whole)} ({_gb(each)} each, "
            f"and as much for none), but there is room for {_gb(room)}; lower max_adapters or max_adapter_rank",
            param="max_adapters",
        )
    return whole


def table_memory(model: Model, config: EngineConfig, room: int) -> int:
    """Bytes of all slots for tables of rules. Raises `NotEnoughMemory` if they exceed `room`."""
    whole = token_tables(model.vocab, config.grammars, config.grammar_memory)
    if whole > room:
        raise NotEnoughMemory(
            f"{config.grammars} slots for tables of rules and grammar_memory of {_given(config.grammar_memory)} take "
            f"{_size(whole)}, but there is room for {_given(max(0, room))}; lower grammar_memory or grammars",
            param="grammar_memory",
        )
    return whole


def picture_slots(model: Model, config: EngineConfig, memory: int) -> int:
    """How many pictures' embeddings `config.picture_cache_host` holds, on a machine with `memory` bytes. Raises
    `NotEnoughMemory` for less than one, and for so much that too little of the machine's is left."""
    asked, most = config.picture_cache_host, memory - memory // HOST_SPARE
    if not asked:
        return 0
    if asked > most:
        raise NotEnoughMemory(
            f"picture_cache_host is {_given(asked)}, but of {_size(memory)} of memory in all it may take at most "
            f"{_given(most)}; lower it",
            param="picture_cache_host",
        )
    if asked < model.picture_bytes:
        raise NotEnoughMemory(
            f"picture_cache_host is {_given(asked)}, but one picture takes {_size(model.picture_bytes)}; give as much, "
            "or 0 for none",
            param="picture_cache_host",
        )
    return min(MOST_PAGES, asked // model.picture_bytes)


def with_pages(limits: DeviceLimits, pages: int) -> DeviceLimits:
    """The same limits with another number of pages."""
    return replace(limits, pages=pages)


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


def _size(size: int) -> str:
    """So that a reader can give as much: in MB, rounded up, if it is little."""
    return _gb(size) if size >= 1e9 else f"{-(-size // 10**5) / 10} MB"


def _given(size: int) -> str:
    """What a reader gave: the same, rounded down; to the byte, if a tenth of a MB would say nothing."""
    if size < 10**6:
        return f"{size} bytes"
    return _gb(size) if size >= 1e9 else f"{size // 10**5 / 10} MB"


def device_limits(model: Model, config: EngineConfig, memory: int, host: int | None = None) -> DeviceLimits:
    """Sizes for a model on a device with `memory` bytes, in a machine with `host` bytes (None: they are the same).

    Rows: `max_rows` and the padding row. Pages: `config.pages` if given (all of them, page 0 included), or what
    `config.kv_memory` holds. Otherwise enough for every row at full context (see `pages_of_a_row`), plus page 0; but no
    more than a quarter of the memory holds that adapters leave, and no fewer than one row needs. Raises
    `InvalidRequest` for settings that cannot work, `NotEnoughMemory` for slots, or a row, that do not fit.
    """
    for name in ("depth", "max_rows", "page_size", "prefills_per_step"):
        if getattr(config, name) < 1:
            raise InvalidRequest(f"{name} is {getattr(config, name)}, but must be at least 1", param=name)
    for name in ("grammars", "grammar_memory"):
        if getattr(config, name) < 0:
            raise InvalidRequest(f"{name} is {getattr(config, name)}, but must not be negative", param=name)
    if config.pages is not None and config.pages < 2:
        raise InvalidRequest(f"pages is {config.pages}: page 0 is reserved, give at least 2", param="pages")
    slots = picture_slots(model, config, memory if host is None else host)
    memory -= slots * model.picture_bytes if host is None else 0
    memory -= adapter_memory(model, config, memory // ADAPTER_SHARE)
    pages, page_bytes = _pages(model, config, memory), model.page_bytes(config.page_size)
    asked = config.pages is not None or config.kv_memory is not None
    if asked and pages * page_bytes > memory:
        name = "pages" if config.kv_memory is None else "kv_memory"
        raise NotEnoughMemory(
            f"a KV cache of {pages} pages takes {_size(pages * page_bytes)}, but there are {_size(memory)} of memory "
            f"in all; lower {name}",
            param=name,
        )
    return DeviceLimits(
        rows=config.max_rows + 1,
        pages=pages,
        page_size=config.page_size,
        max_context=model.max_context,
        prefix=model.prefix,
        depth=config.depth,
        vocab=model.vocab,
        adapters=config.adapters,
        adapter_rank=config.adapter_rank,
        host_pictures=slots,
        picture_bytes=model.picture_bytes,
        grammars=config.grammars,
        grammar_numbers=config.grammar_memory // 2 if config.grammars else 0,
    )


def step_layout(limits: DeviceLimits, config: EngineConfig, rows: int) -> Layout:
    """How large one step's words are: `rows` rows, each granted what the planner may grant it in one step."""
    per_row = -(-config.lookahead // limits.page_size) + 2
    return Layout(rows, rows * per_row, -(-limits.max_context // limits.page_size))


def _pages(model: Model, config: EngineConfig, memory: int) -> int:
    """See `device_limits`."""
    if config.pages is not None:
        return config.pages
    page_bytes = model.page_bytes(config.page_size)
    per_row = pages_of_a_row(model.max_context, model.prefix, config.page_size)
    if config.kv_memory is None:
        return max(per_row + 1, min(config.max_rows * per_row + 1, memory // MEMORY_SHARE // page_bytes))
    if config.kv_memory < (per_row + 1) * page_bytes:
        raise NotEnoughMemory(
            f"kv_memory is {_given(config.kv_memory)}, but one request at the full context of {model.max_context} "
            f"takes {_size((per_row + 1) * page_bytes)} ({per_row + 1} pages of {config.page_size} tokens); "
            "give as much, or lower max_context",
            param="kv_memory",
        )
    return min(MOST_PAGES, config.kv_memory // page_bytes)
