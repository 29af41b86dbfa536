"""One dataclass per concern. Only this file (and `serve/settings.py`) reads the environment."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DType = Literal["auto", "float32", "bfloat16", "float16"]
KVDType = Literal["auto", "fp8"]
"""How keys and values are kept: in the model's dtype, or in FP8 (e4m3fn), a byte each."""
Constraints = Literal["device", "host"]


MOST_BYTES = 2**50
"""More than any machine has."""
GRAMMARS, GRAMMAR_MEMORY = 64, 64 * 2**20
"""Slots for tables of rules, and bytes for their states, unless the caller says otherwise: twice as much as the largest
table that is compiled."""
PICTURE_CACHE = 256 * 2**20
"""Bytes of decoded pictures that are kept, unless the caller says otherwise: about fifty large ones."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes of the loop and its ledgers. `pages` None: enough for every row at full context."""

    depth: int = 2
    max_rows: int = 16
    page_size: int = 16
    pages: int | None = None
    lookahead: int = 64
    """Tokens of KV room granted ahead, so that most steps change nothing on the device."""
    constraints: Constraints = "device"
    prefills_per_step: int = 4
    adapters: int = 0
    """Slots for LoRA adapters on the device, each of `adapter_rank`; 0 leaves adapters out altogether."""
    adapter_rank: int = 0
    grammars: int = GRAMMARS
    """Slots for token tables on the device: so many different rules may be followed at once. 0 leaves them out."""
    grammar_memory: int = GRAMMAR_MEMORY
    """Bytes for their states, shared by all; the classes of their ids lie beside it, two bytes an id and slot."""
    kv_memory: int | None = None
    """Bytes of the KV cache; with `pages` None it says how many there are."""
    prefix_cache: bool = True
    """What was computed for a request is kept for later ones that begin alike, until its pages are wanted. Without,
    only requests that run at the same time share, and only their picture's block."""
    picture_cache_host: int = 0
    """Bytes of host memory for what vision made of pictures; page-locked where the device copies by itself."""
    max_step_ms: float | None = None
    """How long a prefill step may take while others decode: prompts and pictures that take longer are cut. None: they
    go whole."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Which model is put to work where, and how: the arguments of `gapless.load` that concern its engine, under the
    same names and with the same defaults."""

    model: str = "glint"
    device: str = "auto"
    dtype: DType = "auto"
    depth: int = 2
    max_rows: int | None = None
    page_size: int = 16
    pages: int | None = None
    constraints: Constraints = "device"
    threads: int | None = None
    revision: str | None = None
    graphs: bool = True
    adapters: tuple[tuple[str, str], ...] = ()
    """Names and paths of adapters."""
    max_adapters: int | None = None
    max_adapter_rank: int | None = None
    max_context: int | None = None
    kv_memory: int | None = None
    """Bytes."""
    prefix_cache: bool = True
    picture_cache_host: int = 0
    """Bytes."""
    kv_dtype: KVDType = "auto"

    max_step_ms: float | None = None
    """0: no limit."""
    grammars: int = GRAMMARS
    grammar_memory: int = GRAMMAR_MEMORY
    """Bytes."""

    def engine(self, rows: int, max_step_ms: float | None = None) -> EngineConfig:
        """The engine's part; `rows` and `max_step_ms` if nothing is said about them."""
        max_rows = rows if self.max_rows is None else self.max_rows
        limit = max_step_ms if self.max_step_ms is None else self.max_step_ms
        return EngineConfig(
            self.depth,
            max_rows,
            self.page_size,
            self.pages,
            constraints=self.constraints,
            grammars=self.grammars,
            grammar_memory=self.grammar_memory,
            kv_memory=self.kv_memory,
            prefix_cache=self.prefix_cache,
            picture_cache_host=self.picture_cache_host,
            max_step_ms=limit or None,
        )


@dataclass(frozen=True, slots=True)
class HostDeviceConfig:
    """The CPU device. `threads` for torch (None: see `cpu_threads`); the rest rehearses a GPU's timing for tests."""

    threads: int | None = None
    poison: bool = False
    """Fill landing buffers with -1 at launch and freed pages with NaN."""
    jitter_seed: int | None = None
    """Seeded random pauses (up to `jitter_ms`) at every stream operation."""
    jitter_ms: float = 0.0
    copy_delay_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class CudaDeviceConfig:
    """A GPU. `graphs` off runs the same steps without CUDA graphs, for debugging.

    `buckets`: the batch sizes steps are padded to, None for the usual ones. A single one gives all steps the same
    arithmetic (tests of equality). `arena_bytes`: room for pictures on their way. `poison`: landing buffers are filled
    with -1 at launch and freed pages with NaN (tests). `plain`: rows go through torch alone, like a model that was
    loaded so (to measure what kernels bring).
    """

    graphs: bool = True
    buckets: tuple[int, ...] | None = None
    arena_bytes: int = 64 * 2**20
    poison: bool = False
    plain: bool = False


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What a picture may be. Checked from the header, before any pixel is decoded."""

    max_pixels: int = 100_000_000
    max_bytes: int = 64 * 1024 * 1024


_UNITS = {"": 1}
_UNITS |= {unit: 10**power for unit, power in {"KB": 3, "MB": 6, "GB": 9, "TB": 12}.items()}
_UNITS |= {unit: 2**power for unit, power in {"KIB": 10, "MIB": 20, "GIB": 30, "TIB": 40}.items()}


def bytes_of(size: int | str, least: int = 1) -> int:
    """Bytes of a number of them, or of a text like "8GB" (a thousand million each) or "1.5 GiB". Raises `ValueError`
    with what is allowed."""
    number = float(min(size, 2 * MOST_BYTES)) if isinstance(size, int) and not isinstance(size, bool) else math.nan
    if isinstance(size, str) and (found := re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)\s*", size)):
        if (unit := found[2].upper()) not in _UNITS:
            raise ValueError(f"must be bytes, or a number with KB, MB, GB or TB, or KiB to TiB, not {found[2]:.20}")
        number = float(found[1]) * _UNITS[unit]
    if math.isnan(number):
        raise ValueError("must be bytes, as a number or like 8GB or 8GiB; units are KB, MB, GB and TB, and KiB to TiB")
    if not least <= number <= MOST_BYTES:
        raise ValueError(f"must be bytes, as a number or like 8GB or 8GiB, from {least} to {MOST_BYTES} (1024TiB)")
    return int(number)


def cpu_threads() -> int | None:
    """Threads for the CPU device: None leaves torch's choice when OMP_NUM_THREADS is set, else cores - 1."""
    if os.environ.get("OMP_NUM_THREADS"):
        return None
    return max(1, usable_cores() - 1)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def cache_folder() -> str:
    """Where downloaded models live: GAPLESS_CACHE, else the Hugging Face cache's default (empty string)."""
    return os.environ.get("GAPLESS_CACHE", "")


def tune_folder() -> str:
    """Where `gapless tune` keeps tables of tiles: gapless/tune in XDG_CACHE_HOME, which is ~/.cache if it is not set.

    A relative XDG_CACHE_HOME counts as none, as its specification says.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(home) if home and Path(home).is_absolute() else Path(os.path.expanduser("~/.cache"))  # noqa: PTH111 - Path's own raises where there is no home
    return str(folder / "gapless" / "tune")
