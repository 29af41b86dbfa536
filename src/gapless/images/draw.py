"""Answers drawn into pictures: points, boxes, outlines, and text underneath.

In: an upright picture and what a skill returned, all coordinates 0..1. Out: a new RGB image; the one given is not
touched. Line widths and letters follow the picture's size, so small pictures stay readable and large ones too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont

from gapless.images.path import placed, rasterise

COLOURS = ((255, 64, 64), (64, 160, 255), (64, 200, 96), (255, 176, 32), (190, 96, 255), (0, 200, 200))
"""Objects take turns."""
_HALO = (255, 255, 255)
_INK = (24, 24, 24)
_FILL = 0.35

Colour = tuple[int, int, int]


def draw_points(image: Image.Image, points: Iterable[Mapping[str, float]], label: str = "") -> Image.Image:
    """Mark each {"x", "y"} with a ringed dot, numbered when there is more than one."""
    canvas, points = image.convert("RGB"), list(points)
    pen, radius = ImageDraw.Draw(canvas), 2 * _line_width(canvas)
    for i, point in enumerate(points):
        x, y = point["x"] * canvas.width, point["y"] * canvas.height
        for r, colour in ((radius + _line_width(canvas), _HALO), (radius, COLOURS[i % len(COLOURS)])):
            pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)
        _tag_at_dot(canvas, (x, y), radius, _numbered(label, i, len(points)), COLOURS[i % len(COLOURS)])
    return canvas


def draw_boxes(image: Image.Image, boxes: Iterable[Mapping[str, float]], label: str = "") -> Image.Image:
    """Frame each {"x_min", "y_min", "x_max", "y_max"}, numbered when there is more than one."""
    canvas, boxes = image.convert("RGB"), list(boxes)
    for i, box in enumerate(boxes):
        _frame(canvas, box, COLOURS[i % len(COLOURS)])
        _tag_beside(canvas, box, _numbered(label, i, len(boxes)), COLOURS[i % len(COLOURS)])
    return canvas


def draw_gaze(image: Image.Image, origin: Sequence[float], gaze: Mapping[str, float] | None) -> Image.Image:
    """A line from an eye [x, y], or from the middle of a framed face [x_min, y_min, x_max, y_max], to a marked point.
    Without a point the eye or the face alone is marked."""
    canvas = image.convert("RGB")
    if len(origin) == 4:
        _frame(canvas, dict(zip(("x_min", "y_min", "x_max", "y_max"), origin, strict=True)), COLOURS[1])
        origin = ((origin[0] + origin[2]) / 2, (origin[1] + origin[3]) / 2)
    elif gaze is None:
        return draw_points(canvas, [{"x": origin[0], "y": origin[1]}])
    if gaze is None:
        return canvas
    ends = [(x * canvas.width, y * canvas.height) for x, y in (origin, (gaze["x"], gaze["y"]))]
    for width, colour in ((3 * _line_width(canvas), _HALO), (_line_width(canvas), COLOURS[0])):
        ImageDraw.Draw(canvas).line(ends, fill=colour, width=width)
    return draw_points(canvas, [gaze])


def draw_outline(
    image: Image.Image, path: str, bbox: Mapping[str, float] | None, label: str = "", colour: Colour = COLOURS[0]
) -> Image.Image:
    """Tint the inside of an SVG path (relative to its box) and draw its edge. Without a box nothing is drawn."""
    canvas = image.convert("RGB")
    if bbox is None:
        return canvas
    inside = rasterise(path, bbox, canvas.width, canvas.height)
    tint = Image.fromarray((inside * round(255 * _FILL)).astype("uint8"))
    canvas.paste(colour, (0, 0, canvas.width, canvas.height), tint)
    pen = ImageDraw.Draw(canvas)
    for polygon in placed(path, bbox, canvas.width, canvas.height):
        corners = [(float(x), float(y)) for x, y in (*polygon, polygon[0])]
        pen.line(corners, fill=colour, width=_line_width(canvas), joint="curve")
    _tag_beside(canvas, bbox, label, colour)
    return canvas


def draw_text(image: Image.Image, text: str) -> Image.Image:
    """Set a text in a white strip under the picture, broken into lines."""
    picture = image.convert("RGB")
    font = _font(picture)
    pad = 2 * _line_width(picture)
    words = "\n".join(_lines(_printable(text, font), font, picture.width - 2 * pad))
    box = ImageDraw.Draw(picture).multiline_textbbox((pad, pad), words, font=font)
    width, strip = max(picture.width, int(box[2]) + pad), int(box[3]) + pad
    canvas = Image.new("RGB", (width, picture.height + strip), _HALO)
    canvas.paste(picture, (0, 0))
    ImageDraw.Draw(canvas).multiline_text((pad, picture.height + pad), words, font=font, fill=_INK)
    return canvas


def _lines(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, room: float) -> list[str]:
    """Break a text into lines of at most `room` pixels, or of 8 letters where the picture is narrower than that."""
    letter = max(1.0, font.getlength("abcdefghij ,.") / 13)
    for per_line in range(max(8, int(room / letter)), 7, -1):
        lines = [line for part in text.splitlines() for line in textwrap.wrap(part, per_line)]
        if all(font.getlength(line) <= room for line in lines):
            break
    return lines


def _line_width(canvas: Image.Image) -> int:
    return max(1, round(min(canvas.size) / 150))


def _font(canvas: Image.Image) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=min(64, max(11, min(canvas.size) // 24)))


def _numbered(label: str, index: int, count: int) -> str:
    return label if count < 2 else f"{label} {index + 1}".strip()


def _frame(canvas: Image.Image, box: Mapping[str, float], colour: Colour) -> None:
    width = _line_width(canvas)
    edges = (
        round(box["x_min"] * (canvas.width - 1)),
        round(box["y_min"] * (canvas.height - 1)),
        round(box["x_max"] * (canvas.width - 1)),
        round(box["y_max"] * (canvas.height - 1)),
    )
    ImageDraw.Draw(canvas).rectangle(edges, outline=colour, width=width)


def _tag_beside(canvas: Image.Image, box: Mapping[str, float], text: str, colour: Colour) -> None:
    """A label above the box, or below it where there is no room above, so that it does not cover what it names."""
    left, top, bottom = box["x_min"] * canvas.width, box["y_min"] * canvas.height, box["y_max"] * canvas.height
    height = _tag_size(canvas, text)[1]
    above, below = top - height, bottom + _line_width(canvas)
    fits_below = below + height <= canvas.height
    _tag(canvas, (left, above if above >= 0 else below if fits_below else top), text, colour)


def _tag_at_dot(canvas: Image.Image, at: tuple[float, float], radius: int, text: str, colour: Colour) -> None:
    """A label at the lower right of a dot, or on the other side where there is no room, so that it hides no dot."""
    width, height = _tag_size(canvas, text)
    x, y = at
    left = x + radius if x + radius + width <= canvas.width else x - radius - width
    top = y + radius if y + radius + height <= canvas.height else y - radius - height
    _tag(canvas, (left, top), text, colour)


def _tag_size(canvas: Image.Image, text: str) -> tuple[float, float]:
    """Width and height of a label with its patch."""
    font, pad = _font(canvas), _line_width(canvas)
    left, top, right, bottom = ImageDraw.Draw(canvas).textbbox((0, 0), _printable(text, font), font=font)
    return right - left + 2 * pad, bottom - top + 2 * pad


def _tag(canvas: Image.Image, at: tuple[float, float], text: str, colour: Colour) -> None:
    """A label on a patch of colour, moved so that it lies in the picture as far as it fits."""
    if not text:
        return
    font, pen = _font(canvas), ImageDraw.Draw(canvas)
    text = _printable(text, font)
    (width, height), pad = _tag_size(canvas, text), _line_width(canvas)
    x = max(0.0, min(at[0], canvas.width - width))
    y = max(0.0, min(at[1], canvas.height - height))
    left, top = pen.textbbox((0, 0), text, font=font)[:2]
    pen.rectangle((x, y, x + width, y + height), fill=colour)
    pen.text((x + pad - left, y + pad - top), text, font=font, fill=_HALO)


def _printable(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Pillow's fallback font (built without FreeType) raises for what is not Latin-1."""
    if isinstance(font, ImageFont.FreeTypeFont):
        return text.encode("utf-8", "replace").decode("utf-8")
    return text.encode("latin-1", "replace").decode("latin-1")
