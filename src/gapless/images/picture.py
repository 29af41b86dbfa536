"""A picture source made ready for the vision tower.

In: a path, bytes, a Pillow image or a numpy array, and the model's crop settings. Out: `records.Picture`, its crops cut
here, or left to a device that cuts them to the same bytes. Invariant: the digest covers all that decides the crops, so
equal digests mean equal crops.
"""

from __future__ import annotations

import hashlib
from dataclasses import astuple, replace

import numpy as np

from gapless.config import ImageLimits
from gapless.images.crops import CropSpec, crossable, cut, tiling
from gapless.images.decode import RGB, PictureSource, load_picture
from gapless.records import Picture

DEFAULT_LIMITS = ImageLimits()


def prepare(
    source: PictureSource, spec: CropSpec, limits: ImageLimits = DEFAULT_LIMITS, device_cuts: bool = False
) -> Picture:
    """Decode, turn upright, cut; where `device_cuts`, only what no device can. Raises `InvalidImage` when the source
    cannot be read or exceeds `limits`."""
    rgb = load_picture(source, limits)
    return from_pixels(rgb, spec, digest(rgb, spec), device_cuts)


def from_pixels(rgb: RGB, spec: CropSpec, digest: str, device_cuts: bool = False) -> Picture:
    """Cut upright pixels uint8 [H, W, 3], whose `digest` is that of the function of that name; or leave that to the
    device, if it can."""
    height, width = rgb.shape[:2]
    if device_cuts and crossable(width, height, spec):
        return Picture(digest, rgb, tiling(width, height, spec), width, height)
    crops, tiles = cut(rgb, spec)
    return Picture(digest, crops, tiles, width, height)


def cut_here(picture: Picture, spec: CropSpec) -> Picture:
    """The same picture with its crops cut."""
    return replace(picture, crops=cut(picture.crops, spec)[0]) if picture.uncut else picture


def mirrored(picture: Picture) -> Picture:
    """What `prepare` makes of the same pixels with left and right exchanged, under a digest of its own.

    Made from the crops: the copy that tiles are cut from is mirrored by mirroring each and exchanging their columns.
    """
    name = hashlib.sha256(f"mirrored {picture.digest}".encode()).hexdigest()
    if picture.uncut:
        return replace(picture, digest=name, crops=np.ascontiguousarray(picture.crops[:, ::-1]))
    rows, cols = picture.tiling
    tiles = picture.crops[1:].reshape(rows, cols, *picture.crops.shape[1:])[:, ::-1]
    crops = np.concatenate((picture.crops[:1], tiles.reshape(picture.crops[1:].shape)))[:, :, ::-1]
    return replace(picture, digest=name, crops=np.ascontiguousarray(crops))


def digest(rgb: RGB, spec: CropSpec) -> str:
    """SHA-256 (hex) over the crop settings, the shape and the upright RGB pixels uint8 [H, W, 3]."""
    header = f"{astuple(spec)} {rgb.shape}\n".encode()
    state = hashlib.sha256(header)
    state.update(np.ascontiguousarray(rgb).data)
    return state.hexdigest()
