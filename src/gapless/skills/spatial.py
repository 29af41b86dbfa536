"""Places in pictures: references in a prompt, points and boxes in an answer.

All numbers are parts of the upright picture's width and height, 0..1, x to the right, y down.
In: a caller's references, or committed tokens whose values are coordinates and sizes. Out: prompt ids with values, or
plain dicts. Invariants: a box lies in the picture and has min <= max; an object cut off in its middle is left out.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

from gapless.errors import InvalidRequest, UnsupportedSkill, shown
from gapless.records import Token
from gapless.skills.base import NOTHING, Body, Piece, SkillContext, Values

SpatialRefs = Sequence[Sequence[float]]
_PARAM = "spatial_refs"


def references(context: SkillContext, refs: SpatialRefs | None) -> Body:
    """[x, y] becomes two coordinate ids; [x_min, y_min, x_max, y_max] the centre's two and one size id.

    Raises `InvalidRequest` for anything but 2 or 4 finite numbers in 0..1 with min <= max.
    """
    if refs is None:
        return NOTHING
    if isinstance(refs, str | bytes) or not is_list(refs):
        raise _wrong(refs, "must be a list of points [x, y] and boxes [x_min, y_min, x_max, y_max]")
    if len(refs) == 0:
        return NOTHING
    ids = context.templates.ids
    if context.templates.worded or ids.coord is None or ids.size is None:
        raise UnsupportedSkill(
            f"the model {context.name} does not take spatial references; leave them out, or use Moondream 2 of "
            "2025-06-21 or later",
            param=_PARAM,
        )
    if len(refs) > context.max_context:
        raise InvalidRequest(f"{len(refs)} spatial references do not fit in a context of {context.max_context}")
    kinds: list[int] = []
    values: list[Values] = []
    for ref in refs:
        numbers_ = _numbers(ref)
        x, y, *rest = numbers_ if len(numbers_) == 2 else _centre_form(numbers_)
        kinds += [ids.coord, ids.coord]
        values += [(x,), (y,)]
        if rest:
            kinds.append(ids.size)
            values.append(tuple(rest))
    return Body(tuple(kinds), tuple(values))


def is_list(value: object) -> bool:
    """A collection in order. A numpy array without dimensions has the methods of one, but raises from them."""
    if isinstance(value, dict | set | frozenset) or not (hasattr(value, "__len__") and hasattr(value, "__iter__")):
        return False
    try:
        return len(value) >= 0
    except TypeError:
        return False


def _wrong(value: object, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"{_PARAM} {wanted}; got {shown(value)}", param=_PARAM)


def _numbers(ref: object) -> Values:
    if isinstance(ref, numbers.Real):
        raise _wrong(ref, "must be a list of lists, like [[0.5, 0.5]]")
    if isinstance(ref, str | bytes) or not is_list(ref):
        raise _wrong(ref, "must hold points [x, y] and boxes [x_min, y_min, x_max, y_max]")
    found = list(ref)  # type: ignore[call-overload]
    if len(found) not in (2, 4):
        raise _wrong(ref, f"must hold 2 or 4 numbers each, not {len(found)}")
    if any(isinstance(v, bool) or not isinstance(v, numbers.Real) for v in found):
        raise _wrong(ref, "must hold numbers")
    if not all(0.0 <= v <= 1.0 for v in found):
        raise _wrong(ref, "must lie in 0..1: divide x by the picture's width and y by its height")
    return tuple(float(v) for v in found)


def _centre_form(box: Values) -> Values:
    x_min, y_min, x_max, y_max = box
    if x_min > x_max or y_min > y_max:
        raise _wrong(list(box), "must have x_min <= x_max and y_min <= y_max")
    return (x_min + x_max) / 2, (y_min + y_max) / 2, x_max - x_min, y_max - y_min


def box_of(x: float, y: float, width: float, height: float) -> dict[str, float]:
    """A box from its centre and extent, clamped to the picture."""

    def clamp(value: float) -> float:
        return min(1.0, max(0.0, value))

    return {
        "x_min": clamp(x - width / 2),
        "y_min": clamp(y - height / 2),
        "x_max": clamp(x + width / 2),
        "y_max": clamp(y + height / 2),
    }


class PlaceCollector:
    """Gathers the values of coordinate and size tokens into places: (x, y), or (x, y, w, h) when `sized`."""

    def __init__(self, size: int, *, sized: bool) -> None:
        self._size, self._sized = size, sized
        self._open: list[float] = []

    def take(self, token: Token) -> Values | None:
        """Take one token; return the place it completes. Values out of order or not finite begin anew."""
        values = token.values
        if not all(math.isfinite(v) for v in values):
            self._open = []
        elif len(values) == 1:  # whatever its id: any may open an object where a tokenizer has no coordinates
            if len(self._open) == 2:
                self._open = []
            self._open.append(float(values[0]))
            if len(self._open) == 2 and not self._sized:
                return self._close()
        elif token.id == self._size and len(values) == 2:
            if len(self._open) == 2:
                self._open += [float(v) for v in values]
                return self._close()
            self._open = []
        return None

    def _close(self) -> Values:
        place, self._open = tuple(self._open), []
        return place


class PlacesReader:
    """Reader of point and detect. A stream yields each object as soon as it is complete."""

    def __init__(self, context: SkillContext, key: str) -> None:
        ids = context.templates.ids
        if ids.coord is None or ids.size is None:
            raise UnsupportedSkill(f"the model {context.name} has no coordinate ids, so it cannot return {key}")
        self._key = key
        self._places = PlaceCollector(ids.size, sized=key == "objects")
        self._found: list[dict[str, float]] = []

    def feed(self, tokens: Sequence[Token]) -> tuple[Piece, ...]:
        """See `Reader`."""
        places = [place for token in tokens if (place := self._places.take(token)) is not None]
        new = [box_of(*p) if len(p) == 4 else {"x": p[0], "y": p[1]} for p in places]
        self._found += new
        return tuple(new)

    def finish(self) -> tuple[Piece, ...]:
        """See `Reader`."""
        return ()

    def result(self) -> dict[str, Any]:
        """`{"points": [{"x", "y"}]}` or `{"objects": [{"x_min", "y_min", "x_max", "y_max"}]}`; perhaps empty lists."""
        return {self._key: [dict(place) for place in self._found]}
