"""The bundled sample pictures, what to ask about them, and what is true.

In: `assets/samples/samples.json`. Out: `Question`s, and for each answer whether it agrees with the truth: texts by
their words, points within 0.05 of the picture's sides, boxes (an outline's too) by an overlap of at least one half,
one to one. Coordinates are parts of the picture's width and height.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gapless.bench.asks import Ask, Result

FOLDER = Path(__file__).resolve().parent.parent / "assets" / "samples"
GREEDY = {"temperature": 0.0}
NEAR = 0.05
OVERLAP = 0.5

Truth = str | list[list[float]]
"""A text; or points [x, y]; or boxes [x_min, y_min, x_max, y_max], for an outline the one box around it."""
Place = Sequence[float]


@dataclass(frozen=True, slots=True)
class Question:
    """Something to ask about one of the pictures."""

    picture: Path
    ask: Ask
    truth: Truth


def read_samples() -> list[Question]:
    """All questions, picture by picture."""
    samples = json.loads((FOLDER / "samples.json").read_text(encoding="utf-8"))
    return [
        Question(FOLDER / sample["file"], Ask(ask["skill"], ask["text"], GREEDY), ask["truth"])
        for sample in samples
        for ask in sample["asks"]
    ]


def found_in(ask: Ask, result: Result) -> Truth:
    """The result in the form of a truth."""
    match ask.skill:
        case "query":
            return str(result["answer"]).strip()
        case "caption":
            return str(result["caption"]).strip()
        case "point":
            return [[point["x"], point["y"]] for point in result["points"]]
        case "detect":
            return [_corners(box) for box in result["objects"]]
        case "segment":
            return [_corners(result["bbox"])] if result["bbox"] else []


def agrees(ask: Ask, result: Result, truth: Truth) -> bool:
    """Whether an answer says what is true."""
    found = found_in(ask, result)
    if isinstance(found, str) or isinstance(truth, str):
        return _words(found) == _words(truth)
    return _paired(found, truth, _near if ask.skill == "point" else _overlapping)


def _corners(box: dict[str, float]) -> list[float]:
    return [box["x_min"], box["y_min"], box["x_max"], box["y_max"]]


def _words(text: Truth) -> list[str]:
    return str(text).casefold().replace(".", " ").replace(",", " ").split()


def _paired(found: list[list[float]], truth: list[list[float]], fits: Callable[[Place, Place], bool]) -> bool:
    """One to one: each place that is true takes the first one found that fits it and is left."""
    left = list(found)
    for place in truth:
        match = next((i for i, other in enumerate(left) if fits(other, place)), None)
        if match is None:
            return False
        del left[match]
    return not left


def _near(a: Place, b: Place) -> bool:
    return math.dist(a, b) <= NEAR


def _overlapping(a: Place, b: Place) -> bool:
    """Intersection over union of two boxes."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return False
    union = _area(a) + _area(b) - width * height
    return width * height >= OVERLAP * union


def _area(box: Place) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])
