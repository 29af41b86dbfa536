"""The files of a model folder: found, not read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gapless.errors import InvalidCheckpoint, ModelNotFound

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

PATTERNS: Sequence[str] = (CONFIG, TOKENIZER, "*.safetensors", INDEX)
"""What a download has to bring; nothing else is ever read, so nothing else is fetched (no pickles, no code)."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Paths of a complete model folder. `weights` are the safetensors files, one or several shards."""

    folder: Path
    config: Path
    tokenizer: Path
    weights: tuple[Path, ...]


def find_files(folder: Path) -> ModelFolder:
    """Find a model's files. Raises `ModelNotFound` naming every file that is missing."""
    index = folder / INDEX
    weights = _shards(index) if index.is_file() else (folder / WEIGHTS,)
    files = ModelFolder(folder, folder / CONFIG, folder / TOKENIZER, weights)
    missing = [path.name for path in (files.config, files.tokenizer, *files.weights) if not path.is_file()]
    if missing:
        names = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise ModelNotFound(f"{folder} lacks {names}. Download the model again, or give a folder that has them.")
    return files


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises `InvalidCheckpoint` if it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidCheckpoint(f"{path} cannot be read as JSON ({error}). Download the model again.") from error
    if not isinstance(content, dict):
        raise InvalidCheckpoint(f"{path} holds a {type(content).__name__}, expected an object.")
    return content


def _shards(index: Path) -> tuple[Path, ...]:
    """The files an index names, in order of name; they have to lie beside it."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InvalidCheckpoint(f"{index} has no weight_map. Download the model again.")
    names = sorted({str(name) for name in weight_map.values()})
    strange = [name for name in names if Path(name).name != name]
    if strange:
        raise InvalidCheckpoint(f"{index} names files outside its folder: {', '.join(strange[:4])}.")
    return tuple(index.parent / name for name in names)
