"""The crop rule: one view of the whole picture, and overlapping tiles of an enlarged or reduced copy.

In: upright RGB pixels and a model's crop settings. Out: crops of one size and their tiling. The tiles' inner windows
cover the copy without gap or overlap; the margins are what neighbours share. Invariant: never more tiles than
`most_tiles` says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, __version__

from gapless.errors import InvalidCheckpoint
from gapless.records import Crops

RGB = npt.NDArray[np.uint8]

CROSSING = 4
"""How many times the bytes of its crops (of most pictures' crops) a picture may have that a device cuts: whoever hands
steps to the device copies them."""
REDUCED = 16
"""How many times smaller a device makes a picture's side at most."""
TALL = 100
"""Pictures so many times higher than wide went a way of their own in some releases of Pillow before 13."""
_OLD = int(__version__.partition(".")[0]) < 13


@dataclass(frozen=True, slots=True)
class CropSpec:
    """A model's crop settings. `crop_size` and `patch` in pixels, `overlap_margin` in patches, `max_crops` in tiles.

    `max_crops` bounds the tiles of all pictures but very long ones, see `tiling`.
    """

    crop_size: int = 378
    patch: int = 14
    overlap_margin: int = 4
    max_crops: int = 12

    def __post_init__(self) -> None:
        if self.patch < 1 or self.max_crops < 1 or self.overlap_margin < 0 or self.window < 1:
            raise InvalidCheckpoint(f"{self} leaves no window between its margins")
        if self.crop_size % self.patch:
            raise InvalidCheckpoint(f"crop_size {self.crop_size} is no multiple of the patch size {self.patch}")

    @property
    def margin(self) -> int:
        """Pixels of margin on both sides together."""
        return 2 * self.overlap_margin * self.patch

    @property
    def window(self) -> int:
        """Pixels by which neighbouring tiles are apart."""
        return self.crop_size - self.margin

    def most_tiles(self, pixels: int) -> int:
        """The most tiles that a picture of up to so many pixels has; `max_crops` unless it may be very long."""
        columns = math.ceil(max(0, pixels // (self.crop_size + 1) - self.margin) / self.window)
        return max(self.max_crops, math.isqrt(self.max_crops * columns // 2))

    def bytes_of(self, tiles: int) -> int:
        """Size of the crops of a picture: the view of the whole and its tiles."""
        return (1 + tiles) * self.crop_size**2 * 3


def tiling(width: int, height: int, spec: CropSpec) -> tuple[int, int]:
    """(rows, columns) of tiles for a picture of `width` x `height` pixels.

    The Moondream rule: one tile if either side fits in a crop; else at least as many as the picture's own pixels
    need, more when the budget allows, in the picture's proportions. Where both conflict, for pictures longer than about
    14 : 1, there is one row or column of more tiles than the budget, as in the reference (10000 x 600 gets 15 of 12).
    """
    h, w, c, budget = height - spec.margin, width - spec.margin, spec.window, spec.max_crops
    if h <= c or w <= c:
        return 1, 1
    rows, cols = math.ceil(h / c), math.ceil(w / c)
    if rows * cols > budget:
        ratio = math.sqrt(budget / (rows * cols))
        rows, cols = math.floor(rows * ratio), math.floor(cols * ratio)
    else:
        rows = max(math.floor(math.sqrt(budget * h / w)), rows)
        cols = max(math.floor(math.sqrt(budget * w / h)), cols)
        if rows * cols > budget:
            rows, cols = (rows, budget // rows) if cols > rows else (budget // cols, cols)
    return max(1, rows), max(1, cols)


def crossable(width: int, height: int, spec: CropSpec) -> bool:
    """Whether a device can cut such a picture to the bytes that `cut` would give here. Not if it is so large that it
    had better not cross, or long beyond use."""
    if _OLD and height > TALL * width:
        return False
    small = 3 * width * height <= CROSSING * spec.bytes_of(spec.max_crops)
    return small and max(width, height) <= REDUCED * spec.crop_size


def cut(rgb: RGB, spec: CropSpec) -> tuple[Crops, tuple[int, int]]:
    """uint8 [H, W, 3] -> (uint8 [1 + rows * cols, crop_size, crop_size, 3], (rows, cols)).

    Crop 0 is the whole picture, then tiles row by row. Pillow's Lanczos in both directions, aspect ratio not kept.
    """
    height, width = rgb.shape[:2]
    rows, cols = tiling(width, height, spec)
    side, step = spec.crop_size, spec.window
    image = Image.fromarray(np.ascontiguousarray(rgb))
    crops = np.empty((1 + rows * cols, side, side, 3), dtype=np.uint8)
    crops[0] = _resize(image, side, side)
    if (rows, cols) == (1, 1):
        crops[1] = crops[0]
        return crops, (rows, cols)
    copy = _resize(image, step * cols + spec.margin, step * rows + spec.margin)
    for i in range(rows):
        for j in range(cols):
            crops[1 + i * cols + j] = copy[step * i : step * i + side, step * j : step * j + side]
    return crops, (rows, cols)


def _resize(image: Image.Image, width: int, height: int) -> RGB:
    return np.asarray(image.resize((width, height), Image.Resampling.LANCZOS))
