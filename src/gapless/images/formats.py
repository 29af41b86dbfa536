"""Picture formats: which are accepted, what other data looks like, and sizes that can be read without a decoder.

In: a file's bytes. Out: the Pillow readers to try, or a name for an error message. The list is closed: Pillow knows
formats that run other programs or cost too much to open, and those must not be reachable with a user's bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO

from PIL import Image

from gapless.locks import Lock

Factory = Callable[[IO[bytes], str | bytes], Image.Image]
Accept = Callable[[bytes], bool | str]

_ACCEPTED = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "HEIF")
_AVIF_START = b"\x00\x00\x00\x1cftypavif\x00\x00\x00\x00"
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
_BRANDS = {b"avif": "AVIF", b"avis": "AVIF", b"crx ": "CR3", b"jxl ": "JPEG XL"} | dict.fromkeys(_HEIF_BRANDS, "HEIC")
_SIGNATURES = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
    (b"\x00\x00\x00\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\x00\x00\x00\x0cJXL ", "JPEG XL"),
    (b"8BPS", "PSD"),
    (b"%PDF", "PDF"),
    (b"%!PS", "EPS"),
    (b"\x00\x00\x01\x00", "ICO"),
    (b"<svg", "SVG"),
    (b"<?xml", "XML or SVG"),
    (b"<!DOCTYPE html", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"data:", "a data URL as text"),
)
_plugins = Lock()


def accepted() -> tuple[tuple[str, Factory, Accept | None], ...]:
    """(name, reader, quick test of the first 16 bytes) of each accepted format that this Pillow can read."""
    with _plugins:
        Image.init()
    readers = [(name, *Image.OPEN[name]) for name in _ACCEPTED if name in Image.OPEN]
    return tuple(r for r in readers if r[0] != "AVIF" or (r[2] is not None and r[2](_AVIF_START) is True))


def name_of(data: bytes) -> str:
    """What the bytes seem to be: a format's name, or "of an unknown format"."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    if data[4:8] == b"ftyp":
        found = [_BRANDS[b] for b in _brands(data) if b in _BRANDS]
        return next((name for name in found if name == "AVIF"), found[0] if found else "a video or unknown container")
    start = data[:64].lstrip()
    for signature, name in _SIGNATURES:
        if data.startswith(signature) or (signature[:1] == b"<" and start.lower().startswith(signature.lower())):
            return name
    return "of an unknown format"


def _brands(data: bytes) -> list[bytes]:
    """Major and compatible brands of an ISO media file's first box."""
    end = min(int.from_bytes(data[:4], "big"), 256, len(data))
    return [data[8:12], *(data[i : i + 4] for i in range(16, end - 3, 4))]


def size_in_header(data: bytes) -> tuple[int, int] | None:
    """(width, height) of a WebP from its header, None for other formats and broken ones.

    Pillow's WebP reader allocates the canvas when it opens a file; the others do not before they decode.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    kind = data[12:16]
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None
