"""The routes of the Moondream service: query, caption, detect, point, segment.

In: the JSON that the official clients send. Out: the JSON, or the events, that they read. A field that a route does not
know is an error that names it. Numbers in `settings` are checked where the library checks them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from gapless.api.aio import AsyncVLM
from gapless.api.stream import AsyncStream
from gapless.images.data_url import picture_bytes
from gapless.serve import schema
from gapless.serve.deadline import less, spent_on
from gapless.serve.engine import Engine
from gapless.serve.errors import Json, too_long
from gapless.serve.events import Events
from gapless.serve.health import check_model, unless_hosted
from gapless.serve.limits import RequestLimits, read, unless_gone

Refs = list[list[float]]


class Asked(BaseModel):
    """What all routes take. `settings`: temperature, top_p, max_tokens, max_objects, seed, timeout (seconds), adapter
    (a name)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    settings: Annotated[dict[str, Any] | None, WithJsonSchema(schema.SETTINGS)] = None
    model: str | None = None
    """The served model's name, as a check."""


class QueryBody(Asked):
    """A question, with or without a picture."""

    question: str
    image_url: str | None = None
    reasoning: bool = False
    spatial_refs: Refs | None = None
    stream: bool = False


class CaptionBody(Asked):
    """A picture to describe."""

    image_url: str
    length: Literal["short", "normal", "long"] = "normal"
    stream: bool = False


class DetectBody(Asked):
    """What to draw boxes around."""

    image_url: str
    object: str


class PointBody(DetectBody):
    """What to point at."""

    spatial_refs: Refs | None = None


class SegmentBody(PointBody):
    """What to outline."""

    stream: bool = False


class MoondreamRoutes:
    """The routes, and whom they ask."""

    def __init__(self, engine: Engine, limits: RequestLimits) -> None:
        self._engine = engine
        self._limits = limits

    def router(self) -> APIRouter:
        """All of them, below /v1."""
        router = APIRouter(prefix="/v1")
        routes = (
            ("/query", self.query, QueryBody, schema.QueryAnswer),
            ("/caption", self.caption, CaptionBody, schema.CaptionAnswer),
            ("/detect", self.detect, DetectBody, schema.DetectAnswer),
            ("/point", self.point, PointBody, schema.PointAnswer),
            ("/segment", self.segment, SegmentBody, schema.SegmentAnswer),
        )
        for path, route, body, answer in routes:
            content = {"application/json": {"schema": body.model_json_schema()}}
            described = {"requestBody": {"required": True, "content": content}}
            responses = schema.answers(answer, streams="stream" in body.model_fields)
            router.add_api_route(
                path, route, methods=["POST"], response_model=None, openapi_extra=described, responses=responses
            )
        return router

    async def query(self, request: Request) -> Response:
        """Answer a question."""
        vlm, body = self._engine.vlm(), await read(request, QueryBody, self._limits)
        settings = self._settings(request, vlm, body)
        image = None if body.image_url is None else await _decoded(body.image_url)
        asking = vlm.query(image, body.question, body.stream, settings, body.reasoning, body.spatial_refs)
        return await self._answer(request, asking, "answer")

    async def caption(self, request: Request) -> Response:
        """Describe a picture."""
        vlm, body = self._engine.vlm(), await read(request, CaptionBody, self._limits)
        settings, image = self._settings(request, vlm, body), await _decoded(body.image_url)
        return await self._answer(request, vlm.caption(image, body.length, body.stream, settings), "caption")

    async def detect(self, request: Request) -> Response:
        """Find objects as boxes."""
        vlm, body = self._engine.vlm(), await read(request, DetectBody, self._limits)
        settings, image = self._settings(request, vlm, body), await _decoded(body.image_url)
        return await self._answer(request, vlm.detect(image, body.object, settings), "objects")

    async def point(self, request: Request) -> Response:
        """Find objects as points."""
        vlm, body = self._engine.vlm(), await read(request, PointBody, self._limits)
        settings, image = self._settings(request, vlm, body), await _decoded(body.image_url)
        asking = vlm.point(image, body.object, settings, body.spatial_refs)
        return await self._answer(request, asking, "points")

    async def segment(self, request: Request) -> Response:
        """Outline one object."""
        vlm, body = self._engine.vlm(), await read(request, SegmentBody, self._limits)
        settings, image = self._settings(request, vlm, body), await _decoded(body.image_url)
        asking = vlm.segment(image, body.object, body.spatial_refs, body.stream, settings)
        return await self._answer(request, asking, "path")

    def _settings(self, request: Request, vlm: AsyncVLM, body: Asked) -> dict[str, Any]:
        """The body's settings with a deadline that is the server's or sooner."""
        check_model(unless_hosted(body.model), vlm.desk.context.name)
        settings = dict(body.settings or {})
        most, wanted = self._limits.request_timeout, settings.get("timeout")
        if isinstance(wanted, int | float) and wanted > most:
            raise too_long(wanted, most)
        settings["timeout"] = most if wanted is None else wanted
        return less(settings, spent_on(request))

    async def _answer(self, request: Request, asking: Awaitable[Any], key: str) -> Response:
        """Send the whole answer, or begin its stream with the first piece: until then an error has a status."""
        request_id = request.state.request_id
        found, first = await unless_gone(request, _begun(asking, key))
        stream = _stream_in(found, key)
        if stream is None:
            return Json({"request_id": request_id} | found)
        reasoning = found.get("reasoning") if isinstance(found, dict) else None
        return Events(stream, first, reasoning, request_id, self._limits.send_timeout)


async def _decoded(image_url: str) -> bytes:
    return await asyncio.to_thread(picture_bytes, image_url)


async def _begun(asking: Awaitable[Any], key: str) -> tuple[Any, Any]:
    """What came back, and if that is a stream its first piece, None if it has none."""
    found = await asking
    stream = _stream_in(found, key)
    return found, None if stream is None else await anext(stream, None)


def _stream_in(found: Any, key: str) -> AsyncStream | None:
    growing = found.get(key) if isinstance(found, dict) else found
    return growing if isinstance(growing, AsyncStream) else None
