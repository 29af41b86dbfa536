"""The set of kernels for a GPU that Triton compiles for: the graphed ones, and decode steps fused."""

from __future__ import annotations

from typing import Any

import torch

from gapless.kernels.fused import Decoder, FusedStep
from gapless.kernels.graphed import Graphed
from gapless.kernels.triton.choices import Gpu, choice
from gapless.kernels.triton.decode import DTYPES, TritonStep, dims_of


class TritonKernels(Graphed):
    """See the module."""

    def fuse(self, decoder: Decoder) -> FusedStep | None:
        """See `Kernels.fuse`. None for sizes and types that the fused kernels do not take."""
        like = decoder.ln.weight
        gpu = gpu_of(like.device)
        fits = like.dtype in DTYPES and choice(dims_of(decoder), 1, like.dtype.itemsize, gpu) is not None
        return TritonStep(decoder, gpu) if fits else None


def gpu_of(device: torch.device) -> Gpu:
    """What this GPU offers."""
    found: Any = torch.cuda.get_device_properties(device)  # its stubs lack the field
    return Gpu(found.shared_memory_per_block_optin, found.major >= 9)
