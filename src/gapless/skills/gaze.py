"""gaze: where a person looks, from where their eye is.

In: a picture and an eye, or the box of a face. Out: one point or None. With a face the question is asked twenty times,
from ten random places in the box and from ten in the mirrored picture; hits that lie apart are left out, the mean of
the others is the answer. Moondream 2 has a prompt of its own for this, in words around the eye's two coordinates (its
strings are those of the revisions asked in words; what later ones make of them is not known). Moondream 3 points at
"gaze", with the eye as a spatial reference.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, median
from typing import Any

from gapless.errors import InvalidRequest, UnsupportedSkill, shown
from gapless.records import Picture, Token
from gapless.skills.base import (
    Ask,
    Body,
    Piece,
    SkillContext,
    greedy_sampling,
    pictured,
    supported,
    to_prompt,
    wrapped,
)
from gapless.skills.settings import Settings, fresh_seed
from gapless.skills.spatial import PlaceCollector, is_list

Eye = tuple[float, float]
EYES = 10
"""Places in a face that are asked about, in each of the two pictures; with fewer hits than this there is no answer."""
NEAREST = 2
"""Of a hit's distances to all hits, its own nought included, this many are averaged, as in the reference."""
APART = 2.0
"""A hit is left out if that average is over so many times the median of all."""
BEFORE, AFTER = "\n\nPoint:", " gaze\n\n"
FACE = ("x_min", "y_min", "x_max", "y_max")
_SWITCHES = ("prioritize_accuracy", "force_detect")


@dataclass(frozen=True, slots=True)
class Looks:
    """What is asked: from each of `eyes` in the picture, and from each of `mirrored` in the mirrored one.

    `force`: the model may not say that there is no point.
    """

    eyes: tuple[Eye, ...]
    mirrored: tuple[Eye, ...] = ()
    force: bool = False


class GazeReader:
    """Reader of one gaze."""

    def __init__(self, size: int) -> None:
        self._places = PlaceCollector(size, sized=False)
        self._found: dict[str, float] | None = None

    @property
    def found(self) -> bool:
        """Whether there is a place, so that the answer is whole."""
        return self._found is not None

    def feed(self, tokens: Sequence[Token]) -> tuple[Piece, ...]:
        """See `Reader`."""
        for token in tokens:
            place = self._places.take(token)
            if place is not None and self._found is None:
                self._found = {"x": place[0], "y": place[1]}
                return (dict(self._found),)
        return ()

    def finish(self) -> tuple[Piece, ...]:
        """See `Reader`."""
        return ()

    def result(self) -> dict[str, Any]:
        """`{"gaze": {"x", "y"} or None}`."""
        return {"gaze": None if self._found is None else dict(self._found)}


def looks(eye: object, face: object, switches: object, settings: Mapping[str, object] | None) -> Looks:
    """Check what a caller gave. `switches`: the reference's `unstable_settings`, a dict of two booleans.

    The random places follow from the setting `seed`. Raises `InvalidRequest`.
    """
    accurate, force = _switches(switches)
    if not accurate:
        if eye is None:
            raise InvalidRequest("eye must be given: [x, y] of the upright picture, 0..1", param="eye")
        return Looks((_eye(eye),), force=force)
    if face is None:
        raise InvalidRequest("prioritize_accuracy needs a face: a box as detect returns them", param="face")
    box, seed = _face(face), Settings.parse(settings).seed
    draw = Random(fresh_seed() if seed is None else seed)
    places = [(draw.uniform(box[0], box[2]), draw.uniform(box[1], box[3])) for _ in range(2 * EYES)]
    return Looks(tuple(places[:EYES]), tuple((1 - x, y) for x, y in places[EYES:]), force)


def gaze(
    context: SkillContext,
    picture: Picture | None,
    eye: Eye,
    *,
    force: bool = False,
    settings: Mapping[str, object] | None = None,
) -> Ask:
    """Ask for `{"gaze": {"x", "y"} or None}` from one eye; with `force` there is always a point.

    Moondream 2's adapters were never made for its gaze, whose reference uses none: raises `InvalidRequest` for one.
    """
    wrap = supported(context, "gaze", context.templates.point)
    chosen = replace(Settings.parse(settings), max_objects=1)
    if chosen.adapter is not None and not context.templates.gaze_points:
        raise InvalidRequest("a gaze of Moondream 2 uses no adapter; leave it out of the settings", param="adapter")
    ids = context.templates.ids
    if ids.coord is None or ids.size is None:
        raise UnsupportedSkill(f"the model {context.name} has no coordinate ids, so it cannot tell a gaze")
    place = Body((ids.coord, ids.coord), ((eye[0],), (eye[1],)))
    if context.templates.gaze_points:
        body = wrapped(context, wrap, "gaze", place, "object")
    else:
        before, after = (Body.text(context.tokenizer.encode(text)) for text in (BEFORE, AFTER))
        body = before + place + after
    prompt = to_prompt(context, pictured(picture, "gaze"), body)
    sampling = greedy_sampling(context, prompt, chosen, stride=2)
    program, reader = "forced-point" if force else "point", GazeReader(ids.size)
    return Ask(prompt, program, sampling, reader, chosen.timeout, adapter=chosen.adapter)


def gathered(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One answer from those about a picture and then as many about the mirrored one: `{"gaze": {"x", "y"} or None}`."""
    half = len(results) // 2
    hits = [(r["gaze"]["x"], r["gaze"]["y"]) for r in results[:half] if r["gaze"] is not None]
    hits += [(1 - r["gaze"]["x"], r["gaze"]["y"]) for r in results[half:] if r["gaze"] is not None]
    if len(hits) < EYES:
        return {"gaze": None}
    together = without_outliers(hits)
    return {"gaze": {"x": fmean(x for x, _ in together), "y": fmean(y for _, y in together)}}


def without_outliers(points: Sequence[Eye]) -> list[Eye]:
    """Those that have others near them, in their order; see `NEAREST` and `APART`. Never none of one or more."""
    spread = [fmean(sorted(math.dist(p, q) for q in points)[:NEAREST]) for p in points]
    limit = APART * median(spread) if spread else 0.0
    return [p for p, own in zip(points, spread, strict=True) if own <= limit]


def _switches(given: object) -> tuple[bool, bool]:
    if given is None:
        return False, False
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            f"unstable_settings must be a dict like {{'prioritize_accuracy': True}}, not {type(given).__name__}",
            param="unstable_settings",
        )
    for name, value in given.items():
        if name not in _SWITCHES:
            raise InvalidRequest(
                f"unknown unstable setting {shown(name)}; known are {', '.join(_SWITCHES)} (a mirrored picture is made "
                "as it is needed)",
                param="unstable_settings",
            )
        if not isinstance(value, bool):
            raise InvalidRequest(f"{name} must be True or False, not {shown(value)}", param="unstable_settings")
    return bool(given.get(_SWITCHES[0], False)), bool(given.get(_SWITCHES[1], False))


def _within(values: Sequence[object]) -> bool:
    return all(isinstance(v, numbers.Real) and not isinstance(v, bool) and _is_part(v) for v in values)


def _is_part(value: Any) -> bool:  # mypy knows no order of real numbers; one of them may be too large for a float
    return bool(0.0 <= value <= 1.0)


def _eye(eye: object) -> Eye:
    place = list(eye) if is_list(eye) and not isinstance(eye, str | bytes) else []  # type: ignore[call-overload]
    if len(place) != 2 or not _within(place):
        raise InvalidRequest(
            f"eye must be [x, y], two numbers from 0 to 1: divide x by the picture's width and y by its height; got "
            f"{shown(eye)}",
            param="eye",
        )
    return float(place[0]), float(place[1])


def _face(face: object) -> tuple[float, float, float, float]:
    sides = [face.get(side) for side in FACE] if isinstance(face, Mapping) else []
    if len(sides) != 4 or not _within(sides) or sides[0] > sides[2] or sides[1] > sides[3]:  # type: ignore[operator]
        raise InvalidRequest(
            f"face must be a box with x_min <= x_max and y_min <= y_max from 0 to 1, as detect returns them; got "
            f"{shown(face)}",
            param="face",
        )
    x_min, y_min, x_max, y_max = (float(side) for side in sides)  # type: ignore[arg-type]
    return x_min, y_min, x_max, y_max
