"""Which Moondream a folder holds: from what its config says, what was asked for, and what its tensors are.

In: a folder's files, and a revision if one is known. Out: its `MoondreamConfig`. The published files give hardly a
dimension and no revision, so what they leave out is seen from the tensors' names and dtypes. Nothing is guessed where
two revisions look alike: then the caller is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gapless.errors import InvalidCheckpoint, shown
from gapless.models.moondream.config import MOONDREAM_3, REVISION, WORDED, MoondreamConfig, read_config
from gapless.models.moondream.names import INTERNAL, canonical, layout_of
from gapless.weights.folder import ModelFolder, read_json
from gapless.weights.stored import FP8, PICKLED, Header, read_headers


def identify(files: ModelFolder, behaves: str | None = None) -> MoondreamConfig:
    """Read the config of a folder. `behaves`: the revision it is known to be; one that the file names comes first.

    Raises `InvalidCheckpoint` if the config is wrong, or if the files could be of several revisions.
    """
    raw = read_json(files.config)
    said = raw.get("revision")
    if said and behaves and said != behaves:
        raise InvalidCheckpoint(f"{files.config} says it is {shown(said)}, not {behaves!r}; leave the revision out.")
    if not behaves and not _says_itself(raw):
        behaves = _seen(read_headers(files.weights), files.weights[0], files.folder)
    return read_config(raw, behaves, str(files.config))


def _says_itself(raw: Mapping[str, Any]) -> bool:
    """Whether a config names its revision, or has ids and templates of its own."""
    sections = raw["config"] if isinstance(raw.get("config"), Mapping) else raw
    return bool(raw.get("revision") or sections.get("tokenizer"))


def _seen(headers: Mapping[str, Header], file: Path, folder: Path) -> str:
    """What tensors look like. Only Moondream 3 has tau; of it, 3.1 came in the internal layout with FP8 experts."""
    names = {canonical(name): header for name, header in headers.items()}
    if any(".attn.tau." in name for name in names):
        quantised = any(header.dtype == FP8 for header in names.values())
        later = quantised and file.suffix not in PICKLED and layout_of(headers) == INTERNAL
        return "moondream3.1" if later else MOONDREAM_3
    words = names.get("text.wte")
    if words is not None and words.dtype == "F16":
        raise InvalidCheckpoint(
            f"{folder} does not say which revision it is, and its float16 weights could be of {', '.join(WORDED)}. Say "
            f"which: {folder.name}@{WORDED[-1]}, or revision=... (a later one that was converted is {REVISION})."
        )
    return REVISION
