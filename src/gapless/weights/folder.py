"""The files of a model folder: found, not read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gapless.errors import InvalidCheckpoint, ModelNotFound, shown
from gapless.weights.stored import PICKLED

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

LONGEST = 255
"""Characters of a file's name."""

PATTERNS: Sequence[str] = (CONFIG, TOKENIZER, "*.safetensors", INDEX, "LICENSE*")
"""What a download has to bring; nothing else is ever read, so nothing else is fetched (no pickles, no code)."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Paths of a complete model folder. `weights`: safetensors files, one or several shards, or one `.pt`."""

    folder: Path
    config: Path
    tokenizer: Path
    weights: tuple[Path, ...]


def find_files(folder: Path, tokenizer: Path | None = None) -> ModelFolder:
    """Find a model's files; `tokenizer`: the one to take, if not the folder's own.

    Safetensors come before a `.pt`, which is taken only if it is the only one. Raises `ModelNotFound` naming every file
    that is missing.
    """
    files = ModelFolder(folder, folder / CONFIG, tokenizer or folder / TOKENIZER, find_weights(folder))
    missing = [path.name for path in (files.config, files.tokenizer, *files.weights) if not is_file(path)]
    if missing:
        names = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise ModelNotFound(f"{folder} lacks {names}. {remedy(missing)}")
    return files


def find_weights(folder: Path) -> tuple[Path, ...]:
    """The files of a folder that hold its weights; some may not be there. Raises `InvalidCheckpoint` where several
    could be meant."""
    index = folder / INDEX
    if is_file(index):
        return _shards(index)
    single = folder / WEIGHTS
    pickled = [path for ending in PICKLED for path in sorted(folder.glob(f"*{ending}"))]
    if single.exists() or not pickled:
        return (single,)
    if len(pickled) > 1:
        names = ", ".join(path.name for path in pickled[:4]) + (" and more" if len(pickled) > 4 else "")
        raise InvalidCheckpoint(
            f"{folder} has several files of weights, {names}, and nothing says which is meant. Leave the right one "
            "there and take the others away."
        )
    return (pickled[0],)


def is_file(path: Path) -> bool:
    """Whether one is there that can be asked for: not if its name is longer than any, or its folder is locked."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises `InvalidCheckpoint` if it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidCheckpoint(f"{path} cannot be read as JSON ({error}). Download the model again.") from error
    if not isinstance(content, dict):
        raise InvalidCheckpoint(
            f"{path} holds a {type(content).__name__}, expected an object. Download the model again."
        )
    return content


def remedy(missing: Sequence[str]) -> str:
    """What to do about files that a folder lacks."""
    if missing == [TOKENIZER]:
        return (
            "Put the tokenizer the weights were trained with beside them (Moondream 2 of 2025-06-21 and later: "
            "tokenizer.json of moondream/starmie-v1)."
        )
    return "Download the model again, or give a folder that has them."


def _shards(index: Path) -> tuple[Path, ...]:
    """The files an index names, in order of name; they have to lie beside it."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InvalidCheckpoint(f"{index} has no weight_map. Download the model again.")
    names = sorted({str(name) for name in weight_map.values()})
    strange = [
        name for name in names if Path(name).name != name or not name.endswith(".safetensors") or len(name) > LONGEST
    ]
    if strange:
        raise InvalidCheckpoint(
            f"{index} names files outside its folder, or no safetensors: {', '.join(map(shown, strange[:4]))}. "
            "Download the model again."
        )
    return tuple(index.parent / name for name in names)
