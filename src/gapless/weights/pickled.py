"""Tensors of a `.pt` file, read by the unpickler that knows tensors and nothing else.

In: a file of `torch.save` in its zip form. Out: its tensors, mapped, and their headers. A pickle can name any function
to be called; torch's restricted unpickler refuses all but the few that build tensors, so nothing of the file runs.
Nothing is allocated beyond what the file has: it is looked at before torch sees it, and a tensor that claims more bytes
than lie there is refused. What torch's own errors advise is never passed on. No other place unpickles a file.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gapless.errors import InvalidCheckpoint, shown
from gapless.weights.stored import Header

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.int64: "I64",
}
"""Dtypes by the names that safetensors has for them."""
_WANTED = re.compile(r"(?:GLOBAL|global:?|class|function) ([A-Za-z_][\w]*(?:\.\w+)+)")
"""What a refused pickle names, as torch says it."""


@dataclass(frozen=True, slots=True)
class Pickled:
    """`notes`: what is there beside tensors, of what was said to be harmless."""

    tensors: Mapping[str, Tensor]
    headers: Mapping[str, Header]
    notes: Mapping[str, object]


def read_pickled(path: Path, inside: str = "", harmless: Collection[str] = (), whose: str = "model") -> Pickled:
    """Map the file. `inside`: a name under which all tensors may be; `harmless`: names under which there may be a
    number or text; `whose` tensors they are, for the remedy.

    Raises `InvalidCheckpoint` for anything but one flat dict of tensors by name.
    """
    content, notes = _load(path, whose), {}
    if isinstance(content, dict):
        notes = {name: content[name] for name in harmless if _is_note(content.get(name))}
        content = content[inside] if inside and inside in content else content
    if not isinstance(content, dict):
        raise InvalidCheckpoint(_other(path, f"it is a {type(content).__name__}", whose))
    notes |= {name: content[name] for name in harmless if _is_note(content.get(name))}
    tensors = {name: value for name, value in content.items() if name not in notes}
    for name, value in tensors.items():
        if wrong := _wrong(name, value):
            raise InvalidCheckpoint(_other(path, wrong, whose))
    headers = {name: Header(tuple(t.shape), DTYPES.get(t.dtype, str(t.dtype)), path) for name, t in tensors.items()}
    return Pickled(tensors, headers, notes)


def _is_note(value: object) -> bool:
    return isinstance(value, int | float | str)


def _other(path: Path, what: str, whose: str) -> str:
    return (
        f"{path} holds something other than tensors by name: {what}. Save the {whose}'s tensors alone, best as "
        "safetensors."
    )


def _wrong(name: object, value: object) -> str:
    """What keeps an entry from being a tensor by name; empty if nothing does."""
    if not isinstance(name, str):
        return f"one has {shown(name)} for a name"
    if type(value) is not Tensor:
        return f"{shown(name)} is {shown(value)} ({type(value).__name__})"
    if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
        return f"{shown(name)} is a {value.layout} tensor on {value.device}, not a plain one"
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return f"{shown(name)} has shape {list(value.shape)}, for which it has too few bytes"
    return ""


def _load(path: Path, whose: str) -> Any:
    again = f"Download it again, or use the {whose}'s safetensors."
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            zipped = file.read(4) == b"PK\x03\x04"
        packed = zipped and any(entry.compress_type != zipfile.ZIP_STORED for entry in _entries(path))
    except Exception as error:  # whatever a damaged file makes the reader stumble over
        raise InvalidCheckpoint(f"{path} cannot be read, or is cut short or damaged. {again}") from error
    if not zipped:
        raise InvalidCheckpoint(
            f"{path} ({size} bytes) is not a complete file of torch.save in its zip form, which torch writes "
            f"since 1.6: it is older, or something else. Save it anew, or use the {whose}'s safetensors."
        )
    if packed:
        raise InvalidCheckpoint(f"{path} is a compressed archive, which torch.save does not write. {again}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        found = _WANTED.search(str(error))
        wanted = f"it wants {found[1]}" if found else "its instructions do not only build tensors"
        raise InvalidCheckpoint(
            f"{path} is a pickle that wants more than tensors, and none of it was run: {wanted}. Do not open it with "
            f"anything that would run it; use the {whose}'s safetensors, or have its tensors saved alone."
        ) from error
    except Exception as error:  # as above
        raise InvalidCheckpoint(
            f"{path} ({size} bytes) is not a complete file of torch.save in its zip form. {again}"
        ) from error


def _entries(path: Path) -> list[zipfile.ZipInfo]:
    with zipfile.ZipFile(path) as archive:
        return archive.infolist()
