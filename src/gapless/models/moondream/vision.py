"""The picture tower: crops in, one embedding per position of the picture block out.

Crops are normalised, cut into patches, encoded one by one (they do not see one another), stitched back into one grid,
pooled to a crop's grid, joined with the whole-picture crop and projected to the decoder's width. A picture's embedding
depends on that picture's crops alone: in plain kernels one call is one picture. Where kernels have a tower of their
own, crops of several pictures go through together, and how many they are shows in how sums are rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gapless.kernels.base import Kernels
from gapless.kernels.fused import Affine, Tower, TowerBlock
from gapless.models.moondream.config import VisionConfig
from gapless.models.moondream.layers import Linear, Mlp, Norm

CROPS_AT_ONCE = 13
"""Crops that go through the layers together: as many as all pictures but very long ones have. It bounds what a picture
takes beside its features, about 30 MB for each crop of Moondream 2 in bfloat16."""
FUSED_AT_ONCE = 24
"""The same for a tower of the kernels' own, which takes about 17 MB a crop."""


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

    def plain(self) -> TowerBlock:
        """Its weights."""
        parts = (self.ln1, self.qkv, self.proj, self.ln2, self.mlp.fc1, self.mlp.fc2)
        return TowerBlock(*(_affine(part) for part in parts))

    def packed(self, block: TowerBlock) -> VisionBlock:
        """The same block, reading a fused tower's weights."""
        parts = (block.qkv, block.proj, block.fc1, block.fc2)
        qkv, proj, fc1, fc2 = (Linear(of.weight, of.bias, self.kernels) for of in parts)
        return replace(self, qkv=qkv, proj=proj, mlp=Mlp(fc1, fc2, self.kernels))


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
        self.fused = kernels.fuse_tower(self._plain())
        if self.fused is not None:
            laid = self.fused.weights.blocks
            self.blocks = [block.packed(own) for block, own in zip(self.blocks, laid, strict=True)]

    def _plain(self) -> Tower:
        config, (inner, out) = self.config, (self.proj_mlp.fc1, self.proj_mlp.fc2)
        return Tower(
            levels=self.levels,
            patches=_affine(self.patch_emb),
            positions=self.pos_emb,
            blocks=[block.plain() for block in self.blocks],
            ln=_affine(self.post_ln),
            inner=_affine(inner),
            out=_affine(out),
            heads=config.enc_n_heads,
            grid=config.grid,
            size=config.enc_patch_size,
            margin=config.overlap_margin,
        )

    def __call__(self, crops: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Crops uint8 [1 + rows * columns, side, side, 3], or uncut pixels [H, W, 3], and (rows, columns) ->
        [grid * grid, text dim], row by row."""
        if crops.dim() == 3:
            crops = self.cut(crops, tiling)
        return self.project([self.encode(crops)], [tiling])[0]

    @property
    def side(self) -> int:
        """Pixels of a crop's side."""
        return self.config.crop_size

    def new_features(self, count: int) -> Tensor:
        """Room for what `encode` makes of so many crops, not filled: [count, grid * grid, D]."""
        return self.pos_emb.new_empty(count, *self.pos_emb.shape[1:])

    def cut(self, pixels: Tensor, tiling: tuple[int, int], out: Tensor | None = None) -> Tensor:
        """Uint8 [H, W, 3] -> crops uint8 [1 + rows * columns, side, side, 3], into `out` if it is given."""
        side, shared = self.side, 2 * self.config.overlap_margin * self.config.enc_patch_size
        out = pixels.new_empty(1 + tiling[0] * tiling[1], side, side, 3) if out is None else out
        self.kernels.cut_crops(pixels, tiling, side - shared, out)
        return out

    def project(self, features: Sequence[Tensor], tilings: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Of each picture [1 + rows * columns, grid * grid, D] and (rows, columns) -> [grid * grid, text dim] each."""
        if self.fused is not None:
            return self.fused.project(features, tilings)
        return [self._project(own, tiling) for own, tiling in zip(features, tilings, strict=True)]

    def _project(self, features: Tensor, tiling: tuple[int, int]) -> Tensor:
        grid = self.config.grid
        features = features.view(features.shape[0], grid, grid, -1)
        local = self.kernels.adaptive_average(stitch(features[1:], tiling, self.config.overlap_margin), grid)
        return self.proj_mlp(torch.cat((features[0], local), dim=-1).flatten(0, 1))

    def encode(self, crops: Tensor, out: Tensor | None = None) -> Tensor:
        """Uint8 [n, side, side, 3] -> [n, grid * grid, D], in `out` if it is given. Of very many crops so many at a
        time as fit in memory."""
        out = self.new_features(crops.shape[0]) if out is None else out
        most = CROPS_AT_ONCE if self.fused is None else FUSED_AT_ONCE
        for part, into in zip(torch.split(crops, most), torch.split(out, most), strict=True):
            if self.fused is not None:
                self.fused.encode(part, into)
            else:
                into.copy_(self._encode(part))
        return out

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


def _affine(part: Linear | Norm) -> Affine:
    return Affine(part.weight, part.bias)


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
