"""Any picture a user hands in, as upright 8-bit RGB pixels.

In: a path, bytes, a Pillow image or a numpy array. Out: uint8 [H, W, 3]. Every form of one picture gives the same
pixels: orientation applied, transparency laid on white, first frame of an animation, 16 bits scaled to 8.
Invariants: the format is judged by content, never by name; pixels are counted in the header before any is decoded;
a picture that cannot be decoded whole is refused, never filled up; no state of Pillow's is changed, so threads may
share this.
"""

from __future__ import annotations

import io
import os
import stat
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from gapless.config import ImageLimits
from gapless.errors import InvalidImage, shown
from gapless.images.formats import accepted, name_of, size_in_header
from gapless.images.pixels import to_rgb
from gapless.locks import Lock

RGB = npt.NDArray[np.uint8]
PictureSource = str | os.PathLike[str] | bytes | bytearray | memoryview | Image.Image | npt.NDArray[np.uint8]

_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


_lazy = Lock()
"""Pillow decodes on first use, and two threads may hand in the same image."""


def load_picture(source: PictureSource, limits: ImageLimits) -> RGB:
    """Return upright RGB pixels, uint8 [H, W, 3], owned by the caller. Raises `InvalidImage` with the remedy."""
    if isinstance(source, np.ndarray):
        return _from_image(_from_array(source, limits), limits)
    if isinstance(source, Image.Image):
        with _lazy:
            _load(source, limits)
        return _from_image(source, limits)
    data = encoded(source, limits)
    assert data is not None
    return _from_image(_open(data, limits), limits)


def encoded(source: PictureSource, limits: ImageLimits) -> bytes | None:
    """The bytes of a picture that is still to be decoded; None for one that came as pixels. Of a file of more bytes
    than the limits allow, one more than they do, which `load_picture` then refuses. Raises `InvalidImage`."""
    if isinstance(source, np.ndarray | Image.Image):
        return None
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str | os.PathLike):
        return _read(source, limits)
    raise _no_picture(source)


def _no_picture(source: object) -> InvalidImage:
    kind = type(source).__name__
    return _refuse(f"a picture must be a path, bytes, a PIL image or a numpy array [H, W, 3] of uint8, not {kind}")


def _refuse(message: str) -> InvalidImage:
    return InvalidImage(message, param="image")


def _read(path: str | os.PathLike[str], limits: ImageLimits) -> bytes:
    """Read a regular file. Opened without blocking, so that a FIFO put there meanwhile cannot hang the caller."""
    name = os.fspath(path)
    if not isinstance(name, str):
        raise _refuse(f"a picture's path must be text, not {type(name).__name__}")
    scheme = name[:12].lower()
    if scheme.startswith(("http://", "https://", "data:", "file:")):
        raise _refuse(f"{shown(name)} is a URL, not a path; nothing is fetched here, pass the picture's bytes")
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        _regular(os.stat(name), name)  # noqa: PTH116 - a device must not even be opened
        with os.fdopen(os.open(name, flags), "rb") as file:
            _regular(os.fstat(file.fileno()), name)
            return file.read(limits.max_bytes + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _refuse(f"cannot read the picture {shown(name)}: {reason}") from error


def _regular(info: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise _refuse(f"{shown(name)} is not a regular file (a folder, device or pipe); pass a picture file")


def _open(data: bytes, limits: ImageLimits) -> Image.Image:
    """Open by content. `Image.open` is passed by: it judges the size by a global limit and warns through a global."""
    if not data:
        raise _refuse("the picture is empty (0 bytes)")
    if len(data) > limits.max_bytes:
        raise _refuse(f"the picture's file is over the limit of {limits.max_bytes} bytes; make it smaller")
    size = size_in_header(data)
    if size is not None:
        _check_size(size, limits)
    failed: Exception | None = None
    for _, factory, accept in accepted():
        verdict = True if accept is None else accept(data[:16])
        if not verdict or isinstance(verdict, str):  # a sentence says why the reader cannot work
            continue
        try:
            image = factory(io.BytesIO(data), "")
        except MemoryError:
            raise
        except Exception as error:  # readers meet hostile bytes with anything
            failed = error
            continue
        return image
    names = ", ".join(name for name, _, _ in accepted())
    if failed is not None:
        raise _refuse(f"the {name_of(data)} picture is damaged or cut off ({failed}); accepted are {names}") from failed
    raise _refuse(f"the picture is {name_of(data)}, which cannot be read here; accepted are {names}")


def _from_array(array: npt.NDArray[Any], limits: ImageLimits) -> Image.Image:
    shape = array.shape
    if array.dtype != np.uint8:
        raise _refuse(
            f"a numpy picture must be uint8, not {array.dtype}; scale it to 0..255 and call .astype(numpy.uint8)"
        )
    if len(shape) == 3 and shape[0] in (1, 3, 4) and shape[2] not in (3, 4):
        raise _refuse(f"a numpy picture must be [H, W, 3], not {list(shape)}; call .transpose(1, 2, 0)")
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (3, 4)):
        raise _refuse(f"a numpy picture must be [H, W, 3], [H, W, 4] or [H, W], not {list(shape)}")
    _check_size((shape[1], shape[0]), limits)
    return Image.fromarray(np.ascontiguousarray(array))


def _load(image: Image.Image, limits: ImageLimits) -> None:
    """Decode the pixels, after counting them."""
    _check_size(image.size, limits)
    try:
        image.load()
    except MemoryError:
        raise
    except Exception as error:  # decoders meet hostile bytes with anything
        kind = image.format or image.mode
        raise _refuse(f"the {kind} picture is damaged or cut off: {error}") from error


def _from_image(image: Image.Image, limits: ImageLimits) -> RGB:
    _load(image, limits)
    turn = _UPRIGHT.get(_orientation(image))
    try:
        return to_rgb(image if turn is None else image.transpose(turn))
    except ValueError as error:
        raise _refuse(f"a picture of mode {image.mode} cannot be converted to RGB: {error}") from error


def _check_size(size: tuple[int, int], limits: ImageLimits) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise _refuse(f"the picture has no pixels ({width} x {height})")
    if width * height > limits.max_pixels:
        raise _refuse(
            f"the picture has {width} x {height} = {width * height} pixels, over the limit of {limits.max_pixels}; "
            "scale it down first"
        )


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 (upright) when there is none or the tag cannot be read."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # a broken tag is no reason to refuse sound pixels
        return 1
    return value if isinstance(value, int) else 1
