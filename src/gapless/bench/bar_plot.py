"""Numbers as a picture: clusters of bars on white, one bar of a cluster for each series.

In: clusters, series and words. Out: an RGB image. Pillow alone draws it. The axis begins at zero (or below, for a
loss), and has round steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby
from operator import attrgetter

from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]
PALE, STRONG = (159, 190, 226), (31, 94, 168)
PALETTE = (PALE, STRONG, (214, 137, 60), (120, 150, 96), (150, 105, 160), (120, 120, 120))
"""Colours of the series; further ones begin again."""
INK, FAINT, GRID = (32, 36, 42), (110, 116, 124), (226, 229, 233)
HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 96, 40, 156, 104
BAR, BETWEEN, SLOT, APART = 62, 6, 200, 44
MARGIN = 16
"""Pixels: a bar's width at most, between the bars of a cluster, from cluster to cluster, more between groups; and free
at each side of a cluster."""
MOST_LINES = 7
LEAST_WIDTH = 520


@dataclass(frozen=True, slots=True)
class Cluster:
    """Bars that belong together, a value for each series. `group`: what stands under all clusters of a kind, may be
    empty; a value of None has no bar."""

    label: str
    group: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Style:
    """`series`: a name each, in the order of the values; `unit`: behind the axis' numbers; `number`: how the value of
    a bar is written; `least`: the axis reaches at least so high."""

    series: tuple[str, ...]
    unit: str = ""
    number: str = ".3g"
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Axis:
    """Values to pixels."""

    low: float
    high: float
    step: float

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return TOP + (HEIGHT - BOTTOM - TOP) * (self.high - value) / (self.high - self.low)

    def lines(self) -> list[float]:
        """Values at which a line goes across."""
        return [self.low + i * self.step for i in range(round((self.high - self.low) / self.step) + 1)]


def axis_for(values: Sequence[float], least: float = 0.0) -> Axis:
    """The smallest round axis that holds zero, `least` and all values: steps of 1, 2 or 5 times a power of ten."""
    low = min(0.0, *values)
    high = max(low + least, 0.0, *values)
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / MOST_LINES))
    step = next(power * m for m in (1, 2, 5, 10) if span / (power * m) <= MOST_LINES)
    return Axis(step * math.floor(low / step), step * math.ceil((low + span) / step), step)


def draw_bars(clusters: Sequence[Cluster], style: Style, title: str, subtitle: str) -> Image.Image:
    """Draw the bars, left to right, clusters of one group next to one another. Raises `ValueError` without a value."""
    values = [value for cluster in clusters for value in cluster.values if value is not None]
    if not values:
        raise ValueError("there is no number to draw")
    axis = axis_for(values, style.least)
    groups = [(group, list(mine)) for group, mine in groupby(clusters, attrgetter("group"))]
    wide = SLOT * len(clusters) + APART * (len(groups) - 1)
    words = max(font(30).getlength(title), font(18).getlength(subtitle))
    canvas = Image.new("RGB", (LEFT + RIGHT + math.ceil(max(wide, words, LEAST_WIDTH)), HEIGHT), "white")
    pen = ImageDraw.Draw(canvas)
    _head(pen, title, subtitle, list(_key(clusters, style)))
    _grid(pen, axis, canvas.width, style.unit)
    x = LEFT + (canvas.width - LEFT - RIGHT - wide) / 2
    for group, mine in groups:
        for i, cluster in enumerate(mine):
            _cluster(pen, axis, x + SLOT * (i + 0.5), cluster, style)
        _centred(pen, x + SLOT * len(mine) / 2, HEIGHT - 50, group, 20)
        x += SLOT * len(mine) + APART
    pen.line((LEFT, axis.y(0), canvas.width - RIGHT, axis.y(0)), fill=FAINT, width=2)
    return canvas


def stacked(pictures: Sequence[Image.Image]) -> Image.Image:
    """Pictures one above the other."""
    canvas = Image.new("RGB", (max(p.width for p in pictures), sum(p.height for p in pictures)), "white")
    y = 0
    for picture in pictures:
        canvas.paste(picture, (0, y))
        y += picture.height
    return canvas


def _key(clusters: Sequence[Cluster], style: Style) -> Iterator[tuple[str, Colour]]:
    """Names and colours of the series that have a bar."""
    for i, (name, colour) in enumerate(zip(style.series, cycle(PALETTE), strict=False)):
        if any(cluster.values[i] is not None for cluster in clusters):
            yield name, colour


def _head(pen: ImageDraw.ImageDraw, title: str, subtitle: str, key: Sequence[tuple[str, Colour]]) -> None:
    pen.text((LEFT, 24), title, font=font(30), fill=INK)
    pen.text((LEFT, 64), subtitle, font=font(18), fill=FAINT)
    x: float = LEFT
    for name, colour in key:
        pen.rectangle((x, 100, x + 16, 116), fill=colour)
        pen.text((x + 24, 108), name, font=font(18), fill=INK, anchor="lm")
        x += 24 + font(18).getlength(name) + 32


def _grid(pen: ImageDraw.ImageDraw, axis: Axis, width: int, unit: str) -> None:
    for value in axis.lines():
        pen.line((LEFT, axis.y(value), width - RIGHT, axis.y(value)), fill=GRID)
        pen.text((LEFT - 12, axis.y(value)), f"{value:g}{unit}", font=font(18), fill=FAINT, anchor="rm")


def _cluster(pen: ImageDraw.ImageDraw, axis: Axis, middle: float, cluster: Cluster, style: Style) -> None:
    there = [(v, colour) for v, colour in zip(cluster.values, cycle(PALETTE), strict=False) if v is not None]
    bar = max(1, min(BAR, (SLOT - 2 * MARGIN) // max(len(there), 1) - BETWEEN))
    left = middle - (bar * len(there) + BETWEEN * (len(there) - 1)) / 2
    for value, colour in there:
        top, bottom = sorted((axis.y(value), axis.y(0)))
        pen.rectangle((round(left), round(top), round(left) + bar - 1, round(bottom)), fill=colour)
        _centred(pen, left + bar / 2, top - 15 if value >= 0 else bottom + 15, f"{value:{style.number}}", 18)
        left += bar + BETWEEN
    _centred(pen, middle, HEIGHT - BOTTOM + 24, cluster.label, 18)


def _centred(pen: ImageDraw.ImageDraw, x: float, y: float, text: str, size: int) -> None:
    pen.text((x, y), text, font=font(size), fill=INK, anchor="mm", stroke_width=3, stroke_fill="white")


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """The letters of all pictures."""
    return ImageFont.load_default(size)
