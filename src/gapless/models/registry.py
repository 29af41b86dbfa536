"""From a name or a folder to a model ready to run.

The one place that knows which families there are (one: Moondream) and joins `weights` (files) with `models` (meaning).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from gapless.config import DType
from gapless.errors import GaplessError, InvalidRequest
from gapless.models.base import Model
from gapless.models.moondream.config import MoondreamConfig, read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.weights_map import PREFIX, tensor_shapes
from gapless.weights.checkpoint import read_tensors
from gapless.weights.folder import find_files, read_json
from gapless.weights.hub import BUNDLED, locate

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


@dataclass(frozen=True, slots=True)
class Available:
    """A model that needs no download. `problem` says why it cannot be loaded, None if it can."""

    name: str
    folder: Path
    revision: str
    problem: str | None


def load_model(
    name_or_folder: str | Path, device: str | torch.device = "cpu", dtype: DType = "auto", revision: str | None = None
) -> Loaded:
    """Load a bundled model, a folder, or a hub id onto `device`.

    `dtype` "auto" is float32 on a CPU and bfloat16 elsewhere; weights of another float type are converted. Raises
    `ModelNotFound`, `InvalidCheckpoint`, or `InvalidRequest` for a device or dtype that does not exist.
    """
    where, kind = _device(device), _dtype(device, dtype)
    located = locate(name_or_folder, revision)
    files = find_files(located.folder)
    config = read_config(read_json(files.config))
    tensors = read_tensors(files.weights, tensor_shapes(config), PREFIX, kind, where)
    model = Moondream(config, tensors)
    return Loaded(model, config, files.tokenizer, located.name, located.revision or config.revision)


def available() -> list[Available]:
    """The bundled models, each with whether it is complete."""
    return [_look_at(name) for name in BUNDLED]


def _look_at(name: str) -> Available:
    folder = locate(name).folder
    try:
        config = read_config(read_json(find_files(folder).config))
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
