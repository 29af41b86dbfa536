"""Scenes of simple shapes: a seeded generator, exact boxes, and the reference picture of a scene.

A picture has width/height ``aspect``; positions are normalised to 0..1 in both axes. Lengths that must look the same
in both axes (radii, the pitch of checks, letters) are in *units* of ``sqrt(width * height)``, so ``x`` normalised is
``x * sqrt(aspect)`` units and ``y`` is ``y / sqrt(aspect)`` units, and "large" means a share of the picture's area.

Things are listed from left to right and painted by their ``depth``. A later one may hide a little of an earlier one: at
most a quarter of its own area by all together, hardly ever its centre, and only one of another colour. Boxes and
outlines are those of the whole shape, also where a part of it is hidden. Printed text lies on the ground and touches no
thing.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
from recipes.glint.grounds import RGB, Ground, Printed, contrast, jitter, make_ground, print_text, waves
from recipes.glint.letters import ROWS, table
from recipes.glint.paint import GROUND_FIELDS, MOST, TEXTURED, THING_FIELDS, WAVES_AT, paint
from recipes.glint.phrases import COLOURS, KINDS, SIZES
from recipes.glint.shapes import EXTENTS, hides

GAP, APART = 0.02, 0.02
RADII = ((0.045, 0.056), (0.074, 0.090), (0.115, 0.135))
OVERLAP_SHARE, NEAR_SHARE = 0.8, 0.6
MOST_SHARED, MOST_HIDDEN = 0.35, 0.25
LEAST_CONTRAST = 0.28
TRIES = 40
COLOUR_RGB = (
    (0.85, 0.12, 0.12), (0.95, 0.55, 0.10), (0.95, 0.90, 0.15), (0.15, 0.70, 0.20),
    (0.15, 0.80, 0.85), (0.15, 0.25, 0.85), (0.50, 0.15, 0.70), (0.95, 0.50, 0.75),
)  # fmt: skip


@dataclass(frozen=True)
class Thing:
    """One shape: indices into the name tables, centre (normalised), radius (units), exact colour, and its place in the
    painter's order (a higher ``depth`` is painted later, over the others)."""

    kind: int
    colour: int
    size: int
    x: float
    y: float
    r: float
    rgb: RGB
    depth: int = 0


@dataclass(frozen=True)
class Scene:
    """Shapes from left to right on a ground; ``first``/``second`` are the two colours of its pattern.

    Boxes and outlines are those of the whole shape, also where another shape hides a part of it. ``vignette`` is the
    share of light that the corners lack, ``grain`` the seed of a texture's waves.
    """

    aspect: float
    things: tuple[Thing, ...]
    ground: int
    pattern: int
    first: RGB
    second: RGB
    angle: float
    pitch: float
    noise: float
    printed: Printed | None = None
    vignette: float = 0.0
    grain: int = 0

    def box(self, thing: Thing) -> tuple[float, float, float, float]:
        """Centre and extent of a thing, normalised: ``(x, y, width, height)``."""
        ex, ey = EXTENTS[thing.kind]
        root = math.sqrt(self.aspect)
        return thing.x, thing.y, 2 * ex * thing.r / root, 2 * ey * thing.r * root

    def text_box(self) -> tuple[float, float, float, float] | None:
        """Centre and extent of the printed text's ink, normalised, or None when nothing is printed."""
        p = self.printed
        return (p.x, p.y, p.width, p.height) if p else None

    def letter_cell(self, width: int, height: int) -> float:
        """Smaller side in pixels of one cell of the printed letters (seven are a letter's height) in such a picture.

        From about 1.4 on letters can be read; 0 when nothing is printed.
        """
        if self.printed is None:
            return 0.0
        units = self.printed.height / math.sqrt(self.aspect) / ROWS
        return units * min(width / math.sqrt(self.aspect), height * math.sqrt(self.aspect))


class _Table:
    """A scene in the making: what is placed, in painting order, and what of it is hidden."""

    def __init__(self, rng: random.Random, aspect: float, printed: Printed | None) -> None:
        self.rng, self.root, self.printed = rng, math.sqrt(aspect), printed
        self.overlaps = rng.random() < OVERLAP_SHARE
        self.placed: list[Thing] = []
        self.hidden: list[np.ndarray | None] = []

    def centre(self, kind: int, r: float) -> tuple[float, float]:
        """Somewhere in the picture; where things may overlap, often next to another one."""
        rng, (ex, ey) = self.rng, EXTENTS[kind]
        mx, my = ex * r / self.root + 0.01, ey * r * self.root + 0.01
        if self.overlaps and self.placed and rng.random() < NEAR_SHARE:
            t = rng.choice(self.placed)
            fx, fy = EXTENTS[t.kind]
            x = t.x + rng.uniform(-1, 1) * (ex * r + fx * t.r) / self.root
            y = t.y + rng.uniform(-1, 1) * (ey * r + fy * t.r) * self.root
            return min(1 - mx, max(mx, x)), min(1 - my, max(my, y))
        return rng.uniform(mx, 1 - mx), rng.uniform(my, 1 - my)

    def touched(self, kind: int, colour: int, r: float, x: float, y: float) -> list[int] | None:
        """Placed things whose boxes such a thing would overlap, or None when it may not lie there."""
        root, (ex, ey) = self.root, EXTENTS[kind]
        ex, ey, p = ex * r, ey * r, self.printed
        if (
            p
            and abs(x - p.x) * root < ex + p.width * root / 2 + GAP
            and (abs(y - p.y) / root < ey + p.height / root / 2 + GAP)
        ):
            return None
        found = []
        for i, t in enumerate(self.placed):
            dx = abs(x - t.x)
            if dx <= APART:
                return None
            fx, fy = EXTENTS[t.kind]
            fx, fy = fx * t.r, fy * t.r
            ox, oy = ex + fx - dx * root, ey + fy - abs(y - t.y) / root
            if ox <= -GAP or oy <= -GAP:
                continue
            shared = max(0.0, ox) * max(0.0, oy)
            if not self.overlaps or t.colour == colour or shared > 4 * MOST_SHARED * min(ex * ey, fx * fy):
                return None
            found.append(i)
        return found

    def hiding(self, kind: int, r: float, x: float, y: float, under: list[int]) -> dict[int, np.ndarray] | None:
        """What of the things under it is hidden once such a thing lies there, or None when it is too much."""
        out = {}
        for i in under:
            t, before = self.placed[i], self.hidden[i]
            now = hides(kind, (t.x - x) * self.root / r, (t.y - y) / self.root / r, t.r / r, t.kind)
            now = now if before is None else now | before
            if np.count_nonzero(now) > MOST_HIDDEN * 0.9 * now.size:
                return None
            out[i] = now
        return out

    def place(self, kind: int, colour: int, size: int, ground: Ground) -> None:
        """Put a thing on top of the others; smaller than asked for, or not at all, when there is no room."""
        for s in (size, size, max(0, size - 1), 0):
            r = self.rng.uniform(*RADII[s])
            for _ in range(TRIES // 4):
                x, y = self.centre(kind, r)
                under = self.touched(kind, colour, r, x, y)
                hidden = self.hiding(kind, r, x, y, under) if under is not None else None
                if hidden is None:
                    continue
                for i, now in hidden.items():
                    self.hidden[i] = now
                rgb = visible(self.rng, colour, ground)
                self.placed.append(Thing(kind, colour, s, x, y, r, rgb, len(self.placed)))
                self.hidden.append(None)
                return


def visible(rng: random.Random, colour: int, ground: Ground) -> RGB:
    """A shade of a named colour that stands out from both colours of the ground."""
    for _ in range(8):
        rgb = jitter(rng, COLOUR_RGB[colour], 0.05)
        if min(contrast(rgb, ground.first), contrast(rgb, ground.second)) > LEAST_CONTRAST:
            return rgb
    return COLOUR_RGB[colour]


def make_scene(rng: random.Random, aspect: float | None = None, side: float = 224.0) -> Scene:
    """A random scene of 1..8 things; some repeat the first one's colour or kind so that counts above one are common.

    ``side`` is the root of the number of pixels it will be drawn with, if small: printed letters are then large enough.
    """
    a = aspect if aspect is not None else math.exp(rng.uniform(-math.log(3), math.log(3)))
    ground = make_ground(rng)
    making = _Table(rng, a, print_text(rng, a, side, ground))
    head = (rng.randrange(8), rng.randrange(8))
    for i in range(rng.randint(1, MOST)):
        kind, colour = head if i == 0 else (rng.randrange(8), rng.randrange(8))
        if i and rng.random() < 0.35:
            colour = head[1]
            kind = head[0] if rng.random() < 0.8 else kind
        elif i and rng.random() < 0.15:
            kind = head[0]
        making.place(kind, colour, rng.randrange(3), ground)
    things = tuple(sorted(making.placed, key=lambda t: t.x))
    g = ground
    return Scene(a, things, g.colour, g.pattern, g.first, g.second, g.angle, g.pitch, g.noise, making.printed,
                 g.vignette, g.grain)  # fmt: skip


def pack(scene: Scene) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers for the renderer: things ``[8, 8]`` in painting order, ground ``[60]`` and printed ink ``[333]``.

    The layout is described in ``paint.py``.
    """
    root, p = math.sqrt(scene.aspect), scene.printed
    things = np.zeros((MOST, THING_FIELDS), np.float32)
    things[:, 2] = 1.0
    for row, t in zip(things, sorted(scene.things, key=lambda t: t.depth), strict=False):
        row[:] = (t.x * root, t.y / root, t.r, t.kind, *t.rgb, 1.0)
    letters = (0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    if p:
        letters = ((p.x - p.width / 2) * root, (p.y - p.height / 2) / root, p.height / root / ROWS, *p.rgb)
    ground = np.zeros(GROUND_FIELDS, np.float32)
    ground[:WAVES_AT] = (
        *scene.first, *scene.second, math.cos(scene.angle), math.sin(scene.angle), scene.pitch, scene.pattern,
        scene.noise, 4 * scene.vignette / (scene.aspect + 1 / scene.aspect), *letters, root / 2, 0.5 / root,
    )  # fmt: skip
    if scene.pattern == TEXTURED:
        ground[WAVES_AT:] = waves(scene.grain)
    return things, ground, table(p.text if p else "")


def draw(scene: Scene, width: int, height: int, seed: int = 0) -> np.ndarray:
    """The picture itself, ``uint8 [height, width, 3]``: the reference renderer and the maker of the sample pictures."""
    root = math.sqrt(scene.aspect)
    x = (((np.arange(width) + 0.5) / width) * root)[None, None, :]
    y = (((np.arange(height) + 0.5) / height) / root)[None, :, None]
    things, ground, letters = (a[None].astype(np.float64) for a in pack(scene))
    noise = np.random.default_rng(seed).standard_normal((1, 3, height, width))
    pixel = np.full((1, 1, 1), 1 / math.sqrt(width * height))
    planes = paint(np, x, y, pixel, things, ground, noise, letters, np.zeros((1, 1, 1), np.int64))
    return np.asarray((np.stack([p[0] for p in planes], -1) * 255).round().astype(np.uint8))


def tiling(width: int, height: int, window: int = 168, margin: int = 56, most: int = 4) -> tuple[int, int]:
    """Rows and columns of local crops that a picture of this size gets (glint's crops are 224 px, windows 168 px)."""
    h, w = height - margin, width - margin
    if h <= window or w <= window:
        return 1, 1
    rows, cols = math.ceil(h / window), math.ceil(w / window)
    if rows * cols > most:
        ratio = math.sqrt(most / (rows * cols))
        return max(1, math.floor(rows * ratio)), max(1, math.floor(cols * ratio))
    th, tw = max(math.floor(math.sqrt(most * h / w)), rows), max(math.floor(math.sqrt(most * w / h)), cols)
    if th * tw > most:
        if tw > th:
            tw = math.floor(most / th)
        else:
            th = math.floor(most / tw)
    return max(1, th), max(1, tw)


def describe(thing: Thing) -> str:
    """``"large red circle"``."""
    return f"{SIZES[thing.size]} {COLOURS[thing.colour]} {KINDS[thing.kind]}"
