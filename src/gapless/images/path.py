"""SVG paths: read them, turn curves into short lines, fill them.

In: path data whose coordinates are parts of a box, and the box in parts of the picture. Out: polygons, or a mask.
Invariant: any text gives some polygons; what follows the first thing that is no path data is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_Point = tuple[float, float]

ARITY = {"M": 2, "L": 2, "H": 1, "V": 1, "C": 6, "S": 4, "Q": 4, "T": 2, "A": 7, "Z": 0}
"""How many numbers each command takes; lower case means relative to the current point."""
_CURVE_STEPS = 16
_FARTHEST = 1e6
_NEAREST = 1e-9
"""What is nearer or thinner than this is a point or a line: its square, or what is divided by it, is no number."""
_TOKEN = re.compile(r"[\s,]*(?:([MLHVCSQTAZmlhvcsqtaz])|([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))")


def commands(path: str) -> Iterator[tuple[str, tuple[float, ...]]]:
    """(letter, numbers) of each command, repeated ones spelled out. Ends at the first malformed place."""
    letter, at = "", 0
    numbers: list[float] = []
    while found := _TOKEN.match(path, at):
        at = found.end()
        if found[1]:
            if numbers or (not letter and found[1] not in "Mm"):
                return
            letter = found[1]
            if letter in "Zz":
                yield letter, ()
            continue
        number = float(found[2])
        if not letter or letter in "Zz" or not abs(number) <= _FARTHEST:
            return
        numbers.append(number)
        if len(numbers) == ARITY[letter.upper()]:
            yield letter, tuple(numbers)
            numbers = []
            letter = {"M": "L", "m": "l"}.get(letter, letter)


class _Pen:
    """Follows commands and keeps the polygons drawn so far, curves as short lines."""

    def __init__(self) -> None:
        self.polygons: list[list[_Point]] = []
        self.at: _Point = (0.0, 0.0)
        self._control: _Point | None = None
        self._curve = ""

    def draw(self, letter: str, numbers: tuple[float, ...]) -> None:
        kind = letter.upper()
        if kind == "Z":
            self._close()
            return
        points = self._absolute(kind, letter.islower(), numbers)
        if kind == "M":
            self.polygons.append([points[-1]])
        elif kind in "CSQT":
            self._bezier(kind, points)
        elif kind == "A":
            self._line(_arc(self.at, numbers, points[-1]))
        else:
            self._line(points)
        self.at = points[-1]
        self._curve = kind

    def _absolute(self, kind: str, relative: bool, numbers: tuple[float, ...]) -> list[_Point]:
        """The command's points in path coordinates; an arc's end only."""
        x, y = self.at if relative else (0.0, 0.0)
        if kind == "H":
            return [(x + numbers[0], self.at[1])]
        if kind == "V":
            return [(self.at[0], y + numbers[0])]
        if kind == "A":
            numbers = numbers[5:]
        return [(x + a, y + b) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]

    def _line(self, points: list[_Point]) -> None:
        if not self.polygons:
            self.polygons.append([self.at])
        self.polygons[-1] += points

    def _close(self) -> None:
        if self.polygons:
            self.at = self.polygons[-1][0]
            self.polygons.append([self.at])
        self._curve = ""

    def _bezier(self, kind: str, points: list[_Point]) -> None:
        """Cubic and quadratic curves; S and T mirror the control point of a curve of their own kind before them."""
        if kind in "ST":
            smooth = self._control is not None and self._curve in ("CS" if kind == "S" else "QT")
            last = self._control if smooth and self._control is not None else self.at
            points = [(2 * self.at[0] - last[0], 2 * self.at[1] - last[1]), *points]
        self._control = points[-2]
        knots = np.array([self.at, *points])[:, None, :]
        t = np.linspace(0.0, 1.0, _CURVE_STEPS + 1)[1:, None]
        while len(knots) > 1:  # De Casteljau, all steps of t at once
            knots = knots[:-1] * (1 - t) + knots[1:] * t
        self._line([(float(x), float(y)) for x, y in knots[0]])


def _arc(start: _Point, numbers: tuple[float, ...], end: _Point) -> list[_Point]:
    """Points of an elliptical arc, by the centre form of the SVG specification (appendix B.2.4)."""
    rx, ry, turn, large, sweep = abs(numbers[0]), abs(numbers[1]), math.radians(numbers[2]), numbers[3], numbers[4]
    if min(rx, ry, math.dist(start, end)) < _NEAREST:
        return [end]
    cos, sin = math.cos(turn), math.sin(turn)
    dx, dy = (start[0] - end[0]) / 2, (start[1] - end[1]) / 2
    x, y = cos * dx + sin * dy, cos * dy - sin * dx
    grow = max(1.0, math.sqrt((x / rx) ** 2 + (y / ry) ** 2))
    rx, ry = rx * grow, ry * grow
    under = (rx * y) ** 2 + (ry * x) ** 2
    factor = math.sqrt(max(0.0, (rx * ry) ** 2 - under) / under)
    factor = -factor if bool(large) == bool(sweep) else factor
    cx, cy = factor * rx * y / ry, -factor * ry * x / rx
    first = math.atan2((y - cy) / ry, (x - cx) / rx)
    swept = (math.atan2((-y - cy) / ry, (-x - cx) / rx) - first) % (2 * math.pi)
    if not sweep:
        swept -= 2 * math.pi
    mx, my = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    angles = first + swept * np.linspace(0.0, 1.0, 2 * _CURVE_STEPS + 1)[1:-1]
    u, v = rx * np.cos(angles) + cx, ry * np.sin(angles) + cy
    inner = zip(cos * u - sin * v + mx, sin * u + cos * v + my, strict=True)
    return [*((float(a), float(b)) for a, b in inner), end]


def polygons(path: str) -> list[Points]:
    """float64 [n, 2] corner lists in the path's own coordinates, at least two corners each; all count as closed."""
    pen = _Pen()
    for letter, numbers in commands(path):
        pen.draw(letter, numbers)
    return [np.array(p) for p in pen.polygons if len(p) > 1]


def placed(path: str, bbox: Mapping[str, float], width: int, height: int) -> list[Points]:
    """The polygons in pixels of a picture: path coordinate 0 is the box's left and top edge, 1 its right and bottom."""
    origin = np.array([bbox["x_min"] * width, bbox["y_min"] * height])
    extent = np.array([(bbox["x_max"] - bbox["x_min"]) * width, (bbox["y_max"] - bbox["y_min"]) * height])
    return [polygon * extent + origin for polygon in polygons(path)]


def rasterise(path: str, bbox: Mapping[str, float] | None, width: int, height: int) -> Mask:
    """bool [height, width], True where a pixel's centre is inside the path (non-zero winding rule)."""
    turns = np.zeros((height, width + 1), dtype=np.int32)
    if bbox is not None:
        for polygon in placed(path, bbox, width, height):
            for a, b in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
                _wind(turns, a, b)
    inside: Mask = np.cumsum(turns, axis=1)[:, :width] != 0
    return inside


def _wind(turns: npt.NDArray[np.int32], a: Points, b: Points) -> None:
    """Mark where an edge crosses each row's centre line: right of the crossing the winding number changes by one."""
    height, last = turns.shape[0], turns.shape[1] - 1
    (ax, ay), (bx, by) = a, b
    top, bottom = (ay, by) if ay < by else (by, ay)
    first, stop = max(0, math.ceil(top - 0.5)), min(height, math.ceil(bottom - 0.5))
    if first >= stop:
        return
    rows = np.arange(first, stop)
    x = ax + (rows + 0.5 - ay) * ((bx - ax) / (by - ay))
    columns = np.clip(np.ceil(x - 0.5), 0, last).astype(np.int64)
    turns[rows, columns] += 1 if by > ay else -1
