"""Whether the server works: /health for whoever routes requests, /health/generate for whoever doubts it.

/health asks the engine nothing and needs no key: 200 while requests are taken, 503 while the model loads, when the
engine is dead and when the server is stopping. /health/generate computes one token. It takes no place, so that a full
server is not taken for a broken one; instead there is one probe at a time and at most one a second, however many ask.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gapless.records import Clock
from gapless.serve.engine import Engine
from gapless.serve.errors import Json, NotFound
from gapless.serve.limits import Gate, RequestLimits, unless_gone
from gapless.serve.schema import JSON, LOOKING, Responses, errors

HEALTH = "/health"
HOSTED = ("moondream3-preview", "moondream/moondream3-preview", "moondream-2B")
"""Names that clients of the hosted service send without being told to: whichever model is served is meant."""
QUESTION = "What is this?"
FRESH = 1.0
"""Seconds for which an answer is told to others too."""


class HealthRoutes:
    """The routes, and what they look at."""

    def __init__(self, engine: Engine, gate: Gate, limits: RequestLimits, clock: Clock) -> None:
        self._engine = engine
        self._gate = gate
        self._limits = limits
        self._clock = clock
        self._probe = asyncio.Lock()
        self._told: dict[str, Any] = {}
        self._told_until = -math.inf

    def router(self) -> APIRouter:
        """All of them."""
        router = APIRouter()
        no = {"description": "No: the model is loading or dead, or the server is stopping.", "content": {JSON: {}}}
        told: Responses = {**errors(405, 408, 431), 503: no}
        router.add_api_route(HEALTH, self.health, methods=["GET"], response_model=None, responses=told)
        router.add_api_route(HEALTH, self.health, methods=["HEAD"], response_model=None, include_in_schema=False)
        router.add_api_route(
            "/health/generate", self.generate, methods=["GET"], response_model=None, responses=errors(*LOOKING)
        )
        return router

    async def health(self) -> Response:
        """Whether a request would be taken now."""
        stage = self._engine.stage
        if not self._engine.ready:
            progress = {"doing": stage.doing, "done": stage.done, "total": stage.total} if stage is not None else {}
            return Json({"status": "loading"} | progress, 503, {"Retry-After": "5"})
        if self._engine.death() is not None:
            return Json({"status": "dead"}, 503)
        if self._gate.closed:
            return Json({"status": "stopping"}, 503, {"Retry-After": "5"})
        return Json({"status": "ready", "requests": self._gate.held, "places": self._gate.places})

    async def generate(self, request: Request) -> Response:
        """One token from the model, computed within the last second. One probe at a time; the others wait for it."""
        return Json(await unless_gone(request, self._probed()))

    async def _probed(self) -> dict[str, Any]:
        async with self._probe:
            self._gate.check()
            vlm = self._engine.vlm()
            started = self._clock.now()
            if started >= self._told_until:
                settings = {"max_tokens": 1, "temperature": 0, "timeout": self._limits.request_timeout}
                answer = await vlm.query(question=QUESTION, settings=settings)
                ended, tokens = self._clock.now(), answer["metrics"]["output_tokens"]
                self._told = {"status": "ready", "tokens": tokens, "ms": round(1e3 * (ended - started), 3)}
                self._told_until = ended + FRESH
            return self._told


def unless_hosted(named: str | None) -> str | None:
    """The model that a request names; None where the name says only that some model is meant."""
    return None if named in HOSTED else named


def check_model(named: str | None, name: str, adapters: Sequence[str] = ()) -> None:
    """A request may name the model it means, or one of its adapters. Raises `NotFound` for another one."""
    if named is not None and named != name and named not in adapters:
        has = f"model {name}" if not adapters else f"model {name} and the adapters {', '.join(adapters)}"
        raise NotFound(f"this server has the {has}, not {named[:80]!a}; leave model out, or name it", param="model")
