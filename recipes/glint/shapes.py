"""The eight kinds of shapes: signed distances, outlines, and how much of one shape another hides.

Every shape has radius 1 around its bounding box's centre; y grows downwards. Distance functions take arrays of NumPy or
PyTorch (``xp``) and are exact enough within a pixel of the edge, where they are used.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
from recipes.glint.phrases import KINDS

EXTENTS = ((1, 1), (0.85, 0.85), (1, 0.9), (0.951, 0.9045), (1, 1), (1, 1), (1, 0.914), (0.75, 1))
STAR_INNER, STAR_SHIFT, ARM = 0.42, 0.0955, 0.35
CONTOUR_SCALE = 960
FINE, SPOTS = 33, 15


def _circle(xp: ModuleType, x: Any, y: Any) -> Any:
    return xp.sqrt(x * x + y * y + 1e-9) - 1


def _square(xp: ModuleType, x: Any, y: Any) -> Any:
    return xp.maximum(xp.abs(x), xp.abs(y)) - 0.85


def _triangle(xp: ModuleType, x: Any, y: Any) -> Any:
    return xp.maximum(y - 0.9, (1.8 * xp.abs(x) - (y + 0.9)) / 2.059)


def _star(xp: ModuleType, x: Any, y: Any) -> Any:
    """Mirrored twice and halved, all ten edges are one: the one from the upper tip to its right valley."""
    across, up = xp.abs(x), STAR_SHIFT - y
    for turn in (0.6 * math.pi, 0.2 * math.pi):
        cos, sin = math.cos(turn), math.sin(turn)
        beyond = 2 * xp.clip(across * cos - up * sin, 0, None)
        across, up = across - beyond * cos, up + beyond * sin
    ex, ey = STAR_INNER * math.cos(math.pi / 5) - 1, STAR_INNER * math.sin(math.pi / 5)
    return ((up - 1) * ey - xp.abs(across) * ex) / math.hypot(ex, ey)


def _cross(xp: ModuleType, x: Any, y: Any) -> Any:
    ax, ay = xp.abs(x), xp.abs(y)
    return xp.minimum(xp.maximum(ax - 1, ay - ARM), xp.maximum(ax - ARM, ay - 1))


def _ring(xp: ModuleType, x: Any, y: Any) -> Any:
    return xp.abs(xp.sqrt(x * x + y * y + 1e-9) - 0.75) - 0.25


def _heart(xp: ModuleType, x: Any, y: Any) -> Any:
    hx, hy = xp.abs(x) * 0.6036, 0.5518 - y * 0.6036
    t = 0.5 * xp.clip(hx + hy, 0, None)
    near = xp.minimum(hx**2 + (hy - 1) ** 2, (hx - t) ** 2 + (hy - t) ** 2)
    lobe = xp.sqrt((hx - 0.25) ** 2 + (hy - 0.75) ** 2 + 1e-9) - 0.35355
    return xp.where(hx + hy > 1, lobe, xp.sqrt(near + 1e-9) * xp.sign(hx - hy)) / 0.6036


def _diamond(xp: ModuleType, x: Any, y: Any) -> Any:
    return (xp.abs(x) / 0.75 + xp.abs(y) - 1) * 0.6


DISTANCES = [_circle, _square, _triangle, _star, _cross, _ring, _heart, _diamond]  # new_word.py appends its own


def distance(xp: ModuleType, x: Any, y: Any, kind: Any) -> Any:
    """Signed distance (negative inside) in a shape's own frame; arrays broadcast, ``kind`` is an array of indices."""
    if xp is np and kind.size == 1:  # NumPy draws one picture at a time: one function instead of eight
        return DISTANCES[int(kind.item())](xp, x, y)
    d = DISTANCES[0](xp, x, y)
    for i, function in enumerate(DISTANCES[1:], 1):
        d = xp.where(kind == i, function(xp, x, y), d)
    return d


def _tables() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For every kind: what it covers, on a fine grid with an empty frame, and points spread over its inside."""
    covers, spots = [], []
    for kind in range(len(KINDS)):
        k = np.asarray([kind])
        fine = (np.arange(FINE) + 0.5) * (2 / FINE) - 1
        covers.append(np.pad(distance(np, fine[None, :], fine[:, None], k) <= 0, 1))
        coarse = (np.arange(SPOTS) + 0.5) * (2 / SPOTS) - 1
        rows, cols = np.nonzero(distance(np, coarse[None, :], coarse[:, None], k) <= 0)
        spots.append(np.stack([coarse[cols], coarse[rows]]))
    return covers, spots


COVERS, INSIDE = _tables()


def hides(kind: int, dx: float, dy: float, scale: float, under: int) -> np.ndarray:
    """Which of the points spread over a shape of kind ``under`` are hidden by a shape of kind ``kind``, ``bool [m]``.

    ``dx, dy`` is the hidden shape's centre seen from the other's, ``scale`` its radius, all in the other's radii.
    """
    at = (INSIDE[under] * scale + np.asarray([[dx + 1], [dy + 1]])) * (FINE / 2)
    cols, rows = np.clip(np.floor(at).astype(np.int64), -1, FINE) + 1
    hidden: np.ndarray = COVERS[kind][rows, cols]
    return hidden


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

    Polygons give their corners; round shapes give the outermost crossing on ``rays`` rays from the centre. It is the
    whole shape's outline, whatever hides a part of it.
    """
    points = _polygon(kind)
    if points is None:
        reach = np.linspace(1.5, 0, 3001)
        points = []
        for i in range(rays):
            dx, dy = math.sin(2 * math.pi * i / rays), -math.cos(2 * math.pi * i / rays)
            inside = DISTANCES[kind](np, reach * dx, reach * dy) <= 0
            rho = float(reach[int(np.argmax(inside))])
            points.append((rho * dx, rho * dy))
    ex, ey = EXTENTS[kind]
    scaled = [((x / ex + 1) / 2, (y / ey + 1) / 2) for x, y in points]
    return [(round(min(1, max(0, x)) * CONTOUR_SCALE), round(min(1, max(0, y)) * CONTOUR_SCALE)) for x, y in scaled]
