"""Whether Triton's kernels run on a GPU, found out by running some."""

from __future__ import annotations

import logging
from functools import cache

import torch

from gapless.kernels.stacks import Stack
from gapless.kernels.triton import experts
from gapless.kernels.triton.table import built_in
from gapless.kernels.triton.tiles import ROWS

_log = logging.getLogger("gapless.kernels")
CAPABLE = (8, 0)
"""The least compute capability with bfloat16 tensor cores."""


@cache
def usable(device: torch.device) -> bool:
    """Whether they do: Triton compiles what it launches, with tools that may not be there. If not, the log says why."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability(device) < CAPABLE:
        return False
    try:
        one = torch.ones(1, 32, 16, dtype=torch.bfloat16, device=device)
        chosen = torch.zeros(1, 1, dtype=torch.int64, device=device)
        usual = built_in(experts.USUAL)
        tiles = None if usual is None else usual.experts[one.itemsize][ROWS[0]]
        experts.experts(one[0, :1], one[0, :1, :1], chosen, Stack(one), Stack(one[:, :16].contiguous()), tiles)
    except Exception as error:  # a missing compiler, a driver too old: whatever it is, torch's kernels still run
        _log.warning("Triton's kernels do not run on this GPU, torch's do instead: %s", str(error).strip()[:300])
        return False
    return True
