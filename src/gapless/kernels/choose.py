"""Which set of kernels a model is given: decided once, by the device its weights are on."""

from __future__ import annotations

from typing import Any

import torch

from gapless.kernels import reference
from gapless.kernels.base import Kernels
from gapless.kernels.graphed import Graphed
from gapless.kernels.grouped import has_grouped


def choose(device: torch.device, exact: bool = False) -> Kernels[Any]:
    """The reference on a CPU, the graphed kernels elsewhere.

    `exact` fixes the rows of every GEMM on a GPU to the reference's number, for tests of equality in float32; the
    reference itself is always exact. Where the GPU can and need not be exact, only chosen experts
    are read.
    """
    if device.type == "cpu":
        return reference
    return Graphed(reference.ROWS) if exact else Graphed(grouped=has_grouped(device))
