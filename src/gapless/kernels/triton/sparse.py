"""A decode step with scaled attention and experts, in three to five kernels a layer, over memory that stays.

In: as `kernels.sparse.SparseStep`. Out: the same. Everything a step needs between its kernels is allocated once, for
the most rows there may be, so a CUDA graph can hold a step, and steps of one stream share it. Which experts are read is
found out on the device. One row goes through other kernels (`lone_jit`) than more do (`sparse_jit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

import torch
from torch import Tensor

from gapless.kernels.sparse import Mixture, SparseDecoder
from gapless.kernels.stacks import FP8
from gapless.kernels.triton import experts
from gapless.kernels.triton.choices import MOST_ROWS, Gpu
from gapless.kernels.triton.decode import DTYPES, PAGES
from gapless.kernels.triton.keys import settle
from gapless.kernels.triton.sparse_choices import NONE, Lone, Own, Sparse, choice
from gapless.kernels.triton.sparse_lone import OneRow
from gapless.kernels.triton.sparse_many import ManyRows
from gapless.kernels.triton.sparse_room import Room, dims_of, packed
from gapless.kernels.triton.sparse_scan import Reach, owns_of


def takes(decoder: SparseDecoder, gpu: Gpu) -> bool:
    """Whether there are kernels for a decoder's sizes and types; mixtures are all of one shape, as dense layers are."""
    like = decoder.ln.weight
    mixtures = [block.mlp for block in decoder.blocks if isinstance(block.mlp, Mixture)]
    return (
        like.dtype in DTYPES
        and choice(dims_of(decoder), 1, like.dtype.itemsize, gpu) is not None
        and all(experts.fits(like, mlp.up, mlp.down) for mlp in mixtures)
    )


class TritonSparseStep:
    """See the module. `launches` counts kernels, so that a test can tell that they ran."""

    def __init__(self, decoder: SparseDecoder, gpu: Gpu, own: Own = NONE, source: str = "built in for experts") -> None:
        settle()
        self._own, self.source = own, source
        self.dims = dims_of(decoder)
        self.dtype = decoder.ln.weight.dtype
        self.launches = 0
        self._gpu = gpu
        self._layers = [packed(block) for block in decoder.blocks]
        blocks = [layer.block for layer in self._layers]
        self._weights = SparseDecoder(blocks, decoder.ln, decoder.head, decoder.heads, decoder.cos, decoder.sin)
        self._room = Room(self.dims, self._layers, self.dtype)

    @property
    def gpu(self) -> Gpu:
        """What it was made for."""
        return self._gpu

    @property
    def weights(self) -> SparseDecoder:
        """See `SparseStep`."""
        return self._weights

    @property
    def taken(self) -> Tensor:
        """See `SparseStep`."""
        return self._room.taken

    def with_choices(self, choices: Mapping[int, Sparse]) -> TritonSparseStep:
        """The same step with other tiles: over the same memory, so one of them runs at a time."""
        other = copy(self)
        other._own = Own(choices)
        return other

    def poison(self) -> None:
        """Put NaN, or the largest number there is, wherever a step leaves something for its own next kernels."""
        self._room.poison()

    def choice(self, rows: int) -> Sparse | None:
        """The tiles of a step of that many rows."""
        return choice(self.dims, rows, self.dtype.itemsize, self._gpu, self._own)

    def fits(self, rows: int, keys: Tensor) -> bool:
        """See `SparseStep.fits`."""
        return self.choice(rows) is not None and keys.shape[-2] in PAGES and keys.dtype in (self.dtype, FP8)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        tables: Tensor,
        keys: Tensor,
        values: Tensor,
        scales: Tensor | None = None,
    ) -> Tensor:
        """See `SparseStep.forward`."""
        step = self._of(x.shape[0])
        owns = owns_of(keys, values, scales, self._room.taken)
        hidden = step.forward(x.contiguous(), Reach(positions.contiguous(), tables.contiguous()), self._layers, owns)
        self.launches += step.launches
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """See `SparseStep.logits`."""
        pieces = []
        for piece in torch.split(hidden, MOST_ROWS):
            step = self._of(len(piece))
            pieces.append(step.logits(piece.contiguous()))
            self.launches += step.launches
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _of(self, rows: int) -> ManyRows | OneRow:
        found = self.choice(rows)
        if found is None:
            raise ValueError(f"a step of {rows} rows and {self.dims} cannot be computed; ask `fits` first")
        if isinstance(found, Lone):
            return OneRow(self.weights, self.dims, self._room, found)
        return ManyRows(self.weights, self.dims, self._room, found, rows)
