"""Scenes of simple shapes: a seeded generator, exact boxes and outlines, and one renderer for NumPy and PyTorch.

A picture has width/height ``aspect``; positions are normalised to 0..1 in both axes. Lengths that must look the same
in both axes (radii, the pitch of a checkerboard) are in *units* of ``sqrt(width * height)``, so ``x`` normalised is
``x * sqrt(aspect)`` units and ``y`` is ``y / sqrt(aspect)`` units, and "large" means a share of the picture's area.
Every shape is a signed distance function of radius 1 around its bounding box's centre.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from recipes.glint.phrases import COLOURS, GROUNDS, KINDS, PATTERNS, SIZES

MOST = 8
GAP = 0.02
RADII = ((0.045, 0.056), (0.074, 0.090), (0.115, 0.135))
EXTENTS = ((1, 1), (0.85, 0.85), (1, 0.9), (0.951, 0.9045), (1, 1), (1, 1), (1, 0.914), (0.75, 1))
COLOUR_RGB = (
    (0.85, 0.12, 0.12), (0.95, 0.55, 0.10), (0.95, 0.90, 0.15), (0.15, 0.70, 0.20),
    (0.15, 0.80, 0.85), (0.15, 0.25, 0.85), (0.50, 0.15, 0.70), (0.95, 0.50, 0.75),
)  # fmt: skip
GROUND_RGB = (
    (0.95, 0.95, 0.95), (0.55, 0.55, 0.55), (0.07, 0.07, 0.07), (0.91, 0.85, 0.70),
    (0.40, 0.26, 0.15), (0.08, 0.10, 0.28), (0.05, 0.42, 0.42), (0.78, 0.74, 0.92),
)  # fmt: skip
STAR_INNER, STAR_SHIFT, ARM = 0.42, 0.0955, 0.35
THING_FIELDS = 10
CONTOUR_SCALE = 960


@dataclass(frozen=True)
class Thing:
    """One shape: indices into the name tables, centre (normalised), radius (units) and its exact colour."""

    kind: int
    colour: int
    size: int
    x: float
    y: float
    r: float
    rgb: tuple[float, float, float]


@dataclass(frozen=True)
class Printed:
    """A printed word or number: its text, the centre and extent of its ink (normalised), and the ink's colour."""

    text: str
    x: float
    y: float
    width: float
    height: float
    rgb: tuple[float, float, float]


@dataclass(frozen=True)
class Scene:
    """Shapes from left to right on a ground; ``first``/``second`` are the two colours of its pattern.

    Boxes and outlines are those of the whole shape, also where another shape hides a part of it.
    """

    aspect: float
    things: tuple[Thing, ...]
    ground: int
    pattern: int
    first: tuple[float, float, float]
    second: tuple[float, float, float]
    angle: float
    pitch: float
    noise: float
    printed: Printed | None = None

    def box(self, thing: Thing) -> tuple[float, float, float, float]:
        """Centre and extent of a thing, normalised: ``(x, y, width, height)``."""
        ex, ey = EXTENTS[thing.kind]
        root = math.sqrt(self.aspect)
        return thing.x, thing.y, 2 * ex * thing.r / root, 2 * ey * thing.r * root

    def text_box(self) -> tuple[float, float, float, float] | None:
        """Centre and extent of the printed text's ink, normalised, or None when nothing is printed."""
        p = self.printed
        return (p.x, p.y, p.width, p.height) if p else None


def _jitter(rng: random.Random, rgb: tuple[float, float, float], by: float) -> tuple[float, float, float]:
    r, g, b = (min(1.0, max(0.0, c + rng.uniform(-by, by))) for c in rgb)
    return r, g, b


def _place(rng: random.Random, kind: int, r: float, aspect: float, placed: list[Thing]) -> tuple[float, float] | None:
    """A centre whose box touches no other box and whose x is nobody else's, or None after 16 tries."""
    root, (ex, ey) = math.sqrt(aspect), EXTENTS[kind]
    mx, my = ex * r / root + 0.01, ey * r * root + 0.01
    for _ in range(16):
        x, y = rng.uniform(mx, 1 - mx), rng.uniform(my, 1 - my)
        if all(
            abs(x - t.x) > 0.02
            and (
                abs(x - t.x) * root > ex * r + EXTENTS[t.kind][0] * t.r + GAP
                or abs(y - t.y) / root > ey * r + EXTENTS[t.kind][1] * t.r + GAP
            )
            for t in placed
        ):
            return x, y
    return None


def make_scene(rng: random.Random, aspect: float | None = None) -> Scene:
    """A random scene of 1..8 things; some repeat the first one's colour or kind so that counts above one are common."""
    a = aspect if aspect is not None else math.exp(rng.uniform(math.log(0.5), math.log(2.0)))
    placed: list[Thing] = []
    head = (rng.randrange(8), rng.randrange(8))
    for i in range(rng.randint(1, MOST)):
        kind, colour = head if i == 0 else (rng.randrange(8), rng.randrange(8))
        if i and rng.random() < 0.35:
            colour = head[1]
            kind = head[0] if rng.random() < 0.8 else kind
        elif i and rng.random() < 0.15:
            kind = head[0]
        size = rng.randrange(3)
        r = rng.uniform(*RADII[size])
        centre = _place(rng, kind, r, a, placed)
        if centre is not None:
            placed.append(Thing(kind, colour, size, *centre, r, _jitter(rng, COLOUR_RGB[colour], 0.05)))
    ground, pattern = rng.randrange(len(GROUNDS)), rng.randrange(len(PATTERNS))
    first = _jitter(rng, GROUND_RGB[ground], 0.03)
    shift = rng.choice((-1, 1)) * rng.uniform(0.08, 0.15)
    if not 0.1 < first[0] + shift < 0.98:
        shift = -shift
    r_, g_, b_ = (min(1.0, max(0.0, c + shift)) for c in first)
    second = (r_, g_, b_) if PATTERNS[pattern] in ("gradient", "checkered") else first
    noise = rng.uniform(0.025, 0.1) if PATTERNS[pattern] == "noisy" else 0.0
    things = tuple(sorted(placed, key=lambda t: t.x))
    return Scene(a, things, ground, pattern, first, second, rng.uniform(0, 2 * math.pi), rng.uniform(0.05, 0.12), noise)


def pack(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Numbers for the renderer: things ``[8, 10]`` (x, y, r, kind, rgb, on, half extents) and ground ``[11]``."""
    root = math.sqrt(scene.aspect)
    things = np.zeros((MOST, THING_FIELDS), np.float32)
    things[:, [2, 8, 9]] = 1.0
    for row, t in zip(things, scene.things, strict=False):
        ex, ey = EXTENTS[t.kind]
        row[:] = (t.x * root, t.y / root, t.r, t.kind, *t.rgb, 1.0, ex * t.r, ey * t.r)
    ground = (*scene.first, *scene.second, math.cos(scene.angle), math.sin(scene.angle), scene.pitch,
              scene.pattern, scene.noise)  # fmt: skip
    return things, np.asarray(ground, np.float32)


def _star(xp: ModuleType, x: Any, y: Any) -> Any:
    step = math.pi / 5
    up = y - STAR_SHIFT
    rho = xp.sqrt(x * x + up * up + 1e-9)
    th = xp.arctan2(x, -up) + step
    th = xp.abs(th - 2 * step * xp.floor(th / (2 * step)) - step)
    ex, ey = STAR_INNER * math.cos(step) - 1, STAR_INNER * math.sin(step)
    return ((rho * xp.cos(th) - 1) * ey - rho * xp.sin(th) * ex) / math.hypot(ex, ey)


def _heart(xp: ModuleType, ax: Any, y: Any) -> Any:
    hx, hy = ax * 0.6036, 0.5518 - y * 0.6036
    t = 0.5 * xp.clip(hx + hy, 0, None)
    near = xp.minimum(hx**2 + (hy - 1) ** 2, (hx - t) ** 2 + (hy - t) ** 2)
    lobe = xp.sqrt((hx - 0.25) ** 2 + (hy - 0.75) ** 2 + 1e-9) - 0.35355
    return xp.where(hx + hy > 1, lobe, xp.sqrt(near + 1e-9) * xp.sign(hx - hy)) / 0.6036


def distance(xp: ModuleType, x: Any, y: Any, kind: Any) -> Any:
    """Signed distance (negative inside) in a shape's own frame; arrays broadcast, ``xp`` is numpy or torch."""
    ax, ay = xp.abs(x), xp.abs(y)
    rho = xp.sqrt(x * x + y * y + 1e-9)
    d = rho - 1
    d = xp.where(kind == 1, xp.maximum(ax, ay) - 0.85, d)
    d = xp.where(kind == 2, xp.maximum(y - 0.9, (1.8 * ax - (y + 0.9)) / 2.059), d)
    d = xp.where(kind == 3, _star(xp, x, y), d)
    d = xp.where(kind == 4, xp.minimum(xp.maximum(ax - 1, ay - ARM), xp.maximum(ax - ARM, ay - 1)), d)
    d = xp.where(kind == 5, xp.abs(rho - 0.75) - 0.25, d)
    d = xp.where(kind == 6, _heart(xp, ax, y), d)
    return xp.where(kind == 7, (ax / 0.75 + ay - 1) * 0.6, d)


def _nearest(xp: ModuleType, x: Any, y: Any, things: Any) -> list[Any]:
    """The fields of the thing whose box each pixel is in or next to (boxes are disjoint), each ``[n, h, w]``."""
    best: list[Any] = []
    for i in range(things.shape[1]):
        fields = [things[:, i, f][:, None, None] for f in range(THING_FIELDS)]
        cx, cy, *_, on, ex, ey = fields
        reach = xp.maximum(xp.abs(x - cx) / ex, xp.abs(y - cy) / ey) + 1e3 * (1 - on)
        if not best:
            best = [reach, *[field + 0 * reach for field in fields[:8]]]
            continue
        closer = reach < best[0]
        best = [xp.where(closer, new, old) for new, old in zip([reach, *fields[:8]], best, strict=True)]
    return best[1:]


def paint(xp: ModuleType, x: Any, y: Any, pixel: Any, things: Any, ground: Any, noise: Any) -> list[Any]:
    """Red, green and blue, each ``[n, h, w]`` in 0..1.

    In units: x ``[n, 1, w]``, y ``[n, h, 1]`` and pixel ``[n, 1, 1]``, the width of the soft edge.
    Things ``[n, 7, 10]``, ground ``[n, 11]``, noise standard normal ``[n, 3, h, w]``.
    """

    def column(i: int) -> Any:
        return ground[:, i][:, None, None]

    cos, sin, pitch, pattern = (column(i) for i in (6, 7, 8, 9))
    ramp = xp.clip(0.5 + 0.8 * ((x - 0.5) * cos + (y - 0.5) * sin), 0, 1)
    check = xp.floor(x / pitch) + xp.floor(y / pitch)
    check = check - 2 * xp.floor(check / 2)
    mix = xp.where(pattern == 1, ramp, xp.where(pattern == 2, check, 0 * ramp))
    cx, cy, r, kind, *rgb, on = _nearest(xp, x, y, things)
    cover = xp.clip(0.5 - distance(xp, (x - cx) / r, (y - cy) / r, kind) * r / pixel, 0, 1) * on
    out = []
    for c, ink in enumerate(rgb):
        back = column(c) + mix * (column(3 + c) - column(c)) + column(10) * noise[:, c]
        out.append(xp.clip(back + cover * (ink - back), 0, 1))
    return out


def draw(scene: Scene, width: int, height: int, seed: int = 0) -> np.ndarray:
    """The picture itself, ``uint8 [height, width, 3]``: the reference renderer and the maker of the sample pictures."""
    root = math.sqrt(scene.aspect)
    x = (((np.arange(width) + 0.5) / width) * root)[None, None, :]
    y = (((np.arange(height) + 0.5) / height) / root)[None, :, None]
    things, ground = pack(scene)
    noise = np.random.default_rng(seed).standard_normal((1, 3, height, width))
    pixel = np.full((1, 1, 1), 1 / math.sqrt(width * height))
    planes = paint(np, x, y, pixel, things[None].astype(np.float64), ground[None].astype(np.float64), noise)
    return np.asarray((np.stack([p[0] for p in planes], -1) * 255).round().astype(np.uint8))


def _polygon(kind: int) -> list[tuple[float, float]] | None:
    name = KINDS[kind]
    if name == "square":
        return [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)]
    if name == "triangle":
        return [(0, -0.9), (1, 0.9), (-1, 0.9)]
    if name == "diamond":
        return [(0, -1), (0.75, 0), (0, 1), (-0.75, 0)]
    if name == "star":
        turns = [(1.0 if i % 2 == 0 else STAR_INNER, i * math.pi / 5) for i in range(10)]
        return [(rho * math.sin(a), STAR_SHIFT - rho * math.cos(a)) for rho, a in turns]
    if name == "cross":
        corner = [(-ARM, -1), (ARM, -1), (ARM, -ARM), (1, -ARM), (1, ARM), (ARM, ARM)]
        return [*corner, *[(-x, -y) for x, y in corner]]
    return None


def contour(kind: int, rays: int = 16) -> list[tuple[int, int]]:
    """Outline of a kind as integers 0..960 relative to its box: from the top, clockwise on the screen.

    Polygons give their corners; round shapes give the outermost crossing on ``rays`` rays from the centre.
    """
    points = _polygon(kind)
    if points is None:
        reach = np.linspace(1.5, 0, 3001)
        points = []
        for i in range(rays):
            dx, dy = math.sin(2 * math.pi * i / rays), -math.cos(2 * math.pi * i / rays)
            inside = distance(np, reach * dx, reach * dy, np.full_like(reach, kind)) <= 0
            rho = float(reach[int(np.argmax(inside))])
            points.append((rho * dx, rho * dy))
    ex, ey = EXTENTS[kind]
    scaled = [((x / ex + 1) / 2, (y / ey + 1) / 2) for x, y in points]
    return [(round(min(1, max(0, x)) * CONTOUR_SCALE), round(min(1, max(0, y)) * CONTOUR_SCALE)) for x, y in scaled]


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
