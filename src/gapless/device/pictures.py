"""Pictures of a step, encoded together: their crops side by side in memory that stays, so that graphs can take them.

In: pictures as they arrive on the device, cut or uncut. Out: their embeddings. Crops of several pictures share a launch
as far as `MOST_CROPS` go; a launch is filled up to the next of `CROP_BUCKETS` with whatever crops were there before,
which nobody asks about. A picture of more crops than that goes through alone, without a graph. One that is encoded over
several steps is held meanwhile, one at a time: its crops, and the features so far.

Invariant: features are projected, or held, before the next launch overwrites them, in stream order (I1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gapless.errors import InvariantBroken
from gapless.models.base import Model, PictureTower

CROP_BUCKETS = (2, 4, 5, 7, 9, 11, 13, 16, 18)
"""Numbers of crops that are captured: those of usual pictures (2, 5, 7, 9, 13), and of some together."""
MOST_CROPS = CROP_BUCKETS[-1]

Tiling = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shown:
    """Crops `begin`..`end` - 1 of a picture of `tiling` (rows, columns). `pixels` uint8: its crops [n, side, side, 3],
    or uncut [H, W, 3]; None if those before `begin` were encoded earlier, since then they are here. `later`: what is
    made of them is kept until all of the picture is wanted."""

    pixels: Tensor | None
    tiling: Tiling
    begin: int
    end: int
    later: bool = False

    @property
    def whole(self) -> bool:
        """It is all here, and wanted now."""
        return self.begin == 0 and not self.later

    @property
    def count(self) -> int:
        """All crops of the picture."""
        return 1 + self.tiling[0] * self.tiling[1]


@dataclass(frozen=True, slots=True)
class Held:
    """A picture that is encoded over several steps: `crops` uint8 [n, side, side, 3], `features` of those so far."""

    crops: Tensor
    features: Tensor


@dataclass(frozen=True, slots=True)
class _Placed:
    """`count` crops in the batch, the next of `shown`; `held` if these are not all of the picture, and `at` in it."""

    count: int
    shown: Shown
    held: Held | None = None
    at: int = 0


class CropBatch:
    """`crops` uint8 [MOST_CROPS, side, side, 3] and `features` [MOST_CROPS, patches, any] on the device."""

    def __init__(self, model: Model, tower: PictureTower) -> None:
        self._tower = tower
        side = tower.side
        self.crops = torch.zeros((MOST_CROPS, side, side, 3), dtype=torch.uint8, device=model.device)
        self.features = tower.new_features(MOST_CROPS)
        self._held: Held | None = None
        self._placed: list[_Placed] = []
        self._used = 0

    def encode(self, count: int) -> None:
        """The first `count` crops -> their features."""
        self._tower.encode(self.crops[:count], self.features[:count])

    def of(self, pictures: Iterable[Shown], encode: Callable[[int], None], read: Callable[[], None]) -> list[Tensor]:
        """Embeddings of each picture that is wanted now. `encode` enqueues `self.encode` of a bucket;
        `read` is called when what reads a picture's own memory is enqueued, before the next is taken from `pictures`.
        """
        done: list[Tensor] = []
        self._placed, self._used = [], 0  # a call that failed leaves nothing to the next
        for shown in pictures:
            if shown.whole and self._used + shown.count > MOST_CROPS:
                done += self._flush(encode)
            if not shown.whole:
                done += self._part(shown, encode)
            elif shown.count > MOST_CROPS:
                done.append(self._alone(shown))
            else:
                self._put(_Placed(shown.count, shown))
                self._cut(shown, self.crops[self._used - shown.count : self._used])
            if shown.pixels is not None:
                read()
        return done + self._flush(encode)

    def _part(self, shown: Shown, encode: Callable[[int], None]) -> list[Tensor]:
        """Place some crops of a picture; what was in their way is flushed, and embedded."""
        if shown.begin == 0:
            crops = self.crops.new_empty((shown.count, *self.crops.shape[1:]))
            self._cut(shown, crops)
            self._held = Held(crops, self._tower.new_features(shown.count))
        held, at, done = self._held, shown.begin, list[Tensor]()
        if held is None or len(held.crops) != shown.count:
            raise InvariantBroken(f"crops {shown.begin} to {shown.end} of a picture go on from none that is here")
        while True:
            if self._used == MOST_CROPS:
                done += self._flush(encode)
            count = min(shown.end - at, MOST_CROPS - self._used)
            self._put(_Placed(count, shown, held, at))
            self.crops[self._used - count : self._used] = held.crops[at : at + count]
            at += count
            if at == shown.end:
                self._held = held if shown.later else None
                return done

    def _put(self, placed: _Placed) -> None:
        self._placed.append(placed)
        self._used += placed.count

    def _flush(self, encode: Callable[[int], None]) -> list[Tensor]:
        """Encode what was placed; embeddings of what is whole by that."""
        if self._used:
            encode(bucket_of(self._used))
        features, tilings = [], []
        fresh = torch.split(self.features[: self._used], [placed.count for placed in self._placed])
        for placed, own in zip(self._placed, fresh, strict=True):
            if placed.held is not None:
                placed.held.features[placed.at : placed.at + placed.count] = own
            if placed.at + placed.count == placed.shown.count and not placed.shown.later:
                features.append(own if placed.held is None else placed.held.features)
                tilings.append(placed.shown.tiling)
        self._placed, self._used = [], 0
        return self._tower.project(features, tilings) if features else []

    def _cut(self, shown: Shown, into: Tensor) -> None:
        assert shown.pixels is not None
        if shown.pixels.dim() == 3:
            self._tower.cut(shown.pixels, shown.tiling, into)
        else:
            into.copy_(shown.pixels)

    def _alone(self, shown: Shown) -> Tensor:
        """A picture of more crops than fit."""
        crops = self.crops.new_empty((shown.count, *self.crops.shape[1:]))
        self._cut(shown, crops)
        features = self._tower.encode(crops, self._tower.new_features(len(crops)))
        return self._tower.project([features], [shown.tiling])[0]


def bucket_of(crops: int) -> int:
    """The smallest bucket that holds so many."""
    for bucket in CROP_BUCKETS:
        if crops <= bucket:
            return bucket
    raise InvariantBroken(f"{crops} crops are encoded at once, but the largest bucket holds {MOST_CROPS}")
