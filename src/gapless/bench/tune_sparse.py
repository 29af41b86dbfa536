"""What a step with experts in it takes with one choice of tiles or another, on the GPU, and whether it is right.

In: dimensions, a number format, a GPU. Out: see `Trial`, and `tune_trial` for how it is timed and checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from gapless.bench.tune_scene import PAGE, Scene
from gapless.bench.tune_sparse_scene import sparse_decoder_of, sparse_scene
from gapless.bench.tune_trial import CONTEXT, MEMORY_SHARE, StepTrial
from gapless.kernels.triton.choices import Gpu
from gapless.kernels.triton.compiling import Compilers, Job, sparse_step
from gapless.kernels.triton.sparse import TritonSparseStep
from gapless.kernels.triton.sparse_choices import Sparse, SparseDims

DENSE, MIXED = 1, 3
"""Layers of a trial."""
LENGTH = 4 * CONTEXT


class SparseTrial(StepTrial[Sparse]):
    """See `Trial`. `rows`: those that there will be."""

    def __init__(
        self,
        dims: SparseDims,
        dtype: torch.dtype,
        device: torch.device,
        gpu: Gpu,
        compilers: Compilers,
        rows: Sequence[int],
    ) -> None:
        free, _ = torch.cuda.mem_get_info(device)
        mixed = max(1, min(MIXED, int(MEMORY_SHARE * free / layer_bytes(dims, max(rows), dtype.itemsize)) - DENSE))
        step = TritonSparseStep(sparse_decoder_of(dims, DENSE, mixed, LENGTH, dtype, device), gpu)
        super().__init__(step, device, compilers)
        self._gpu, self._weights = gpu, step.weights
        self._make = partial(sparse_decoder_of, dims, 1, 1, LENGTH, dtype)

    def job(self, rows: int, choice: Sparse) -> Job:
        """See `StepTrial`."""
        return Job(partial(sparse_step, self._make, self._gpu, rows, choice), self._capability, rows, PAGE)

    def scene(self, rows: int) -> Scene:
        """See `StepTrial`."""
        return sparse_scene(self._weights, rows, CONTEXT)


def layer_bytes(dims: SparseDims, rows: int, itemsize: int) -> int:
    """What a layer takes while it is made: its weights, experts twice, and the keys and values of so many rows."""
    experts = 3 * dims.experts * dims.dim * dims.expert_inner
    weights = itemsize * (4 * dims.dim**2 + 2 * dims.dim * dims.ff + 2 * experts)
    return weights + 2 * itemsize * rows * (CONTEXT + CONTEXT // 8 + PAGE) * dims.dim
