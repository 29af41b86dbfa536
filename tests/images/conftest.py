"""A master picture, and the same picture as files."""

import io

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="session")
def master() -> Image.Image:
    """A smooth RGB picture of 48 x 32 whose corners all differ."""
    y, x = np.mgrid[0:32, 0:48]
    rgb = np.stack([40 + 4 * x, 30 + 6 * y, 220 - 2 * x - 2 * y], axis=2)
    return Image.fromarray(rgb.astype(np.uint8))


@pytest.fixture(scope="session")
def save():
    """Encode a Pillow image as bytes."""

    def encode(image: Image.Image, kind: str, **options: object) -> bytes:
        out = io.BytesIO()
        image.save(out, kind, **options)
        return out.getvalue()

    return encode
