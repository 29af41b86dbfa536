"""What lies behind the shapes: ground colours and their patterns, and words and numbers printed on them.

In: a random generator and the picture's aspect ratio. Out: the ground's part of a scene as plain numbers. Colours are
RGB in 0..1; every colour that lies on another is far enough from it to be seen.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from recipes.glint.letters import FONT, ROWS, columns
from recipes.glint.paint import WAVES
from recipes.glint.phrases import GROUNDS, PATTERNS, WORDS

RGB = tuple[float, float, float]
GROUND_RGB = (
    (0.95, 0.95, 0.95), (0.55, 0.55, 0.55), (0.07, 0.07, 0.07), (0.91, 0.85, 0.70),
    (0.40, 0.26, 0.15), (0.08, 0.10, 0.28), (0.05, 0.42, 0.42), (0.78, 0.74, 0.92),
)  # fmt: skip
INKS = ((0.04, 0.04, 0.04), (0.97, 0.97, 0.97), (0.05, 0.08, 0.32), (0.30, 0.03, 0.05), (0.02, 0.22, 0.10),
        (0.98, 0.95, 0.78))  # fmt: skip
LETTER_HEIGHT, TALLEST = (0.07, 0.16), 0.25
LEGIBLE = 1.45
PRINTED_SHARE, RANDOM_SHARE = 0.35, 0.15
LETTERS = "".join(c for c in FONT if c.isalpha())


@dataclass(frozen=True)
class Printed:
    """A printed word or number: its text, the centre and extent of its ink (normalised), and the ink's colour."""

    text: str
    x: float
    y: float
    width: float
    height: float
    rgb: RGB


@dataclass(frozen=True)
class Ground:
    """Indices of colour and pattern, and its looks: two colours, direction, pitch, noise, vignette, seed of waves.

    The vignette is the share of light that the corners lack.
    """

    colour: int
    pattern: int
    first: RGB
    second: RGB
    angle: float
    pitch: float
    noise: float
    vignette: float
    grain: int


def jitter(rng: random.Random, rgb: RGB, by: float) -> RGB:
    """A colour near another."""
    r, g, b = (min(1.0, max(0.0, c + rng.uniform(-by, by))) for c in rgb)
    return r, g, b


def contrast(one: RGB, other: RGB) -> float:
    """Euclidean distance of two colours."""
    return math.dist(one, other)


def brightness(rgb: RGB) -> float:
    """Luma in 0..1 (ITU-R BT.601 weights)."""
    return 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]


def _second(rng: random.Random, pattern: str, first: RGB) -> RGB:
    """The pattern's other colour: lighter or darker, of the same hue; the first one where there is no pattern."""
    if pattern == "textured":
        factor = rng.uniform(0.78, 0.90) if brightness(first) > 0.5 else rng.uniform(1.2, 1.35)
        lift = 0.04 if factor > 1 else 0.0
        r, g, b = (min(1.0, c * factor + lift) for c in first)
        return r, g, b
    if pattern not in ("gradient", "checkered"):
        return first
    shift = rng.choice((-1, 1)) * rng.uniform(0.08, 0.15)
    if not 0.1 < first[0] + shift < 0.98:
        shift = -shift
    r, g, b = (min(1.0, max(0.0, c + shift)) for c in first)
    return r, g, b


def make_ground(rng: random.Random) -> Ground:
    """A random ground."""
    colour, pattern = rng.randrange(len(GROUNDS)), rng.randrange(len(PATTERNS))
    first, name = jitter(rng, GROUND_RGB[colour], 0.03), PATTERNS[pattern]
    second = _second(rng, name, first)
    noise = {"noisy": rng.uniform(0.04, 0.1), "textured": rng.uniform(0.005, 0.015)}.get(name, 0.0)
    vignette = rng.uniform(0.0, 0.2) if name == "textured" else 0.0
    return Ground(colour, pattern, first, second, rng.uniform(0, 2 * math.pi), rng.uniform(0.05, 0.12), noise, vignette,
                  rng.randrange(1 << 30))  # fmt: skip


def waves(grain: int) -> list[float]:
    """Frequencies along x and y (radians per unit), phase and amplitude of every wave, from coarse to fine."""
    rng, out, frequency = random.Random(grain), [], 2 * math.pi * 0.55
    for _ in range(WAVES):
        turn, f = rng.uniform(0, 2 * math.pi), frequency * rng.uniform(0.8, 1.25)
        out += [f * math.cos(turn), f * math.sin(turn), rng.uniform(0, 2 * math.pi), 0.55 * f**-0.55]
        frequency *= 1.5
    return out


def _text(rng: random.Random) -> str:
    """A word of the list or a number; sometimes letters at random, so that reading is more than telling words apart."""
    u = rng.random()
    if u < RANDOM_SHARE:
        return "".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 5)))
    if u < 0.70:
        return rng.choice(WORDS)
    return str(rng.randrange(10 ** rng.randint(1, 3)))


def lowest_letters(aspect: float, side: float) -> float:
    """Height in units from which letters are legible: in the picture itself, and in its one crop of 224 pixels."""
    return max(LETTER_HEIGHT[0], ROWS * LEGIBLE * max(math.sqrt(max(aspect, 1 / aspect)) / 224, 1 / side))


def print_text(rng: random.Random, aspect: float, side: float, ground: Ground) -> Printed | None:
    """A word or number somewhere in a picture of ``side ** 2`` pixels; None for most pictures, and where none fits."""
    root, low = math.sqrt(aspect), lowest_letters(aspect, side)
    if rng.random() >= PRINTED_SHARE or low > TALLEST:
        return None
    text = _text(rng)
    while columns(text) * low / ROWS > 0.85 * root:
        text = _text(rng)
    high = min(max(LETTER_HEIGHT[1], low), 0.9 * root * ROWS / columns(text))
    tall = rng.uniform(low, high)
    width, height = columns(text) * tall / ROWS / root, tall * root
    x = rng.uniform(width / 2 + 0.015, 1 - width / 2 - 0.015)
    y = rng.uniform(height / 2 + 0.015, 1 - height / 2 - 0.015)
    return Printed(text, x, y, width, height, _ink(rng, ground))


def _ink(rng: random.Random, ground: Ground) -> RGB:
    """An ink that stands out from both colours of the ground by its brightness."""
    behind = (brightness(ground.first), brightness(ground.second))
    apart = {rgb: min(abs(brightness(rgb) - b) for b in behind) for rgb in INKS}
    clear = [rgb for rgb, gap in apart.items() if gap > 0.4]
    return rng.choice(clear) if clear else max(INKS, key=apart.__getitem__)
