"""The picture tower: crops in, one embedding per position of the picture block out.

Crops are normalised, cut into patches, encoded one by one (they do not see one another), stitched back into one grid,
pooled to a crop's grid, joined with the whole-picture crop and projected to the decoder's width. A picture's embedding
depends on that picture's crops alone: one call is one picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gapless.kernels.base import Kernels
from gapless.models.moondream.config import VisionConfig
from gapless.models.moondream.layers import Linear, Mlp, Norm

CROPS_AT_ONCE = 13
"""Crops that go through the layers together: as many as all pictures but very long ones have. It bounds what a picture
takes beside its features, about 30 MB for each crop of Moondream 2 in bfloat16."""


@dataclass(frozen=True, slots=True)
class VisionBlock:
    """A pre-norm encoder layer."""

    ln1: Norm
    qkv: Linear
    proj: Linear
    ln2: Norm
    mlp: Mlp
    heads: int
    kernels: Kernels[Any]

    @classmethod
    def take(cls, tensors: Mapping[str, Tensor], name: str, heads: int, kernels: Kernels[Any]) -> VisionBlock:
        """Pick the layer's tensors."""
        return cls(
            ln1=Norm.take(tensors, f"{name}.ln1", kernels),
            qkv=Linear.take(tensors, f"{name}.attn.qkv", kernels),
            proj=Linear.take(tensors, f"{name}.attn.proj", kernels),
            ln2=Norm.take(tensors, f"{name}.ln2", kernels),
            mlp=Mlp.take(tensors, f"{name}.mlp", kernels),
            heads=heads,
            kernels=kernels,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """[n, P, D] -> [n, P, D]: n crops of P patches."""
        n, patches, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(n, patches, 3, self.heads, -1).unbind(2)
        x = x + self.proj(self.kernels.attend_block(q, k, v).flatten(2))
        return x + self.mlp(self.ln2(x))


class VisionTower:
    """The encoder and the projection, with their weights."""

    def __init__(self, config: VisionConfig, tensors: Mapping[str, Tensor], kernels: Kernels[Any]) -> None:
        self.config = config
        self.kernels = kernels
        self.patch_emb = Linear.take(tensors, "vision.patch_emb", kernels)
        self.pos_emb = tensors["vision.pos_emb"]
        names = (f"vision.blocks.{i}" for i in range(config.enc_n_layers))
        self.blocks = [VisionBlock.take(tensors, name, config.enc_n_heads, kernels) for name in names]
        self.post_ln = Norm.take(tensors, "vision.post_ln", kernels)
        self.proj_mlp = Mlp.take(tensors, "vision.proj_mlp", kernels)
        self.levels = pixel_levels(self.pos_emb.dtype).to(self.pos_emb.device)

    def __call__(self, crops: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Uint8 [1 + rows * columns, side, side, 3] and (rows, columns) -> [grid * grid, text dim], row by row."""
        grid = self.config.grid
        features = self.encode(crops).view(crops.shape[0], grid, grid, -1)
        local = self.kernels.adaptive_average(stitch(features[1:], tiling, self.config.overlap_margin), grid)
        return self.proj_mlp(torch.cat((features[0], local), dim=-1).flatten(0, 1))

    def encode(self, crops: Tensor) -> Tensor:
        """Uint8 [n, side, side, 3] -> [n, grid * grid, D]. Of very many crops so many at a time as fit in memory."""
        parts = [self._encode(part) for part in torch.split(crops, CROPS_AT_ONCE)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _encode(self, crops: Tensor) -> Tensor:
        x = self.patch_emb(self.levels[self.patches(crops)]) + self.pos_emb
        for block in self.blocks:
            x = block(x)
        return self.post_ln(x)

    def patches(self, crops: Tensor) -> Tensor:
        """Cut uint8 [n, side, side, 3] into int32 [n, grid * grid, 3 * patch * patch]: channel, row, column."""
        n, (grid, size) = crops.shape[0], (self.config.grid, self.config.enc_patch_size)
        cut = crops.view(n, grid, size, grid, size, 3).permute(0, 1, 3, 5, 2, 4)
        return cut.reshape(n, grid * grid, -1).int()


def pixel_levels(dtype: torch.dtype) -> Tensor:
    """What each of the 256 pixel levels becomes: / 255, - 0.5, / 0.5, each rounded to `dtype`. Made on the CPU."""
    return torch.arange(256).to(dtype).div(255).sub(0.5).div(0.5)


def stitch(tiles: Tensor, tiling: tuple[int, int], margin: int) -> Tensor:
    """Join overlapping tiles [rows * columns, g, g, D] into [rows * w + 2 m, columns * w + 2 m, D], w = g - 2 m.

    Neighbours overlap by 2 m: each gives up its outer m, except at the picture's own edge. Every cell is written once.
    """
    rows, columns = tiling
    grid = tiles.shape[1]
    step = grid - 2 * margin
    whole = tiles.new_empty((rows * step + 2 * margin, columns * step + 2 * margin, tiles.shape[-1]))
    for index, tile in enumerate(tiles):
        i, j = divmod(index, columns)
        top, bottom = 0 if i == 0 else margin, grid if i == rows - 1 else grid - margin
        left, right = 0 if j == 0 else margin, grid if j == columns - 1 else grid - margin
        whole[i * step + top : i * step + bottom, j * step + left : j * step + right] = tile[top:bottom, left:right]
    return whole
