"""A question as data: what the fixed mix is a list of, and what the command line makes of its words.

In: a skill, a text, settings. Out: the call of `VLM` that they mean, and its result. Nothing here knows where a
question comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gapless.errors import InvalidRequest
from gapless.skills.gaze import FACE

if TYPE_CHECKING:
    from gapless.api.desk import Image
    from gapless.api.stream import Stream
    from gapless.api.vlm import VLM

Skill = Literal["query", "caption", "point", "detect", "segment", "gaze"]
Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked. `text`: the question, the object's name, or a caption's length. A gaze has none; its one spatial
    reference is an eye, or a face, which then is asked about with all care; `force`: it may not be without a point."""

    skill: Skill
    text: str
    settings: Mapping[str, object] = field(default_factory=dict)
    reasoning: bool = False
    spatial_refs: list[list[float]] | None = None
    force: bool = False
    schema: Mapping[str, Any] | None = None
    """Of the object that a query's answer is."""

    def put(self, vlm: VLM, image: Image | None) -> Result:
        """Ask about a picture (a query: or without one) and return the library's result."""
        refs, settings = self.spatial_refs, self.settings
        result: Result
        match self.skill:
            case "query":
                result = self._query(vlm, image)
            case "caption":
                result = vlm.caption(_given(image), self.text, settings=settings)
            case "point":
                result = vlm.point(_given(image), self.text, settings=settings, spatial_refs=refs)
            case "detect":
                result = vlm.detect(_given(image), self.text, settings=settings)
            case "segment":
                result = vlm.segment(_given(image), self.text, settings=settings, spatial_refs=refs)
            case "gaze":
                result = self._gaze(vlm, _given(image))
        return result

    def _query(self, vlm: VLM, image: Image | None, *, stream: bool = False) -> Result:
        result: Result = vlm.query(
            image,
            self.text,
            stream=stream,
            settings=self.settings,
            reasoning=self.reasoning,
            spatial_refs=self.spatial_refs,
            schema=self.schema,
        )
        return result

    def _gaze(self, vlm: VLM, image: Image) -> Result:
        place = (self.spatial_refs or [[]])[0]
        eye, face = (place, None) if len(place) == 2 else (None, dict(zip(FACE, place, strict=True)))
        switches = {"prioritize_accuracy": face is not None, "force_detect": self.force}
        result: Result = vlm.detect_gaze(image, eye, face, switches, self.settings)
        return result

    def stream(self, vlm: VLM, image: Image | None) -> Stream:
        """Ask, and return the answer as it grows. Points, boxes and gazes do not stream: raises `InvalidRequest`."""
        refs, settings = self.spatial_refs, self.settings
        stream: Stream
        match self.skill:
            case "query":
                stream = self._query(vlm, image, stream=True)["answer"]
            case "caption":
                stream = vlm.caption(_given(image), self.text, stream=True, settings=settings)["caption"]
            case "segment":
                stream = vlm.segment(_given(image), self.text, spatial_refs=refs, stream=True, settings=settings)
            case _:
                raise InvalidRequest(f"{self.skill} does not stream; ask for the whole answer", param="stream")
        return stream


def _given(image: Image | None) -> Image:
    if image is None:
        raise InvalidRequest("only a query goes without a picture; name one", param="image")
    return image
