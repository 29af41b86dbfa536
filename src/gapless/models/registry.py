"""From a name or a folder to a model ready to run.

The one place that knows which families there are (one: Moondream) and joins `weights` (files) with `models` (meaning).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gapless.config import DType, KVDType
from gapless.errors import GaplessError, InvalidRequest
from gapless.kernels.choose import choose
from gapless.models.base import Model
from gapless.models.moondream.config import MoondreamConfig, with_context
from gapless.models.moondream.identify import identify
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.random_weights import NEVER_ENDS, SIZES, has_fp8, random_config, random_tensors
from gapless.models.moondream.reading import read_weights
from gapless.weights.folder import TOKENIZER, find_files
from gapless.weights.hub import ASSETS, BUNDLED, locate
from gapless.weights.progress import Progress
from gapless.weights.stored import open_files

LARGE = 2**30
"""Bytes of a checkpoint from which on they matter on a CPU."""
WIDE = ("F32", "F64")
"""What files call floating-point types of more than 16 bits."""
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model with what the other rooms need to use it. `revision` is the hub's, else the config's."""

    model: Model
    config: MoondreamConfig
    tokenizer_path: Path
    name: str
    revision: str
    tiles: str = ""
    """Where those of its decode steps are from, see `Moondream.tiles`."""


@dataclass(frozen=True, slots=True)
class Available:
    """A model that needs no download. `problem` says why it cannot be loaded, None if it can."""

    name: str
    folder: Path
    revision: str
    problem: str | None


def load_model(
    name_or_folder: str | Path,
    device: str | torch.device = "cpu",
    dtype: DType = "auto",
    revision: str | None = None,
    exact: bool = False,
    progress: Progress | None = None,
    max_context: int | None = None,
    plain: bool = False,
    kv_dtype: KVDType = "auto",
) -> Loaded:
    """Load a bundled model, a folder, or a hub id onto `device`.

    `dtype` "auto" is bfloat16 on a GPU, and float32 on a CPU, but for what `_suits` says; weights of another type are
    converted. `revision` as in `locate`. `exact` fixes the rows of every GEMM on a GPU, `plain` leaves it to torch
    (`kernels.choose`). `progress` is told how much has been read. `max_context`: see `with_context`.
    `kv_dtype`: of its KV cache. Raises `ModelNotFound`, `InvalidCheckpoint`, or `InvalidRequest` for a device, dtype or
    context that does not exist.
    """
    where, known = _device(device), _dtype(device, dtype)
    located = locate(name_or_folder, revision)
    files = find_files(located.folder, located.tokenizer)
    config = identify(files, located.behaves)
    if max_context is not None:
        config = with_context(config, max_context)
    kind = torch.bfloat16 if dtype == "auto" and where.type == "cpu" and _suits(files.weights) else known
    tensors = read_weights(files.weights, config, kind, where, progress=progress)
    model = Moondream(config, tensors, choose(where, exact, plain), kv_dtype)
    return Loaded(model, config, files.tokenizer, located.name, located.revision or config.revision, model.tiles)


def random_model(
    size: str = SIZES[0],
    device: str | torch.device = "cpu",
    dtype: DType = "auto",
    *,
    seed: int = 0,
    end_bias: float = NEVER_ENDS,
    exact: bool = False,
    plain: bool = False,
    kv_dtype: KVDType = "auto",
) -> Loaded:
    """A model of random weights in one of `SIZES`, for timings and trials; its name says what it is.

    Its tokenizer is glint's: what it is asked is encoded, what it answers is noise. `end_bias` is added to the end id's
    logit, which is otherwise about standard normal like all others. `exact`, `plain` and `kv_dtype` as in `load_model`.
    Raises `InvalidRequest` for a size, device or dtype that does not exist.
    """
    if size not in SIZES:
        raise InvalidRequest(f"there is no random model {size!r}; use {' or '.join(SIZES)}.", param="model")
    where, config = _device(device), random_config(size)
    tensors = random_tensors(config, where, _dtype(device, dtype), seed, end_bias, fp8=has_fp8(size))
    model = Moondream(config, tensors, choose(where, exact, plain), kv_dtype)
    return Loaded(
        model, config, ASSETS / BUNDLED[0] / TOKENIZER, f"{size} (random weights)", config.revision, model.tiles
    )


def available() -> list[Available]:
    """The bundled models, each with whether it is complete."""
    return [_look_at(name) for name in BUNDLED]


def _look_at(name: str) -> Available:
    folder = locate(name).folder
    try:
        config = identify(find_files(folder))
    except GaplessError as error:
        return Available(name, folder, "", str(error))
    return Available(name, folder, config.revision, None)


def _device(device: str | torch.device) -> torch.device:
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise InvalidRequest(f"device {device!r} does not exist; use 'cpu' or 'cuda'.", param="device") from error
    if where.type == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest("device 'cuda' was asked for, but torch sees no GPU; use 'cpu'.", param="device")
    return where


def _dtype(device: str | torch.device, dtype: DType) -> torch.dtype:
    if dtype == "auto":
        return torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
    if dtype not in DTYPES:
        raise InvalidRequest(f"dtype {dtype!r} is unknown; use auto, {', '.join(DTYPES)}.", param="dtype")
    return DTYPES[dtype]


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for products of bfloat16 (AVX-512 BF16 or AMX)."""
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


def _suits(weights: Sequence[Path]) -> bool:
    """Whether bfloat16 is the better choice on this CPU: it multiplies it, the checkpoint is large, so that half the
    time and memory matter, and no matrix of it is wider, so that little is lost. Small ones stay exact in float32."""
    if not multiplies_bfloat16():
        return False
    with open_files(weights) as stored:
        headers = stored.headers.values()
        wide = any(header.dtype in WIDE and len(header.shape) > 1 for header in headers)
        return not wide and sum(header.size for header in headers) >= LARGE
