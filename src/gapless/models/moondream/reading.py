"""A Moondream's files to its tensors.

In: files in either layout and a config. Out: the tensors of `weights_map.tensor_shapes` on a device, whatever form they
have in the files. What cannot be computed in its own form is said in the log, not hidden.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gapless.models.moondream.config import MoondreamConfig
from gapless.models.moondream.layouts import plan
from gapless.models.moondream.weights_map import tensor_shapes
from gapless.weights.checkpoint import read_tensors
from gapless.weights.progress import Progress
from gapless.weights.stored import open_files

_log = logging.getLogger("gapless.weights")


def read_weights(
    files: Sequence[Path],
    config: MoondreamConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Read them, converted to `dtype`; FP8 experts stay, their scales beside them. Raises `InvalidCheckpoint`."""
    with open_files(files) as stored:
        planned = plan(stored.headers, tensor_shapes(config))
        tensors = read_tensors(stored, planned.recipes, dtype, device, planned.missing, progress)
    if planned.packed:
        _log.warning("The weights are int4 in the files and are computed in %s.", str(dtype).removeprefix("torch."))
    return tensors
