"""A ninth shape for scenes that know eight: one of the eight steps aside in a picture, and the new one plays its part.

Goes in: a scene and the kind that steps aside in it (the understudied kind). Comes out: the picture with the new shape
in that kind's boxes, and the streams of the usual requests with the two names exchanged. "How many hearts?" becomes
"How many moons?" with the same answer; a question about a moon, which every picture lacks, becomes one about the
hearts, which this picture lacks. So all that the generators know how to ask is asked about the new word, and
always truthfully. The eight kinds, the renderer and the phrases stay as they are.

A :class:`Shape` fills the square -1..1; y grows downwards. To the renderer it is eight more kinds, one for the box of
each kind it may stand in for; importing this module appends them to the renderer's, and no generator knows of them.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from PIL import Image
from recipes.glint.phrases import KINDS, PLURALS, article
from recipes.glint.prompts import fill
from recipes.glint.scenes import Scene, Thing, draw, make_scene
from recipes.glint.shapes import CONTOUR_SCALE, DISTANCES, EXTENTS, contour
from recipes.glint.streams import PIECES, Stream, Vocabulary

Point = tuple[float, float]
BITE, BITE_AT = 0.85, 0.389  # the circle that is cut from the moon: radius, and x and -y of its centre
NUMBERS = sorted({n for kind in range(len(KINDS)) for point in contour(kind) for n in point})
TIP = 0.9744  # how far the moon's tips reach to the right and up; it reaches 1 to the left and down


def _moon(xp: ModuleType, u: Any, v: Any) -> Any:
    """A crescent, open up and to the right."""
    x, y = u * (1 + TIP) / 2 - (1 - TIP) / 2, v * (1 + TIP) / 2 + (1 - TIP) / 2
    bite = BITE - xp.sqrt((x - BITE_AT) ** 2 + (y + BITE_AT) ** 2 + 1e-9)
    return xp.maximum(xp.sqrt(x * x + y * y + 1e-9) - 1, bite) * 2 / (1 + TIP)


def _snapped(c: float) -> int:
    """A coordinate -1..1 of an outline as one of the numbers 0..960 that the eight outlines use.

    The frozen head was never taught to tell the other numbers apart, and low-rank branches cannot make up for that.
    """
    place = (c + 1) / 2 * CONTOUR_SCALE
    return min(NUMBERS, key=lambda n: abs(n - place))


def _miss(point: Point) -> float:
    """How far a point moves when it is snapped."""
    return max(abs(_snapped(c) * 2 / CONTOUR_SCALE - 1 - c) for c in point)


def _moon_outline(inner: int = 5, outer: int = 9) -> tuple[Point, ...]:
    """Tip, inner arc, tip, and the outer arc back around the left; of each stretch the point that moves least."""
    lean, away = -math.pi / 4, math.sqrt(2) * BITE_AT
    half = math.acos((1 - BITE**2 + away**2) / (2 * away))
    bite = math.atan2(math.sin(half), math.cos(half) - away)
    scale, shift = 2 / (1 + TIP), (1 - TIP) / (1 + TIP)

    def on(centre: float, radius: float, angle: float) -> Point:
        x, y = centre + radius * math.cos(angle), -centre + radius * math.sin(angle)
        return x * scale + shift, y * scale - shift

    def arc(centre: float, radius: float, start: float, sweep: float, count: int) -> list[Point]:
        turns = [[(i + 0.5 + s / 100) / count for s in range(-35, 36)] for i in range(count)]
        return [min((on(centre, radius, start + sweep * u) for u in stretch), key=_miss) for stretch in turns]

    back = arc(BITE_AT, BITE, lean - bite, 2 * (bite - math.pi), inner)
    around = arc(0, 1, lean + half, 2 * (math.pi - half), outer)
    return on(0, 1, lean - half), *back, on(0, 1, lean + half), *around


def _hexagon(xp: ModuleType, u: Any, v: Any) -> Any:
    """A hexagon with a flat top."""
    return xp.maximum(xp.abs(v) - 1, (xp.abs(u) + 0.55 * xp.abs(v) - 1) / math.hypot(1, 0.55))


@dataclass(frozen=True)
class Shape:
    """A word, its plural, the signed distance, the outline from the top, clockwise, and its first kind."""

    word: str
    plural: str
    distance: Callable[[ModuleType, Any, Any], Any]
    outline: tuple[Point, ...]
    first: int

    def outline_text(self) -> list[str]:
        """Pieces of the outline's path, as segment answers: ``M x y L x y ... Z``, integers 0..960."""
        numbers = [str(_snapped(c)) for point in self.outline for c in point]
        return ["M", *numbers[:2], "L", *numbers[2:], "Z"]

    def boxed(self, extents: Point) -> Callable[[ModuleType, Any, Any], Any]:
        """The distance function of this shape in the frame and the box of another kind."""
        ex, ey = extents

        def distance(xp: ModuleType, x: Any, y: Any) -> Any:
            return self.distance(xp, x / ex, y / ey) * min(ex, ey)

        return distance


HEXAGON = ((-0.45, -1.0), (0.45, -1.0), (1.0, 0.0), (0.45, 1.0), (-0.45, 1.0), (-1.0, 0.0))
SHAPES = {
    "moon": Shape("moon", "moons", _moon, _moon_outline(), len(DISTANCES)),
    "hexagon": Shape("hexagon", "hexagons", _hexagon, HEXAGON, len(DISTANCES) + len(KINDS)),
}
DISTANCES.extend(shape.boxed(extents) for shape in SHAPES.values() for extents in EXTENTS)
PARTS = tuple(k for k, name in enumerate(KINDS) if article(name) == "a " + name and name != "diamond")
"""Kinds that may step aside: their boxes are nearly square, and their names take the same article."""


class Exchanged(Vocabulary):
    """A vocabulary that reads one noun for another, both ways, in any capitals, singular and plural."""

    def __init__(self, base: Vocabulary, one: tuple[str, str], other: tuple[str, str]) -> None:
        self.tokenizer, self.config, self.templates = base.tokenizer, base.config, base.templates
        self._plain = base
        pairs = [*zip(one, other, strict=True), *zip(other, one, strict=True)]
        self._names = {way(a): way(b) for a, b in pairs for way in (str.lower, str.capitalize, str.upper)}

    def exchange(self, text: str) -> str:
        """The text with the names exchanged."""
        pieces = PIECES.findall(text)
        return "".join(p[: p.startswith(" ")] + self._names.get(p.lstrip(" "), p.lstrip(" ")) for p in pieces)

    def encode(self, text: str) -> list[int]:
        """Ids of the exchanged text."""
        return self._plain.encode(self.exchange(text))


@dataclass(frozen=True)
class Cast:
    """A scene, and the kind whose part the new shape plays in it; -1 when it has no part."""

    scene: Scene
    part: int

    def new_things(self) -> tuple[Thing, ...]:
        """The things that are drawn as the new shape."""
        return tuple(t for t in self.scene.things if t.kind == self.part)


class Stage:
    """Makes casts, their pictures and their requests for one new shape."""

    def __init__(self, shape: Shape, vocabulary: Vocabulary) -> None:
        self.shape, self.vocabulary = shape, vocabulary
        new = (shape.word, shape.plural)
        self._exchanged = {k: Exchanged(vocabulary, (KINDS[k], PLURALS[k]), new) for k in PARTS}

    def cast(self, rng: random.Random, aspect: float, new: float) -> Cast:
        """A fresh scene; a share ``new`` of them has a part for the new shape, mostly one that is on stage."""
        scene = make_scene(rng, aspect)
        if rng.random() >= new:
            return Cast(scene, -1)
        present = [t.kind for t in scene.things if t.kind in PARTS]
        return Cast(scene, rng.choice(present if present and rng.random() < 0.8 else PARTS))

    def words(self, cast: Cast) -> Vocabulary:
        """The vocabulary in which a cast is asked about."""
        return self.vocabulary if cast.part < 0 else self._exchanged[cast.part]

    def streams(self, cast: Cast, rng: random.Random, length: int, jitter: float) -> list[Stream]:
        """Random requests about a cast, at most ``length`` positions."""
        out, room = [], length
        for plain in fill(cast.scene, rng, self.words(cast), length, jitter):
            s = self.corrected(cast, plain)
            if len(s) <= room:  # an outline may have become longer
                out.append(s)
                room -= len(s)
        return out

    def corrected(self, cast: Cast, s: Stream) -> Stream:
        """The new outline in a segment answer whose box is that of a new thing."""
        mark = self.vocabulary.encode("M")[0]
        if s.skill != "segment" or cast.part < 0 or mark not in s.answer_ids():
            return s
        chosen, things = next(i for i in s.aim if i >= 0), cast.scene.things
        if chosen >= len(things) or things[chosen].kind != cast.part:  # printed text comes after the things
            return s
        start = s.prompt_length + s.answer_ids().index(mark)
        for values in vars(s).values():
            if isinstance(values, list):
                del values[start:]
        return s.say([i for p in self.shape.outline_text() for i in self.vocabulary.encode(p)], 0.5).end()

    def picture(self, cast: Cast, width: int, height: int, seed: int = 0) -> Image.Image:
        """The picture of a cast."""
        things = tuple(
            dataclasses.replace(t, kind=self.shape.first + t.kind) if t.kind == cast.part else t
            for t in cast.scene.things
        )
        return Image.fromarray(draw(dataclasses.replace(cast.scene, things=things), width, height, seed))
