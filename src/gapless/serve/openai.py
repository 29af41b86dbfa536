"""OpenAI's routes: /v1/chat/completions and /v1/models, for clients with nothing but their base URL changed.

In: the JSON that OpenAI's clients send. Out: the JSON, or the events, that they read; errors too are in their shape.
What the model can do beside chat is reached through the field `skill`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gapless.api.aio import AsyncVLM
from gapless.api.desk import EncodedImage
from gapless.api.stream import AsyncStream
from gapless.errors import InvalidImage, InvalidRequest
from gapless.images.data_url import picture_bytes
from gapless.serve.deadline import less, spent_on
from gapless.serve.engine import Engine
from gapless.serve.errors import Json
from gapless.serve.health import check_model, unless_hosted
from gapless.serve.limits import Places, RequestLimits, read, unless_gone
from gapless.serve.openai_body import WORDS, ChatBody, Wanted, placed, understood
from gapless.serve.openai_events import ChatEvents, Gathering, ResultEvents
from gapless.serve.openai_schema import Model, Models, completions, shown_as
from gapless.serve.openai_shapes import Chunks, Heading, completion, message_of
from gapless.serve.schema import LOOKING
from gapless.skills.chat import check_chat
from gapless.skills.messages import PicturePart


class OpenAIRoutes:
    """The routes, and whom they ask."""

    def __init__(self, engine: Engine, limits: RequestLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._started = int(time.time())

    def router(self) -> APIRouter:
        """All of them, below /v1."""
        router = APIRouter(prefix="/v1")
        content = {"application/json": {"schema": ChatBody.model_json_schema()}}
        router.add_api_route(
            "/chat/completions",
            self.chat,
            methods=["POST"],
            response_model=None,
            openapi_extra={"requestBody": {"required": True, "content": content}},
            responses=completions(),
        )
        router.add_api_route(
            "/models", self.models, methods=["GET"], response_model=None, responses=shown_as(Models, *LOOKING)
        )
        name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        router.add_api_route(
            "/models/{name:path}",
            self.model,
            methods=["GET"],
            response_model=None,
            openapi_extra={"parameters": [name]},
            responses=shown_as(Model, 404, *LOOKING),
        )
        return router

    async def models(self) -> Response:
        """The model that is served, and behind it its adapters."""
        names = self._names()
        return Json({"object": "list", "data": [self._card(name) for name in names]})

    async def model(self, request: Request) -> Response:
        """The model that is served or one of its adapters, if that is its name."""
        asked, (name, *adapters) = request.path_params["name"], self._names()
        check_model(asked, name, adapters)
        return Json(self._card(asked))

    def _names(self) -> list[str]:
        vlm = self._engine.vlm()
        return [vlm.desk.context.name, *vlm.adapters]

    def _card(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "gapless"}

    async def chat(self, request: Request) -> Response:
        """Go on with a conversation, or use a skill on its last message."""
        vlm, body = self._engine.vlm(), await read(request, ChatBody, self._limits)
        name, *adapters = self._names()
        check_model(unless_hosted(body.model), name, adapters)
        wanted = await asyncio.to_thread(understood, body, self._limits)
        wanted = replace(wanted, settings=less(wanted.settings, spent_on(request)))
        places: Places = request.state.places
        places.widen(wanted.choices)
        if body.model is not None and body.model != name and body.model in adapters:
            name, wanted = body.model, replace(wanted, settings={**wanted.settings, "adapter": body.model})
        heading = Heading(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), name, request.state.request_id)
        return await unless_gone(request, self._answer(vlm, wanted, heading))

    async def _answer(self, vlm: AsyncVLM, wanted: Wanted, heading: Heading) -> Response:
        """The whole answer, or its stream from the first piece on: until then an error has a status."""
        try:
            return await self._begin(vlm, wanted, heading)
        except InvalidRequest as error:
            raise placed(error, wanted.place_of(error.param)) from error

    async def _begin(self, vlm: AsyncVLM, wanted: Wanted, heading: Heading) -> Response:
        if wanted.skill == "chat":
            check_chat(vlm.desk.context, wanted.conversation, wanted.reasoning)
        images = [await _image(vlm, part) for part in wanted.pictures]
        chunks = Chunks(heading, wanted.usage_chunk)
        if wanted.stream and wanted.skill in WORDS:
            gathering = await _begun(vlm, wanted, images)
            try:
                return ChatEvents(gathering, await gathering.next(), chunks, self._limits.send_timeout)
            except BaseException:
                await gathering.close()
                raise
        answers = await _all([_ask(vlm, wanted, images, choice) for choice in range(wanted.choices)])
        if wanted.stream:
            said = {name: value for name, value in message_of(wanted.skill, answers[0]).items() if name != "role"}
            return ResultEvents(answers[0], said, chunks, self._limits.send_timeout)
        return Json(completion(heading, wanted.skill, answers))


async def _image(vlm: AsyncVLM, part: PicturePart) -> EncodedImage:
    """A picture, decoded once for all choices. Raises `InvalidImage` naming its place."""
    try:
        return await asyncio.to_thread(_read, vlm, str(part.source))
    except InvalidImage as error:
        raise InvalidImage(str(error), param=part.where) from error


def _read(vlm: AsyncVLM, source: str) -> EncodedImage:
    return vlm.desk.encode(picture_bytes(source))


def _ask(
    vlm: AsyncVLM, wanted: Wanted, images: Sequence[EncodedImage], choice: int, *, stream: bool = False
) -> Coroutine[Any, Any, Any]:
    """One choice, or the stream of it."""
    image, text = images[-1] if images else None, wanted.turn.text
    settings, refs = wanted.settings_of(choice), wanted.spatial_refs
    match wanted.skill:
        case "query":
            return vlm.query(image, text, stream, settings, wanted.reasoning, refs)
        case "caption":
            return vlm.caption(image, text.lower() or "normal", stream, settings)  # type: ignore[arg-type]
        case "detect":
            return vlm.detect(image, text, settings)  # type: ignore[arg-type]
        case "point":
            return vlm.point(image, text, settings, refs)  # type: ignore[arg-type]
        case "segment":
            return vlm.segment(image, text, refs, False, settings)  # type: ignore[arg-type]
    return vlm.chat(wanted.conversation.showing(images), stream, settings, wanted.reasoning)


async def _begun(vlm: AsyncVLM, wanted: Wanted, images: Sequence[EncodedImage]) -> Gathering:
    """The streams of all choices."""
    key = {"query": "answer", "caption": "caption"}.get(wanted.skill, "message")
    begun = await _all([_ask(vlm, wanted, images, choice, stream=True) for choice in range(wanted.choices)])
    streams: list[AsyncStream] = [found[key] for found in begun]
    return Gathering(streams, scored="logprobs" in wanted.settings)


async def _all(asking: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Results in order; the first error ends the others."""
    tasks = [asyncio.ensure_future(one) for one in asking]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
