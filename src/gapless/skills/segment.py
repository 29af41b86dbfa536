"""segment: the outline of one object.

The answer is the box's centre and size, then the outline as text. Its numbers are relative to the box as decoded; the
box returned is clamped to the picture, so the outline is put in relation to that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gapless.errors import InvalidRequest, UnsupportedSkill
from gapless.images.path import rasterise
from gapless.records import Picture, Token
from gapless.skills.base import (
    Ask,
    Piece,
    SkillContext,
    Values,
    greedy_sampling,
    pictured,
    supported,
    to_prompt,
    user_text,
    wrapped,
)
from gapless.skills.outline import PathWriter
from gapless.skills.settings import Settings
from gapless.skills.spatial import PlaceCollector, SpatialRefs, box_of, references

_LAST_RESERVED = 20
"""Ids up to here are no text in any tokenizer that comes with this skill."""


class SegmentReader:
    """Reader of an outline. A stream yields {"bbox"}, {"chunk"}..., and {"path", "bbox", "completed": True}.

    The chunks joined are the path. `size` (width, height) in pixels adds a "mask" bool [height, width] to the result.
    """

    def __init__(self, context: SkillContext, size: tuple[int, int] | None = None) -> None:
        ids = context.templates.ids
        if ids.coord is None or ids.size is None:
            raise UnsupportedSkill(f"the model {context.name} has no coordinate ids, so it cannot segment")
        self._tokenizer = context.tokenizer
        self._place = PlaceCollector(ids.size, sized=True)
        self._bbox: dict[str, float] | None = None
        self._outline = PathWriter()
        self._size = size

    def feed(self, tokens: Sequence[Token]) -> tuple[Piece, ...]:
        """See `Reader`."""
        pieces: list[Piece] = []
        for token in tokens:
            if self._bbox is None:
                place = self._place.take(token)
                if place is not None:
                    self._bbox = box_of(*place)
                    self._outline = PathWriter(*_maps(place, self._bbox))
                    pieces.append({"bbox": dict(self._bbox)})
            elif token.id > _LAST_RESERVED:
                chunk = self._outline.take(self._tokenizer.decode([token.id]))
                if chunk:
                    pieces.append({"chunk": chunk})
        return tuple(pieces)

    def finish(self) -> tuple[Piece, ...]:
        """See `Reader`."""
        return (self.result() | {"completed": True},)

    def result(self) -> dict[str, Any]:
        """`{"path": str, "bbox": {...} or None}`; with nothing found the path is empty. "mask" is a numpy array."""
        result: dict[str, Any] = {"path": self._outline.path, "bbox": dict(self._bbox) if self._bbox else None}
        if self._size is not None:
            result["mask"] = rasterise(result["path"], self._bbox, *self._size)
        return result


def _maps(place: Values, box: Mapping[str, float]) -> tuple[tuple[float, float], tuple[float, float]]:
    """(scale, shift) per axis from coordinates in the decoded box to coordinates in the clamped one."""

    def one(centre: float, extent: float, low: float, high: float) -> tuple[float, float]:
        start = centre - extent / 2
        if high <= low or (start == low and centre + extent / 2 == high):
            return 1.0, 0.0
        return extent / (high - low), (start - low) / (high - low)

    x, y, width, height = place
    return one(x, width, box["x_min"], box["x_max"]), one(y, height, box["y_min"], box["y_max"])


def segment(
    context: SkillContext,
    picture: Picture | None,
    object: object,
    *,
    spatial_refs: SpatialRefs | None = None,
    mask: bool = False,
    settings: Mapping[str, object] | None = None,
) -> Ask:
    """Ask for `{"path", "bbox"}` of one object; `mask` adds a bool array of the upright picture's size."""
    if not isinstance(mask, bool):
        raise InvalidRequest(f"mask must be True or False, not {type(mask).__name__}", param="mask")
    wrap = supported(context, "segment", context.templates.segment)
    chosen = Settings.parse(settings)
    refs = references(context, spatial_refs)
    body = wrapped(context, wrap, user_text(object, "object"), refs, "object")
    picture = pictured(picture, "segment")
    prompt = to_prompt(context, picture, body)
    reader = SegmentReader(context, (picture.width, picture.height) if mask else None)
    return Ask(
        prompt, "segment", greedy_sampling(context, prompt, chosen), reader, chosen.timeout, adapter=chosen.adapter
    )
