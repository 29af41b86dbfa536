"""Tensors from files to the device: everything is checked before a byte of weights is used.

In: open files, and for each tensor that the model wants a recipe. Out: tensors of their own memory in one dtype on one
device, made one after the other. Everything that does not fit is said in one `InvalidCheckpoint`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from gapless.errors import InvalidCheckpoint
from gapless.weights.progress import Progress
from gapless.weights.recipes import Part, Recipe
from gapless.weights.stored import Header, Stored

LISTED = 12
"""How many faults an error spells out; the rest are counted."""
MEGA = 10**6
READING = "MB of weights"
STEPS = 50
"""How often whoever watches is told, at most."""


def read_tensors(
    stored: Stored,
    recipes: Mapping[str, Recipe],
    dtype: torch.dtype,
    device: torch.device,
    missing: Iterable[str] = (),
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Make every tensor. `missing`: what has no recipe because nothing in the files is like it.

    Raises `InvalidCheckpoint` for tensors that are missing, not asked for, twice there, of another shape or dtype, or
    scales that are not finite.
    """
    parts = {name: part for recipe in recipes.values() for name, part in recipe.parts().items()}
    faults = [*stored.twice, *(f"missing {name}" for name in missing), *check_parts(stored.headers, parts)]
    if faults:
        raise InvalidCheckpoint(report(stored.files, faults))
    spoilt = [name for name, part in parts.items() if part.finite and not _finite(stored.read(name))]
    if spoilt:
        more = f" and {len(spoilt) - 1} more have" if len(spoilt) > 1 else " has"
        where = stored.headers[spoilt[0]].path
        raise InvalidCheckpoint(f"{where}: {spoilt[0]}{more} values that are not finite. Download it again.")
    return _make(stored, recipes, dtype, device, progress)


def check_parts(headers: Mapping[str, Header], parts: Mapping[str, Part]) -> list[str]:
    """What does not fit: parts that are not there, tensors that nobody needs, other shapes and dtypes."""
    faults = [f"missing {name} {list(parts[name].shape)}" for name in sorted(parts.keys() - headers.keys())]
    faults += [f"unexpected {name}" for name in sorted(headers.keys() - parts.keys())]
    for name in sorted(headers.keys() & parts.keys()):
        header, part = headers[name], parts[name]
        if header.shape != part.shape:
            faults.append(f"{name} has shape {list(header.shape)}, expected {list(part.shape)}")
        if header.dtype not in part.dtypes:
            wanted = f"one of {', '.join(part.dtypes)}" if len(part.dtypes) > 1 else part.dtypes[0]
            faults.append(f"{name} is {header.dtype}, expected {wanted}")
    return faults


def report(files: Sequence[Path], faults: Sequence[str]) -> str:
    """All faults in one sentence, the first `LISTED` in full."""
    more = f"; and {len(faults) - LISTED} more" if len(faults) > LISTED else ""
    where = files[0] if len(files) == 1 else f"{files[0].parent} ({len(files)} shards)"
    return (
        f"{where} does not fit its config.json: {'; '.join(faults[:LISTED])}{more}. "
        "Take both from the same model and revision."
    )


def _finite(tensor: Tensor) -> bool:
    """Whether all values are, by the least and the largest: in one pass over the map, without a copy of it."""
    return all(bool(end.isfinite()) for end in tensor.aminmax())


def has_nan(tensor: Tensor) -> bool:
    """Whether a tensor in FP8 holds what is no number: there kernels would read 480. Of others this is not asked."""
    if tensor.dtype is not torch.float8_e4m3fn:
        return False
    return any(bool((part.view(torch.uint8) & 0x7F == 0x7F).any()) for part in tensor)


def _make(
    stored: Stored,
    recipes: Mapping[str, Recipe],
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None,
) -> dict[str, Tensor]:
    total, done, told, tensors = sum(h.size for h in stored.headers.values()), 0, -1, {}
    for name, recipe in recipes.items():
        if progress is not None and (step := STEPS * done // max(total, 1)) > told:
            progress.show(READING, done // MEGA, total // MEGA)
            told = step
        tensors[name] = recipe.make(stored.read, dtype, device)
        if has_nan(tensors[name]):
            raise InvalidCheckpoint(
                f"{stored.files[0].parent}: {name} has FP8 values that are no numbers. Download it again."
            )
        done += sum(stored.headers[part].size for part in recipe.parts())
    if progress is not None:
        progress.show(READING, total // MEGA, total // MEGA)
    return tensors
