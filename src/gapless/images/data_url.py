"""The picture of a request: base64 in the body, and nothing else.

In: `image_url`, a data URL or bare base64. Out: bytes, still encoded as a picture. Invariant: no text of a request is
ever opened as a file or fetched.
"""

from __future__ import annotations

import base64
import binascii
import re

from gapless.errors import InvalidImage

_SCHEME = re.compile(r"\s*([a-z][a-z0-9+.-]{1,31}):", re.IGNORECASE)
_BLANKS = b" \t\r\n"
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_PART = 2**20
"""Characters decoded at a time: no other thread, and so no stream, stands still for longer than that takes."""


def picture_bytes(image_url: str) -> bytes:
    """Decode `data:TYPE;base64,...` or bare base64.

    The type is not believed: pictures are judged by content. White space inside is skipped, padding may be missing,
    both alphabets (RFC 4648, sections 4 and 5) are read. Raises `InvalidImage`.
    """
    scheme = _SCHEME.match(image_url[:64])
    payload = image_url
    if scheme is not None:
        if scheme[1].lower() != "data":
            raise _refuse(
                f"image_url is a URL of the scheme {scheme[1].lower()}, and nothing is fetched here; send the picture "
                "itself as data:image/png;base64,..."
            )
        head, comma, payload = image_url.partition(",")
        if not comma:
            raise _refuse("image_url is a data URL without a comma; write data:image/png;base64,...")
        if not head.rstrip().lower().endswith(";base64"):
            raise _refuse("image_url is a data URL without ;base64 before its comma; encode the picture in base64")
    return _decoded(payload)


def _decoded(payload: str) -> bytes:
    try:
        plain = payload.encode("ascii").rstrip(_BLANKS + b"=")
        if any(odd in plain for odd in (b" ", b"\t", b"\r", b"\n", b"-", b"_")):
            plain = plain.translate(_URL_SAFE, _BLANKS).rstrip(b"=")
        if plain:
            return _in_parts(plain)
    except (binascii.Error, ValueError) as error:
        raise _refuse(
            "image_url is neither a data URL nor base64; send the picture itself as data:image/png;base64,..."
        ) from error
    raise _refuse("image_url holds no picture: there is nothing to decode")


def _in_parts(plain: bytes) -> bytes:
    if b"=" in plain:
        raise ValueError("padding before the end")
    parts = [plain[at : at + _PART] for at in range(0, len(plain), _PART)]
    parts[-1] += b"=" * (-len(plain) % 4)
    return b"".join([base64.b64decode(part, validate=True) for part in parts])


def _refuse(message: str) -> InvalidImage:
    return InvalidImage(message, param="image_url")
