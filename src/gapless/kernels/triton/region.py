"""Values of a step's rows: one kernel that embeds them, three that read them, over memory that stays.

In and out as `kernels.region.FusedRegion`. Both decoders lie together: a step reads them in one pass, without the one
that no row wants. What is needed between the kernels is allocated once, for the most rows there may be.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.kernels.fused import Affine
from gapless.kernels.region import Head, Heads
from gapless.kernels.triton import region_jit
from gapless.kernels.triton.choices import MOST_ROWS, Gpu, Tile, padded, tiles_of_region

TOKENS, COLUMNS = 16, 64
"""Of a program of `embed`."""


def regular(heads: Heads) -> bool:
    """Whether tiles of the smallest sizes divide everything, and both kinds have as many bins, a power of two."""
    coord, size = heads.both
    inner, bins = len(coord.fc1.bias), len(coord.values)
    sizes = [bins, inner, len(coord.encoder.bias), *(head.features.shape[1] for head in heads.both)]
    alike = len(size.fc1.bias) == inner and len(size.values) == bins and bins & (bins - 1) == 0
    return alike and not any(number % 16 for number in sizes) and not any(number % 64 for number in sizes[:3])


class TritonRegion:
    """See the module. `launches` counts kernels, so that a test can tell that they ran."""

    def __init__(self, heads: Heads, gpu: Gpu) -> None:
        (self._fc1, self._bias1), (self._fc2, self._bias2) = (
            (torch.cat([head.fc1.weight for head in heads.both]), torch.cat([head.fc1.bias for head in heads.both])),
            (torch.cat([head.fc2.weight for head in heads.both]), torch.cat([head.fc2.bias for head in heads.both])),
        )
        self._heads = self._packed(heads)
        self._gpu = gpu
        self.launches = 0
        self._inner, self._bins = len(heads.coord.fc1.bias), len(heads.coord.values)
        device, dtype = self._fc1.device, self._fc1.dtype
        self._thought = torch.zeros(2 * MOST_ROWS * self._inner, dtype=dtype, device=device)
        self._parts = torch.zeros(4 * MOST_ROWS * len(self._bias2), device=device)
        self._scores = torch.zeros(MOST_ROWS * len(self._bias2), device=device)
        self._arrived = torch.zeros(len(self._bias2), dtype=torch.int32, device=device)

    @property
    def heads(self) -> Heads:
        """See `FusedRegion`."""
        return self._heads

    def fits(self, rows: int) -> bool:
        """See `FusedRegion`."""
        return rows <= max(self._gpu.choices, default=0)

    def embed(self, ids: Tensor, values: Tensor, words: Tensor, size_id: int) -> Tensor:
        """See `FusedRegion`."""
        rows, dim = len(ids), words.shape[1]
        x = words.new_empty(rows, dim)
        coord, size = self._heads.both
        wide = [head.features.shape[1] for head in (coord, size)]
        self.launches += 1
        region_jit.embed[(-(-rows // TOKENS), dim // COLUMNS)](
            ids, values.contiguous(), words, _encoder(coord), _encoder(size), x, rows, size_id, dim, *wide, TOKENS,
            COLUMNS, min(64, *(number & -number for number in wide)), num_warps=4,
        )  # fmt: skip
        return x

    def values(self, hidden: Tensor, wanted: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `FusedRegion`."""
        rows, dim = hidden.shape
        up, down = tiles_of_region(dim, self._inner, self._bins, rows, self._fc1.dtype.itemsize, self._gpu)
        bm, everything = padded(rows), wanted is None
        self.launches += 3
        region_jit.think[(2 * self._inner // up.bn,)](
            hidden.contiguous(), wanted, self._fc1, self._bias1, self._thought, rows, dim, self._inner, bm,
            *_shape(up), everything, num_warps=up.warps,
        )  # fmt: skip
        region_jit.score[(3 * self._bins // down.bn * down.splits,)](
            self._thought, wanted, self._fc2, self._bias2, self._parts, self._arrived, self._scores, rows, self._inner,
            self._bins, down.splits, bm, *_shape(down), everything, num_warps=down.warps,
        )  # fmt: skip
        coords, sizes = (
            torch.empty(shape, dtype=torch.float32, device=hidden.device) for shape in ((rows,), (rows, 2))
        )
        coord, size = self._heads.both
        region_jit.read[(rows, 3)](
            self._scores, wanted, coord.values, size.values, coords, sizes, self._bins, everything, num_warps=4
        )
        return coords, sizes

    def _packed(self, heads: Heads) -> Heads:
        """The heads as views."""
        fc1, fc2 = ([len(head.fc1.bias) for head in heads.both], [len(head.fc2.bias) for head in heads.both])
        parts = (torch.split(self._fc1, fc1), torch.split(self._bias1, fc1), torch.split(self._fc2, fc2),
                 torch.split(self._bias2, fc2))  # fmt: skip
        views = zip(heads.both, *parts, strict=True)
        packed = [
            Head(head.features, head.encoder, Affine(w1, b1), Affine(w2, b2), head.values)
            for head, w1, b1, w2, b2 in views
        ]
        return Heads(*packed)


def _encoder(head: Head) -> tuple[Tensor, Tensor, Tensor]:
    return head.features, head.encoder.weight, head.encoder.bias


def _shape(tile: Tile) -> tuple[int, int, int, int]:
    return tile.bn, tile.bk, tile.stages, tile.mode
