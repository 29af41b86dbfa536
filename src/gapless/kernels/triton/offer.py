"""The set of kernels for a GPU that Triton compiles for: the graphed ones, decode steps fused, experts read as chosen.

In and out as in `kernels.base`. What the experts' kernels do not take (another dtype, odd widths) goes the graphed way.
They are compiled for all their tiles when they first meet a stack of some shape, so that no later length has to wait.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gapless.kernels.base import ExpertAdapters
from gapless.kernels.fused import Decoder, FusedStep, FusedTower, Tower
from gapless.kernels.graphed import Graphed
from gapless.kernels.region import FusedRegion, Heads
from gapless.kernels.sparse import SparseDecoder, SparseStep
from gapless.kernels.stacks import Stack
from gapless.kernels.triton import experts, pixels, tuned
from gapless.kernels.triton.beforehand import compile_steps
from gapless.kernels.triton.choices import Gpu, choice
from gapless.kernels.triton.decode import DTYPES, TritonStep, dims_of
from gapless.kernels.triton.prompts import TritonPrompts
from gapless.kernels.triton.region import TritonRegion, regular
from gapless.kernels.triton.sparse import TritonSparseStep, takes
from gapless.kernels.triton.sparse_choices import Own
from gapless.kernels.triton.sparse_room import dims_of as sparse_dims
from gapless.kernels.triton.table import Table, built_in
from gapless.kernels.triton.tiles import ROWS, tiles_of
from gapless.kernels.triton.tower import TritonTower
from gapless.kernels.triton.tower import fits as fits_tower
from gapless.kernels.triton.tuned import Card, Sizes

DEPENDENT = (9, 0)
"""From this compute capability on a kernel may start before the one before it is over."""
NARROW = (9, 0)
"""The one on which decode steps multiply FP8 as it is."""


class TritonKernels(Graphed):
    """See the module."""

    cut_crops = staticmethod(pixels.cut_crops)

    def __init__(self, grouped: bool = False) -> None:
        super().__init__(grouped=grouped)
        self.prompts = TritonPrompts()
        self._met: set[tuple[object, ...]] = set()

    def fuse(self, decoder: Decoder) -> FusedStep | None:
        """See `Kernels.fuse`. None for sizes and types that the fused kernels do not take, and cards without tiles."""
        like, dims = decoder.ln.weight, dims_of(decoder)
        table = tuned.table_for(Card.of(like.device), Sizes.decode(dims, like.dtype)) if like.dtype in DTYPES else None
        if table is None or choice(dims, 1, like.dtype.itemsize, gpu_of(like.device, table)) is None:
            return None
        return TritonStep(decoder, gpu_of(like.device, table), table.source)

    def fuse_region(self, heads: Heads) -> FusedRegion | None:
        """See `Kernels.fuse_region`. None for sizes and types that they do not take, and cards without tiles."""
        like = heads.coord.features
        if like.dtype not in DTYPES or not regular(heads):
            return None
        table = built_in(torch.cuda.get_device_capability(like.device))
        return None if table is None else TritonRegion(heads, gpu_of(like.device, table))

    def fuse_tower(self, tower: Tower) -> FusedTower | None:
        """See `Kernels.fuse_tower`. None for sizes and types that the fused kernels do not take."""
        return TritonTower(tower) if fits_tower(tower) else None

    def fuse_sparse(self, decoder: SparseDecoder) -> SparseStep | None:
        """See `Kernels.fuse_sparse`. None for sizes and types that the fused kernels do not take."""
        like = decoder.ln.weight
        gpu = sparse_gpu(like.device)
        if not takes(decoder, gpu):
            return None
        table = tuned.table_for(Card.of(like.device), Sizes.sparse(sparse_dims(decoder), like.dtype))
        if table is None or not table.sparse:
            return TritonSparseStep(decoder, gpu)
        return TritonSparseStep(decoder, gpu, Own(table.sparse), table.source)

    def compile_ahead(self, step: FusedStep | SparseStep, batches: Sequence[int], page_size: int) -> None:
        """See `Kernels.compile_ahead`."""
        if isinstance(step, TritonStep | TritonSparseStep):
            compile_steps(step, batches, page_size)

    def experts(
        self,
        x: Tensor,
        weights: Tensor,
        chosen: Tensor,
        up: Stack,
        down: Stack,
        adapters: ExpertAdapters | None = None,
    ) -> Tensor:
        """See `Kernels.experts`."""
        if not experts.fits(x, up, down):
            return super().experts(x, weights, chosen, up, down, adapters)
        self._meet(x, chosen, up, down, adapters)
        if adapters is not None:
            return experts.with_adapters(x, weights, chosen, up, down, adapters)
        return experts.experts(x, weights, chosen, up, down)

    def _meet(self, x: Tensor, chosen: Tensor, up: Stack, down: Stack, adapters: ExpertAdapters | None) -> None:
        """Run the products once with every tile: compiling and loading allocate, and take seconds."""
        key = (x.device, x.dtype, chosen.shape[1], up.values.shape, up.values.dtype, adapters is None)
        if key in self._met:
            return
        self._met.add(key)
        shared, kinds = experts.shared_memory(x.device), experts.kinds_of(up)
        for tokens in (1, 2):  # one token goes without a plan
            some, theirs = x[:1].expand(tokens, -1), chosen[:1].expand(tokens, -1)
            for rows in ROWS:
                pairs = experts.Pairs.of(theirs, up, tiles_of(rows, up.values.itemsize, shared, kinds))
                if adapters is None:
                    pairs.product(pairs.gated(some, up), down)
                else:
                    pairs.product(pairs.product(some, up)[:, : down.values.shape[2]], down)
        experts.Pairs.of(chosen[:1].expand(experts.SCAN, -1), up)  # the plan of a long prompt


def sparse_gpu(device: torch.device) -> Gpu:
    """What this GPU offers to steps whose tiles stand in no table of choices."""
    capability = torch.cuda.get_device_capability(device)
    return Gpu(experts.shared_memory(device), capability >= DEPENDENT, {}, narrow=capability == NARROW)


def gpu_of(device: torch.device, table: Table) -> Gpu:
    """What this GPU offers, with a table for it."""
    dependent = torch.cuda.get_device_capability(device) >= DEPENDENT
    return Gpu(experts.shared_memory(device), dependent, table.decode)
