"""Tensors of a `.pt` file, read by the unpickler that knows tensors and nothing else.

In: a file of `torch.save` in its zip form. Out: its tensors, mapped, and their headers. A pickle can name any function
to be called; torch's restricted unpickler refuses all but the few that build tensors, so nothing of the file runs.
This is the only place that unpickles.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gapless.errors import InvalidCheckpoint
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


def read_pickled(path: Path, inside: str = "") -> tuple[dict[str, Tensor], dict[str, Header]]:
    """Map the file. Raises `InvalidCheckpoint` for anything but one flat dict of tensors by name, or a dict that has it
    under the name `inside`."""
    content = _load(path)
    if inside and isinstance(content, dict) and inside in content:
        content = content[inside]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and type(tensor) is Tensor for name, tensor in content.items()
    ):
        raise InvalidCheckpoint(
            f"{path} holds something other than tensors by name. Save the model's state_dict, best as safetensors."
        )
    headers = {name: Header(tuple(t.shape), DTYPES.get(t.dtype, str(t.dtype)), path) for name, t in content.items()}
    return content, headers


def _load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        reason = str(error).partition("\n")[0]
        raise InvalidCheckpoint(
            f"{path} is a pickle that wants more than tensors, and none of it was run ({reason}). "
            "Use the model's safetensors."
        ) from error
    except Exception as error:  # whatever a damaged file makes the reader stumble over
        reason = " ".join(str(error).split())[:200]
        raise InvalidCheckpoint(
            f"{path} ({path.stat().st_size} bytes) is not a complete file of torch.save in its zip form ({reason}). "
            "Download it again, or use the model's safetensors."
        ) from error
