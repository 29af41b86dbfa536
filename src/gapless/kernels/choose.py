"""Which set of kernels a model is given: decided once, by the device its weights are on."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

from gapless.kernels import reference
from gapless.kernels.base import Kernels
from gapless.kernels.graphed import Graphed
from gapless.kernels.grouped import has_grouped
from gapless.kernels.rows import Columns, Marks, RowKernels


def choose(device: torch.device, exact: bool = False, plain: bool = False) -> Kernels[Any]:
    """The reference on a CPU; on a GPU the ones in Triton, where that is installed, else the graphed ones.

    `exact` fixes the rows of every GEMM on a GPU to the reference's number, for tests of equality in float32; the
    reference itself is always exact. Where the GPU can and need not be exact, only chosen experts are read: by Triton's
    kernels, which are looked for here alone, else in torch's grouped product. `plain`: torch alone, whatever there is.
    """
    if device.type == "cpu":
        return reference
    if exact:
        return Graphed(reference.ROWS)
    return _triton(device) if find_spec("triton") and not plain else Graphed(grouped=has_grouped(device))


def name_of(kernels: Kernels[Any]) -> str:
    """Whose work a set is: torch or Triton."""
    return "torch" if kernels is reference or type(kernels) is Graphed else "Triton"


def rows_for(device: torch.device, columns: Columns, marks: Marks) -> RowKernels | None:
    """Kernels for rows that are laid out so; None where there are none, on a CPU and without Triton."""
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    from gapless.kernels.triton.rows import TritonRows
    from gapless.kernels.triton.usable import usable

    return TritonRows(columns, marks) if usable(device) else None


def _triton(device: torch.device) -> Kernels[Any]:
    from gapless.kernels.triton.offer import TritonKernels
    from gapless.kernels.triton.usable import usable

    grouped = has_grouped(device)
    return TritonKernels(grouped=grouped) if usable(device) else Graphed(grouped=grouped)
