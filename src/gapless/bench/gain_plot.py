"""Predicted and observed gains as a picture: two bars per number of streams, on white.

In: bars and words. Out: an RGB image. Pillow alone draws it. Gains are fractions; the axis is in percent, begins at
zero (or below, for a loss), and has round steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from PIL import Image, ImageDraw, ImageFont

PREDICTED, OBSERVED = (159, 190, 226), (31, 94, 168)
INK, FAINT, GRID = (32, 36, 42), (110, 116, 124), (226, 229, 233)
HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 96, 40, 156, 104
BAR, BETWEEN, SLOT, APART = 62, 6, 200, 44
"""Pixels: a bar's width, between the two of a pair, from pair to pair, and more between groups."""
MOST_LINES = 7


@dataclass(frozen=True, slots=True)
class Bars:
    """One pair. `group`: what stands under all pairs of a kind, may be empty; a gain of None has no bar."""

    label: str
    group: str
    predicted: float | None
    observed: float | None


@dataclass(frozen=True, slots=True)
class Axis:
    """Percent to pixels."""

    low: float
    high: float
    step: float

    def y(self, percent: float) -> float:
        """Pixels from the top."""
        return TOP + (HEIGHT - BOTTOM - TOP) * (self.high - percent) / (self.high - self.low)

    def lines(self) -> list[float]:
        """Percents at which a line goes across."""
        return [self.low + i * self.step for i in range(round((self.high - self.low) / self.step) + 1)]


def axis_for(percents: Sequence[float]) -> Axis:
    """The smallest round axis that holds zero and all of them: steps of 1, 2 or 5 times a power of ten."""
    low = min(0.0, *percents)
    high = max(low + 1.0, 0.0, *percents)
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / MOST_LINES))
    step = next(power * m for m in (1, 2, 5, 10) if span / (power * m) <= MOST_LINES)
    return Axis(step * math.floor(low / step), step * math.ceil(high / step), step)


def draw_gains(bars: Sequence[Bars], title: str, subtitle: str) -> Image.Image:
    """Draw the bars, left to right, pairs of one group next to one another. Raises `ValueError` without a gain."""
    percents = [100 * gain for pair in bars for gain in (pair.predicted, pair.observed) if gain is not None]
    if not percents:
        raise ValueError("there is no gain to draw")
    axis = axis_for(percents)
    groups = [(group, list(pairs)) for group, pairs in groupby(bars, attrgetter("group"))]
    wide = SLOT * len(bars) + APART * (len(groups) - 1)
    words = max(_font(30).getlength(title), _font(18).getlength(subtitle))
    canvas = Image.new("RGB", (LEFT + RIGHT + math.ceil(max(wide, words, 520)), HEIGHT), "white")
    pen = ImageDraw.Draw(canvas)
    _head(pen, title, subtitle, [any(pair.predicted is not None for pair in bars), any(map(_seen, bars))])
    _grid(pen, axis, canvas.width)
    x = LEFT + (canvas.width - LEFT - RIGHT - wide) / 2
    for group, pairs in groups:
        for i, pair in enumerate(pairs):
            _pair(pen, axis, x + SLOT * (i + 0.5), pair)
        _centred(pen, x + SLOT * len(pairs) / 2, HEIGHT - 50, group, 20, INK)
        x += SLOT * len(pairs) + APART
    pen.line((LEFT, axis.y(0), canvas.width - RIGHT, axis.y(0)), fill=FAINT, width=2)
    return canvas


def _seen(pair: Bars) -> bool:
    return pair.observed is not None


def _head(pen: ImageDraw.ImageDraw, title: str, subtitle: str, shown: Sequence[bool]) -> None:
    """Title, subtitle, and a key for the kinds of bars that are `shown`."""
    pen.text((LEFT, 24), title, font=_font(30), fill=INK)
    pen.text((LEFT, 64), subtitle, font=_font(18), fill=FAINT)
    x: float = LEFT
    for colour, word, there in zip((PREDICTED, OBSERVED), ("predicted", "observed"), shown, strict=True):
        if there:
            pen.rectangle((x, 100, x + 16, 116), fill=colour)
            pen.text((x + 24, 108), word, font=_font(18), fill=INK, anchor="lm")
            x += 24 + _font(18).getlength(word) + 32


def _grid(pen: ImageDraw.ImageDraw, axis: Axis, width: int) -> None:
    for percent in axis.lines():
        pen.line((LEFT, axis.y(percent), width - RIGHT, axis.y(percent)), fill=GRID)
        pen.text((LEFT - 12, axis.y(percent)), f"{percent:g} %", font=_font(18), fill=FAINT, anchor="rm")


def _pair(pen: ImageDraw.ImageDraw, axis: Axis, middle: float, pair: Bars) -> None:
    both = pair.predicted is not None and pair.observed is not None
    left = middle - BAR - BETWEEN / 2 if both else middle - BAR / 2
    for gain, colour in ((pair.predicted, PREDICTED), (pair.observed, OBSERVED)):
        if gain is None:
            continue
        top, bottom = sorted((axis.y(100 * gain), axis.y(0)))
        pen.rectangle((round(left), round(top), round(left) + BAR - 1, round(bottom)), fill=colour)
        at = top - 15 if gain >= 0 else bottom + 15
        _centred(pen, left + BAR / 2, at, f"{100 * gain:+.1f}", 18, INK)
        left += BAR + BETWEEN
    _centred(pen, middle, HEIGHT - BOTTOM + 24, pair.label, 18, INK)


def _centred(pen: ImageDraw.ImageDraw, x: float, y: float, text: str, size: int, colour: tuple[int, int, int]) -> None:
    pen.text((x, y), text, font=_font(size), fill=colour, anchor="mm", stroke_width=3, stroke_fill="white")


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
