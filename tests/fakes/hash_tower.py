"""The hash language with a tower: pictures encoded together, or over several steps.

What flows in and out is `gapless.models.base.PictureTower`. Features are the crops' bytes; whoever asks about a crop
that was not there gets another word.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tests.fakes.hash_model import HashModel
from tests.fakes.hash_prompts import PackingHashModel
from torch import Tensor

from gapless.kernels.reference import cut_crops

SIDE = 4


class HashTower:
    """`encoded`: how many crops each call was given, `projected`: how many pictures."""

    side = SIDE

    def __init__(self, model: HashModel) -> None:
        self.model = model
        self.encoded: list[int] = []
        self.projected: list[int] = []

    def new_features(self, count: int) -> Tensor:
        return torch.full((count, SIDE * SIDE * 3), 255, dtype=torch.uint8, device=self.model.device)

    def cut(self, pixels: Tensor, tiling: tuple[int, int], out: Tensor) -> Tensor:
        cut_crops(pixels, tiling, SIDE - 2, out)
        return out

    def encode(self, crops: Tensor, out: Tensor) -> Tensor:
        self.encoded.append(len(crops))
        return out.copy_(crops.flatten(1))

    def project(self, features: Sequence[Tensor], tilings: Sequence[tuple[int, int]]) -> list[Tensor]:
        self.projected.append(len(features))
        pairs = zip(features, tilings, strict=True)
        return [self.model.encode_picture(own.view(-1, SIDE, SIDE, 3), tiling) for own, tiling in pairs]


class TowerModel(HashModel):
    """The hash model, all of whose pictures go through its tower."""

    @property
    def tower(self) -> HashTower:
        if not hasattr(self, "_tower"):
            self._tower = HashTower(self)
        return self._tower


class PackingTowerModel(PackingHashModel, TowerModel):
    """And whose prompts go side by side."""

    tower = TowerModel.tower
