"""Pictures of a step, encoded together: their crops side by side in memory that stays, so that graphs can take them.

In: pictures as they arrive on the device, cut or uncut. Out: their embeddings. Crops of several pictures share a launch
as far as `MOST_CROPS` go; a launch is filled up to the next of `CROP_BUCKETS` with whatever crops were there before,
which nobody asks about. A picture of more crops than that goes through alone, without a graph.

Invariant: features are projected before the next launch overwrites them, in stream order (I1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from gapless.errors import InvariantBroken
from gapless.models.base import Model, PictureTower

CROP_BUCKETS = (2, 4, 5, 7, 9, 11, 13, 16, 18)
"""Numbers of crops that are captured: those of usual pictures (2, 5, 7, 9, 13), and of some together."""
MOST_CROPS = CROP_BUCKETS[-1]

Tiling = tuple[int, int]
Shown = tuple[Tensor, Tiling]
"""Crops uint8 [1 + rows * columns, side, side, 3], or uncut pixels uint8 [H, W, 3]; and (rows, columns)."""


class CropBatch:
    """`crops` uint8 [MOST_CROPS, side, side, 3] and `features` [MOST_CROPS, patches, any] on the device."""

    def __init__(self, model: Model, tower: PictureTower) -> None:
        self._tower = tower
        side = tower.side
        self.crops = torch.zeros((MOST_CROPS, side, side, 3), dtype=torch.uint8, device=model.device)
        self.features = tower.new_features(MOST_CROPS)

    def encode(self, count: int) -> None:
        """The first `count` crops -> their features."""
        self._tower.encode(self.crops[:count], self.features[:count])

    def of(self, pictures: Iterable[Shown], encode: Callable[[int], None], read: Callable[[], None]) -> list[Tensor]:
        """Embeddings of each picture. `encode` enqueues `self.encode` of a bucket; `read` is called when what reads a
        picture's own memory is enqueued, before the next is taken from `pictures`."""
        done: list[Tensor] = []
        waiting: list[tuple[int, Tiling]] = []
        used = 0

        def flush() -> None:
            nonlocal used
            if waiting:
                encode(bucket_of(used))
                ends = torch.split(self.features[:used], [count for count, _ in waiting])
                done.extend(self._tower.project(ends, [tiling for _, tiling in waiting]))
            waiting.clear()
            used = 0

        for pixels, tiling in pictures:
            count = 1 + tiling[0] * tiling[1]
            if used + count > MOST_CROPS:
                flush()
            if count > MOST_CROPS:
                done.append(self._alone(pixels, tiling))
            else:
                self._place(pixels, tiling, self.crops[used : used + count])
                waiting.append((count, tiling))
                used += count
            read()
        flush()
        return done

    def _place(self, pixels: Tensor, tiling: Tiling, into: Tensor) -> None:
        if pixels.dim() == 3:
            self._tower.cut(pixels, tiling, into)
        else:
            into.copy_(pixels)

    def _alone(self, pixels: Tensor, tiling: Tiling) -> Tensor:
        """A picture of more crops than fit."""
        crops = pixels.new_empty((1 + tiling[0] * tiling[1], *self.crops.shape[1:]))
        self._place(pixels, tiling, crops)
        features = self._tower.encode(crops, self._tower.new_features(len(crops)))
        return self._tower.project([features], [tiling])[0]


def bucket_of(crops: int) -> int:
    """The smallest bucket that holds so many."""
    for bucket in CROP_BUCKETS:
        if crops <= bucket:
            return bucket
    raise InvariantBroken(f"{crops} crops are encoded at once, but the largest bucket holds {MOST_CROPS}")
