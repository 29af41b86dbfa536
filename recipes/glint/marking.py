"""Marking one answer: how much of what was wanted is there, and how much else.

In: a :class:`~recipes.glint.exam.Question` and the :class:`~recipes.glint.exam.Answer` that came back. Out: a
:class:`Mark`. Places are parts of the picture's sides; a point counts within 0.03 in both axes, a box from an overlap
(intersection over union) of 0.5; every wanted place and every place found is used at most once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from recipes.glint import phrases as say
from recipes.glint.exam import Answer, Box, Question

from gapless.images.path import rasterise

NEAR = 0.03
HALF = 0.5
GRID = 128
"""Masks are compared on a grid of this many cells a side over both boxes together."""
Place = TypeVar("Place")
_ONE_OF = "|".join
_KINDS = {word: pair[0] for pair in zip(say.KINDS, say.PLURALS, strict=True) for word in pair}
_KINDS |= {word: "shape" for pair in say.GENERIC for word in pair}
_THING = re.compile(
    rf"(?:\b(\d+|an?|the) )?(?:\b({_ONE_OF(say.SIZES)}) )?(?:\b({_ONE_OF(say.COLOURS)}) )?\b({_ONE_OF(_KINDS)})\b"
)
_GROUND = re.compile(rf"\b({_ONE_OF(say.GROUNDS)}) background\b")
_PRINTED = re.compile(r"\b[Tt]he (?:word|number) ([A-Z0-9]+)\b")


@dataclass(frozen=True)
class Mark:
    """One marked answer. ``found``, ``wanted`` and ``matched`` count points, boxes or things named in a caption.

    ``overlaps``: of every matched box. ``mask``: overlap of the outlines, 0 when one is missing, None where there is no
    outline to find. ``absent``: nothing was to be found, and ``alarm`` says that something was.
    """

    number: int
    question: Question
    got: Answer
    right: bool
    matched: int = 0
    found: int = 0
    wanted: int = 0
    overlaps: tuple[float, ...] = ()
    mask: float | None = None
    absent: bool = False
    alarm: bool = False
    groups: dict[str, str] = field(default_factory=dict)


def overlap(a: Box, b: Box) -> float:
    """Intersection over union of two boxes given by their edges; 0 for two empty ones."""
    w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    both = max(w, 0.0) * max(h, 0.0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both
    return both / union if union > 0 else 0.0


def closeness(a: tuple[float, float], b: tuple[float, float]) -> float:
    """1 for the same point, 0.5 at a distance of 0.03 along the farther axis, less beyond."""
    return 1 - max(abs(a[0] - b[0]), abs(a[1] - b[1])) / (2 * NEAR)


def pairs(
    found: Sequence[Place], wanted: Sequence[Place], likeness: Callable[[Place, Place], float]
) -> list[float]:  # fmt: skip
    """Likeness of the pairs that are matched, the best first, each side used once, none under 0.5."""
    table = sorted(((likeness(f, w), i, j) for i, f in enumerate(found) for j, w in enumerate(wanted)), reverse=True)
    out: list[float] = []
    used_found, used_wanted = set(), set()
    for like, i, j in table:
        if like >= HALF - 1e-9 and i not in used_found and j not in used_wanted:
            used_found.add(i)
            used_wanted.add(j)
            out.append(like)
    return out


def mask_overlap(a: Answer, b: Answer) -> float:
    """Intersection over union of two outlines, each in its own box; 0 when one is missing or empty."""
    if not (a.boxes and b.boxes and a.path and b.path):
        return 0.0
    one, other = a.boxes[0], b.boxes[0]
    left, top = min(one[0], other[0]), min(one[1], other[1])
    width, height = max(one[2], other[2]) - left, max(one[3], other[3]) - top
    if width <= 0 or height <= 0:
        return 0.0

    def mask(answer: Answer) -> np.ndarray:
        x0, y0, x1, y1 = answer.boxes[0]
        box = {"x_min": (x0 - left) / width, "x_max": (x1 - left) / width,
               "y_min": (y0 - top) / height, "y_max": (y1 - top) / height}  # fmt: skip
        return rasterise(answer.path, box, GRID, GRID)

    first, second = mask(a), mask(b)
    union = int((first | second).sum())
    return int((first & second).sum()) / union if union else 0.0


def things_named(text: str) -> list[str]:
    """What a caption claims: things with their attributes, a count of shapes, the ground, printed words."""
    printed = _PRINTED.findall(text)
    text = _PRINTED.sub(" ", text).lower()
    out = [f"{ground} background" for ground in _GROUND.findall(text)] + [f'"{word}"' for word in printed]
    for count, *attributes, kind in _THING.findall(text):
        number = count if count.isdigit() else "1"
        out.append(" ".join([number, *filter(None, attributes), _KINDS[kind]]))
    return out


def mark(number: int, question: Question, got: Answer, groups: dict[str, str]) -> Mark:
    """Mark one answer."""
    want = question.want
    if question.skill == "point":
        return _mark_places(number, question, got, groups, pairs(got.points, want.points, closeness), got.points,
                            want.points)  # fmt: skip
    if question.skill == "detect":
        return _mark_places(number, question, got, groups, pairs(got.boxes, want.boxes, overlap), got.boxes, want.boxes)
    if question.skill == "segment":
        return _mark_outline(number, question, got, groups)
    right = got.text.strip() == want.text
    if question.skill == "caption":
        named, true = things_named(got.text), things_named(want.text)
        matched = sum((Counter(named) & Counter(true)).values())
        return Mark(number, question, got, right, matched, len(named), len(true), groups=groups)
    matched = len(pairs(got.points, want.points, closeness))
    return Mark(number, question, got, right, matched, len(got.points), len(want.points), groups=groups)


def _mark_places(
    number: int, question: Question, got: Answer, groups: dict[str, str], matched: list[float],
    found: Sequence[object], wanted: Sequence[object],
) -> Mark:  # fmt: skip
    right = len(matched) == len(found) == len(wanted)
    return Mark(number, question, got, right, len(matched), len(found), len(wanted), tuple(matched),
                absent=not wanted, alarm=bool(found) and not wanted, groups=groups)  # fmt: skip


def _mark_outline(number: int, question: Question, got: Answer, groups: dict[str, str]) -> Mark:
    want = question.want
    anything = bool(got.boxes or got.path)
    if not want.boxes:
        return Mark(number, question, got, not anything, found=int(anything), absent=True, alarm=anything,
                    groups=groups)  # fmt: skip
    like = tuple(overlap(a, b) for a, b in zip(got.boxes[:1], want.boxes, strict=False))
    mask = mask_overlap(got, want)
    return Mark(number, question, got, mask >= HALF, int(bool(like) and like[0] >= HALF), len(got.boxes), 1, like, mask,
                groups=groups)  # fmt: skip
