"""Reading safetensors: names and shapes are checked before a byte of weights is used.

In: files and the shapes a model expects. Out: tensors of its own memory in one dtype on one device. Files are memory
mapped and let go again. Everything that does not fit is said in one `InvalidCheckpoint`. Pickles are never opened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gapless.errors import InvalidCheckpoint

LISTED = 12
"""How many faults an error spells out; the rest are counted."""

FLOATS = ("F32", "BF16", "F16")


def read_tensors(
    files: Sequence[Path],
    expected: Mapping[str, tuple[int, ...]],
    prefix: str,
    dtype: torch.dtype,
    device: torch.device,
    optional: Collection[str] = (),
) -> dict[str, Tensor]:
    """Read every expected tensor; on disk a name may carry `prefix`. Those of `optional` may be missing, all together.

    Raises `InvalidCheckpoint` for a file that is cut short or no safetensors, and for tensors that are missing, extra,
    twice there, of another shape, or not of a float type.
    """
    with ExitStack() as stack:
        handles = [stack.enter_context(_open(path)) for path in files]
        found, faults = _index(handles, files, prefix)
        left_out = set(optional) if found.keys().isdisjoint(optional) else set()
        missing = sorted(expected.keys() - found.keys() - left_out)
        faults += [f"missing {name} {list(expected[name])}" for name in missing]
        faults += [f"unexpected {name}" for name in sorted(found.keys() - expected.keys())]
        for name in sorted(found.keys() & expected.keys()):
            faults += _misfit(name, found[name], expected[name])
        if faults:
            raise InvalidCheckpoint(_report(files, faults))
        return {name: _own(found[name], dtype, device) for name in expected if name in found}


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size if path.exists() else 0
        raise InvalidCheckpoint(
            f"{path} ({size} bytes) is not a complete safetensors file ({error}). Download it again."
        ) from error


def _index(handles: Sequence[Any], files: Sequence[Path], prefix: str) -> tuple[dict[str, Any], list[str]]:
    """Slices by name without the prefix, and the names that come twice."""
    found: dict[str, Any] = {}
    faults = []
    for handle, path in zip(handles, files, strict=True):
        for key in handle.keys():  # noqa: SIM118  a safetensors handle is no mapping
            name = key.removeprefix(prefix)
            if name in found:
                faults.append(f"{name} is there twice (again in {path.name})")
            found[name] = handle.get_slice(key)
    return found, faults


def _misfit(name: str, slice_: Any, shape: tuple[int, ...]) -> list[str]:
    faults = []
    if tuple(slice_.get_shape()) != shape:
        faults.append(f"{name} has shape {list(slice_.get_shape())}, expected {list(shape)}")
    if slice_.get_dtype() not in FLOATS:
        faults.append(f"{name} is {slice_.get_dtype()}, expected one of {', '.join(FLOATS)}")
    return faults


def _own(slice_: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Copy out of the map: a converted, aligned tensor that outlives the file."""
    tensor: Tensor = slice_[...] if slice_.get_shape() else slice_[:]
    return tensor.to(device=device, dtype=dtype, copy=True).contiguous()


def _report(files: Sequence[Path], faults: Sequence[str]) -> str:
    more = f"; and {len(faults) - LISTED} more" if len(faults) > LISTED else ""
    where = files[0] if len(files) == 1 else f"{files[0].parent} ({len(files)} shards)"
    return (
        f"{where} does not fit its config.json: {'; '.join(faults[:LISTED])}{more}. "
        "Take both from the same model and revision."
    )
