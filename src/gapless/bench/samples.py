"""The bundled sample pictures, what to ask about them, and what is true.

In: `assets/samples/samples.json`. Out: `Question`s, and for each answer whether it agrees with the truth: texts by
their words; points (within 0.05 of the picture's sides) and boxes (overlapping by at least one half) one to one; an
outline by the box around it, which must be that of one of the objects it may mean. Coordinates are parts of the
picture's width and height.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gapless.bench.asks import Ask, Result, Skill

FOLDER = Path(__file__).resolve().parent.parent / "assets" / "samples"
GREEDY = {"temperature": 0.0}
NEAR = 0.05
OVERLAP = 0.5

ASKED = 5
"""Of a picture's suggested questions, so many are asked."""

Truth = str | list[list[float]]
"""A text; or points [x, y]; or boxes [x_min, y_min, x_max, y_max], for an outline those of all it may mean."""
Place = Sequence[float]


@dataclass(frozen=True, slots=True)
class Question:
    """Something to ask about one of the pictures."""

    picture: Path
    ask: Ask
    truth: Truth


def read_samples() -> list[Question]:
    """All questions, picture by picture: a caption, some queries, and objects to point at, box and outline."""
    samples = json.loads((FOLDER / "samples.json").read_text(encoding="utf-8"))
    return [
        Question(FOLDER / sample["file"], Ask(skill, text, GREEDY), truth)
        for sample in samples["pictures"]
        for skill, text, truth in _about(sample)
    ]


def _about(sample: dict[str, Any]) -> Iterator[tuple[Skill, str, Truth]]:
    """The kind pictured first is pointed at; one object by its colour, and one that is not there, are boxed."""
    boxes = {entry["object"]: [_corners(box) for box in entry["boxes"]] for entry in sample["objects"]}
    _, kind, coloured, *_, absent = boxes
    outlined = sample["segment"]["object"]
    yield "caption", "normal", sample["captions"]["normal"]
    for entry in sample["questions"][:ASKED]:
        yield "query", entry["question"], entry["answer"]
    yield "point", kind, [_centre(box) for box in boxes[kind]]
    yield "detect", coloured, boxes[coloured]
    yield "detect", absent, boxes[absent]
    yield "segment", outlined, boxes[outlined]


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
        case "gaze":
            return [[result["gaze"]["x"], result["gaze"]["y"]]] if result["gaze"] else []


def agrees(ask: Ask, result: Result, truth: Truth) -> bool:
    """Whether an answer says what is true."""
    found = found_in(ask, result)
    if isinstance(found, str) or isinstance(truth, str):
        return _words(found) == _words(truth)
    if ask.skill == "segment":
        return any(_overlapping(box, other) for box in found for other in truth) if truth else not found
    return _paired(found, truth, _near if ask.skill in ("point", "gaze") else _overlapping)


def _corners(box: dict[str, float]) -> list[float]:
    return [box["x_min"], box["y_min"], box["x_max"], box["y_max"]]


def _centre(box: Place) -> list[float]:
    return [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2]


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
