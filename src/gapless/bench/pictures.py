"""Pictures for measurements: JPEG files in memory, no two alike, so that nothing computed for one serves another.

In: numbers, and a size or the side of a model's crop. Out: bytes, the same for the same number. Without a size they go
round: some fit into one crop, some take a few, some as many as the model looks at.
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from PIL import Image

SIZES = ((1.0, 1.0), (4 / 3, 1.0), (1.7, 1.275), (2.7, 2.0))
"""Widths and heights in sides of a crop; for Moondream 2 378x378 to 1021x756 pixels, 2 to 13 crops."""
COARSE = 24
"""Pixels of a patch of colour."""


def jpegs(first: int, count: int, side: int, size: tuple[int, int] | None = None) -> list[bytes]:
    """Pictures number `first` to `first + count - 1`; `size`: width and height of all of them."""
    with ThreadPoolExecutor() as pool:  # scaling and encoding let go of the interpreter
        return list(pool.map(partial(jpeg, side=side, size=size), range(first, first + count)))


def jpeg(number: int, side: int, size: tuple[int, int] | None = None) -> bytes:
    """One picture: soft patches of colour."""
    across, down = SIZES[number % len(SIZES)]
    width, height = size or (round(across * side), round(down * side))
    coarse = (height // COARSE + 2, width // COARSE + 2, 3)
    patches = np.random.default_rng(number).integers(0, 256, coarse, dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(patches).resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()
