"""A Moondream's files to its tensors.

In: files in either layout and a config. Out: the tensors of `weights_map.tensor_shapes` on a device, whatever form they
have in the files. What cannot be computed in its own form is said in the log, not hidden.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from gapless.errors import NotEnoughMemory
from gapless.models.machine import machine_memory
from gapless.models.moondream.config import MoondreamConfig
from gapless.models.moondream.layouts import Plan, plan
from gapless.models.moondream.weights_map import tensor_shapes
from gapless.weights.checkpoint import read_tensors
from gapless.weights.facts import Facts, facts
from gapless.weights.progress import Progress
from gapless.weights.recipes import Kept
from gapless.weights.stored import Header, open_files

_log = logging.getLogger("gapless.weights")


def read_weights(
    files: Sequence[Path],
    config: MoondreamConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Read them, converted to `dtype`; FP8 experts stay, their scales beside them. Raises `InvalidCheckpoint`, and on
    a CPU `NotEnoughMemory` before anything is read: the system would end the process without a word."""
    wanted = tensor_shapes(config)
    with open_files(files) as stored:
        planned = plan(stored.headers, wanted)
        if device.type == "cpu":
            _check_memory(count(stored.headers, planned, wanted), dtype)
        tensors = read_tensors(stored, planned.recipes, dtype, device, planned.missing, progress)
    if planned.packed:
        _log.warning("The weights are int4 in the files and are computed in %s.", str(dtype).removeprefix("torch."))
    return tensors


def count(headers: Mapping[str, Header], planned: Plan, wanted: Mapping[str, tuple[int, ...]]) -> Facts:
    """What the files add up to, and what the model's tensors take. `wanted`: their shapes by name."""
    shapes = [wanted[name] for name, recipe in planned.recipes.items() if not isinstance(recipe, Kept)]
    kept = [recipe.name for recipe in planned.recipes.values() if isinstance(recipe, Kept)]
    return facts(headers, shapes, [headers[name] for name in kept if name in headers])


def _check_memory(numbers: Facts, dtype: torch.dtype) -> None:
    name, memory = str(dtype).removeprefix("torch."), machine_memory()
    takes, least = numbers.memory[name], min(numbers.memory.values())
    if takes > memory:
        other = "give dtype bfloat16, or a machine with more" if least <= memory else "use a machine with more"
        raise NotEnoughMemory(
            f"the weights take {takes / 1e9:.2f} GB in {name}, but this process may have {memory / 1e9:.2f} GB of "
            f"memory; {other}, or a GPU",
            param="dtype",
        )
