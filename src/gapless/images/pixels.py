"""Pixel layouts: every Pillow mode as 8-bit RGB.

In: a loaded Pillow image of any mode. Out: uint8 [H, W, 3]. Invariants: transparent pixels become white whatever
colour hides under them; deep grey levels are scaled, never clipped.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from PIL import Image

RGB = npt.NDArray[np.uint8]
_ALPHA = ("LA", "PA", "RGBA", "RGBa", "P")
_DEEP = ("I", "F")


def to_rgb(image: Image.Image) -> RGB:
    """Convert. Raises `ValueError` for a mode that Pillow cannot convert to RGB."""
    if image.mode.startswith("I;16") or image.mode in _DEEP:
        grey = _grey(image)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode == "La":
        image = image.convert("LA")
    if image.mode in _ALPHA or "transparency" in image.info:
        return np.array(_on_white(image.convert("RGBA")))
    return np.array(image.convert("RGB"))


def _on_white(image: Image.Image) -> Image.Image:
    """Lay RGBA on white. At alpha 0 the blend is exactly white."""
    ground = Image.new("RGB", image.size, (255, 255, 255))
    ground.paste(image, mask=image.getchannel("A"))
    return ground


def _grey(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Deep grey [H, W] as 8 bits. A transparent level (16-bit PNG) becomes white.

    In bands of rows: a few hundred kilobytes of PNG may hold a hundred million levels, each eight bytes on the way.
    """
    values = np.asarray(image)
    top = 65535.0 if image.mode.startswith("I;16") else _range(values, image.mode)
    grey = np.empty(values.shape, dtype=np.uint8)
    key = image.info.get("transparency")
    for band in _bands(values):
        levels = np.nan_to_num(values[band].astype(np.float64), nan=0.0, posinf=top, neginf=0.0)
        grey[band] = np.clip(np.rint(levels * (255.0 / top)), 0, 255)
        if isinstance(key, int):
            grey[band][values[band] == key] = 255
    return grey


def _range(values: npt.NDArray[np.generic], mode: str) -> float:
    """The value that is white. Modes I and F do not say, so it is the smallest usual one that holds all values."""
    finite = (np.nan_to_num(values[band].astype(np.float64), posinf=0.0, neginf=0.0) for band in _bands(values))
    top = max((float(band.max()) for band in finite), default=0.0)
    usual = (1.0, 255.0, 65535.0) if mode == "F" else (255.0, 65535.0, 2147483647.0)
    return next((limit for limit in usual if top <= limit), top)


def _bands(values: npt.NDArray[np.generic]) -> Iterator[slice]:
    """Rows of about a million values at a time."""
    height, width = values.shape
    step = max(1, 2**20 // width)
    return (slice(first, first + step) for first in range(0, height, step))
