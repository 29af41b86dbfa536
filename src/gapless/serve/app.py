"""The application: routes behind the door, and the model's life between start and stop.

In: an `Engine`, a `Gate`, limits and keys. Out: an ASGI application. Starting it begins to load the model; stopping it
ends the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gapless import __version__
from gapless.config import ImageLimits
from gapless.errors import GaplessError
from gapless.serve.door import Door
from gapless.serve.engine import Engine
from gapless.serve.errors import MethodNotAllowed, NotFound, error_response, is_inside
from gapless.serve.health import HEALTH, HealthRoutes
from gapless.serve.limits import Gate, LoopClock, RateLimit, RequestLimits
from gapless.serve.log import BackgroundLog
from gapless.serve.metrics import MetricsRoutes, Visits
from gapless.serve.moondream import MoondreamRoutes
from gapless.serve.openai import OpenAIRoutes
from gapless.serve.playground import PlaygroundRoutes

CHAT = "/v1/chat/completions"
OLDER_AND_NEWER = ("/v1/completions", "/v1/responses")
"""OpenAI's other ways to ask for an answer."""
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "moondream": {"type": "apiKey", "in": "header", "name": "X-Moondream-Auth"},
}

_log = logging.getLogger("gapless.serve")


def make_app(
    engine: Engine,
    gate: Gate,
    limits: RequestLimits,
    keys: Sequence[str],
    rate: RateLimit | None = None,
    threads: int = 4,
    log: BackgroundLog | None = None,
    origins: Sequence[str] = (),
    playground: ImageLimits | None = None,
) -> Door:
    """Put the routes together. No page is served that would load anything from elsewhere.

    `threads`: how many bodies, pictures and texts are worked on at once. They are the event loop's default executor,
    and nothing else uses that. `log`: whose losses the metrics tell. `origins`: see `Door`. `playground`: what its
    pictures may be; None: there is none.
    """
    visits = Visits()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        pool = ThreadPoolExecutor(threads, "gapless-picture")
        asyncio.get_running_loop().set_default_executor(pool)
        engine.start()
        yield
        pool.shutdown(wait=False, cancel_futures=True)
        await engine.close()

    app = FastAPI(
        title="gapless", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan
    )
    app.include_router(MoondreamRoutes(engine, limits).router())
    app.include_router(OpenAIRoutes(engine, limits).router())
    app.include_router(HealthRoutes(engine, gate, limits, LoopClock()).router())
    app.include_router(MetricsRoutes(engine, gate, visits, log).router())
    page = None if playground is None else PlaygroundRoutes(engine, gate, limits, playground)
    if page is not None:
        app.include_router(page.router())
    app.add_exception_handler(GaplessError, _refuse)
    app.add_exception_handler(Exception, _broken)
    app.add_exception_handler(HTTPException, _no_route)
    if keys:
        _tell_of_keys(app.openapi())
    return Door(app, keys, gate, visits, rate, origins, () if page is None else page.files)


def _tell_of_keys(document: dict[str, Any]) -> None:
    document["components"]["securitySchemes"] = SCHEMES
    document["security"] = [{name: []} for name in SCHEMES]
    document["paths"][HEALTH]["get"]["security"] = []


async def _refuse(request: Request, error: Exception) -> Response:
    request.state.error = error  # the door counts it
    if is_inside(error):
        _log.error("request %s failed", request.state.request_id, exc_info=error)
    return error_response(error, request.state.request_id, request.url.path)


async def _broken(request: Request, error: Exception) -> Response:
    """What nobody expected. It goes on to the door, which logs it."""
    return error_response(error, request.state.request_id, request.url.path)


async def _no_route(request: Request, error: Exception) -> Response:
    path, method = request.url.path[:80], request.method
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = (getattr(error, "headers", None) or {}) if status == 405 else {}
    if status == 405:
        allowed = headers.get("Allow", "another one")
        told: GaplessError = MethodNotAllowed(f"{path!a} does not take {method}; use {allowed}")
    elif status == 404:
        there = f"use {CHAT}" if path in OLDER_AND_NEWER else "/openapi.json lists those there are"
        told = NotFound(f"there is no route {path!a}; {there}")
    else:
        raise error
    request.state.error = told
    response = error_response(told, request.state.request_id, request.url.path)
    response.headers.update(headers)
    return response
