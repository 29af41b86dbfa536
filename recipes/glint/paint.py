"""The renderer: pictures from packed numbers, pixel by pixel, one code for NumPy and PyTorch.

All arithmetic is pointwise but for the lookup of printed ink, so that a compiler can fuse it. Layout of the ground
vector: first and second colour (0, 3), direction of the ramp (6, 7), pitch of the checks (8), pattern (9), noise (10),
vignette (11), upper left corner, cell and ink of the printed text (12, 13, 14, 15), the picture's
centre (18, 19), waves of the texture (20: two frequencies, phase, amplitude each).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from recipes.glint.letters import ink
from recipes.glint.shapes import distance

MOST = 8
THING_FIELDS = 8
WAVES = 10
WAVES_AT = 20
GROUND_FIELDS = WAVES_AT + 4 * WAVES
GRADIENT, CHECKERED, TEXTURED = 1, 2, 4


def _column(table: Any, i: int) -> Any:
    return table[:, i][:, None, None]


def texture(xp: ModuleType, x: Any, y: Any, ground: Any) -> Any:
    """Soft blobs and finer grain in 0..1: waves from coarse to fine, each bent by the one before."""
    total, last = 0.5, 0.0
    for i in range(WAVES_AT, GROUND_FIELDS, 4):
        kx, ky, phase, amplitude = (_column(ground, i + f) for f in range(4))
        last = xp.sin(kx * x + ky * y + phase + 1.3 * last)
        total = total + amplitude * last
    return xp.clip(total, 0, 1)


def _mix(xp: ModuleType, x: Any, y: Any, ground: Any) -> Any:
    """How much of the ground's second colour each pixel has."""
    cos, sin, pitch, pattern, midx, midy = (_column(ground, i) for i in (6, 7, 8, 9, 18, 19))
    only = int(pattern.item()) if xp is np and pattern.size == 1 else None
    mix = 0 * x + 0 * y
    if only in (None, GRADIENT):
        ramp = xp.clip(0.5 + 0.8 * ((x - midx) * cos + (y - midy) * sin), 0, 1)
        mix = xp.where(pattern == GRADIENT, ramp, mix)
    if only in (None, CHECKERED):
        check = xp.floor(x / pitch) + xp.floor(y / pitch)
        mix = xp.where(pattern == CHECKERED, check - 2 * xp.floor(check / 2), mix)
    if only in (None, TEXTURED):
        mix = xp.where(pattern == TEXTURED, texture(xp, x, y, ground), mix)
    return mix


def paint_ground(
    xp: ModuleType, x: Any, y: Any, pixel: Any, ground: Any, noise: Any, tables: Any, row: Any
) -> list[Any]:
    """The three planes before any shape: colours, pattern, printed text, noise. Arguments as :func:`paint` has them."""
    mix = _mix(xp, x, y, ground)
    left, top, cell = (_column(ground, i) for i in (12, 13, 14))
    printed = ink(xp, (x - left) / cell, (y - top) / cell, cell / pixel, tables, row)
    planes = []
    for c in range(3):
        plane = _column(ground, c) + mix * (_column(ground, 3 + c) - _column(ground, c))
        plane = plane + printed * (_column(ground, 15 + c) - plane)
        planes.append(plane + _column(ground, 10) * noise[:, c])
    return planes


def paint_thing(xp: ModuleType, x: Any, y: Any, pixel: Any, thing: Any, planes: list[Any]) -> list[Any]:
    """The planes with one shape ``[n, 8]`` on top."""
    cx, cy, r, kind, *rgb, on = (_column(thing, f) for f in range(THING_FIELDS))
    cover = xp.clip(0.5 - distance(xp, (x - cx) / r, (y - cy) / r, kind) * r / pixel, 0, 1) * on
    return [plane + cover * (own - plane) for plane, own in zip(planes, rgb, strict=True)]


def paint_light(xp: ModuleType, x: Any, y: Any, ground: Any, planes: list[Any]) -> list[Any]:
    """The planes under the picture's light, darker towards its corners."""
    away = (x - _column(ground, 18)) ** 2 + (y - _column(ground, 19)) ** 2
    light = 1 - _column(ground, 11) * away
    return [xp.clip(plane * light, 0, 1) for plane in planes]


def paint(
    xp: ModuleType, x: Any, y: Any, pixel: Any, things: Any, ground: Any, noise: Any, tables: Any, row: Any
) -> list[Any]:
    """Red, green and blue, each ``[n, h, w]`` in 0..1.

    In units: x ``[n, 1, w]``, y ``[n, h, 1]`` and pixel ``[n, 1, 1]``, the width of the soft edge. Things
    ``[n, 8, 8]`` in painting order (x, y, r, kind, rgb, on), ground ``[n, 60]``, noise standard normal
    ``[n, 3, h, w]``, tables ``[b, 9 * 37]`` of printed ink and row ``[n, 1, 1]``, whose table each picture has.
    """
    planes = paint_ground(xp, x, y, pixel, ground, noise, tables, row)
    for i in range(things.shape[1]):
        if xp is not np or things[:, i, -1].any():
            planes = paint_thing(xp, x, y, pixel, things[:, i], planes)
    return paint_light(xp, x, y, ground, planes)
