"""gapless as an application of Ray Serve: engines, one a replica, behind fronts that take HTTP.

In: `app_builder`'s arguments (see `fleet.read_fleet`). Out: an application for `serve.run` or a Serve config's
`import_path: gapless.serve.ray_app:app_builder`. Both deployments reuse the server as it is: an engine runs `make_app`
without a socket (`Hosted`), a front has the same `Door` before `Forward`. Needs the extra `ray`.

Invariants: a replica takes requests only when its model is loaded; it is healthy if it generates, and ends with its
engine; its adapters are those of `user_config` and of `adapters_folder`, whichever replica was asked first.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from functools import partial
from time import monotonic
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from starlette.types import ASGIApp, Message

from gapless.errors import EngineClosed
from gapless.serve.app import make_app
from gapless.serve.door import Door
from gapless.serve.engine import Engine
from gapless.serve.fleet import ENGINE, FRONT, FleetSettings, engine_options, front_options, places_of, read_fleet
from gapless.serve.fleet_adapters import FleetAdapters
from gapless.serve.fleet_health import check_generates
from gapless.serve.fleet_metrics import front_families, merged
from gapless.serve.forward import REPLICA, EngineLost, Forward, WithoutId
from gapless.serve.hosted import Call, Hosted
from gapless.serve.limits import Gate
from gapless.serve.log import log_to_stderr
from gapless.serve.memory import give_back_large_blocks
from gapless.serve.metrics import METRICS, Visits
from gapless.serve.playground import files
from gapless.serve.process import FAILED, LAST_WORDS, load_model
from gapless.serve.scaling import Told, idle_share
from gapless.serve.settings import ServerSettings

PROBE = "/health/generate"
MODELS = "/v1/models"
LOOK = 0.1
"""Seconds between two looks at a model that loads."""
PATIENT = 0.8
"""Of the time that Ray gives a look at a replica's health, what the probe gets."""
HOPELESS = 3
"""Looks in a row at an engine that does not generate; Ray has the same number."""
SCRAPE = 5.0
"""Seconds that engines have to tell their metrics; Prometheus itself waits for 10."""

_log = logging.getLogger("gapless.serve")


class Unwatched:
    """Nobody watches a replica load."""

    def show(self, doing: str, done: int, total: int) -> None:
        """See `Watcher`."""

    def say(self, line: str) -> None:
        """See `Watcher`."""

    def ready(self, line: str) -> None:
        """See `Watcher`."""


class EngineReplica:
    """One engine, with all routes."""

    async def __init__(self, settings: ServerSettings, fleet: FleetSettings) -> None:  # type: ignore[misc]
        """Ready when the model is. Raises what loading it raises."""
        self.replica = serve.get_replica_context().replica_id.unique_id
        give_back_large_blocks()
        self._key = settings.keys()[:1]
        self._patience = PATIENT * fleet.health_timeout
        self._engine = Engine(partial(load_model, settings), Unwatched())
        app = make_app(
            self._engine,
            Gate(settings.max_requests),
            settings.request_limits(),
            settings.keys(),
            threads=settings.threads_for_pictures(),
            log=log_to_stderr(),
            playground=settings.image_limits() if settings.ui else None,
        )
        self._hosted = Hosted(app)
        await self._hosted.start()
        while not self._engine.ready:
            if self._engine.failure is not None:
                raise self._engine.failure
            await asyncio.sleep(LOOK)
        self._adapters = FleetAdapters(self._engine.vlm(), fleet.adapters_folder, settings.adapters)
        await self._adapters.find_all()
        self._seen = (monotonic(), 0.0)
        self._failures = 0
        self._watch = asyncio.ensure_future(self._end_with_engine())

    async def reconfigure(self, config: Mapping[str, Any]) -> None:
        """A new `user_config`: adapters come and go while requests run."""
        await self._adapters.give(config.get("adapters") or {})

    async def answer(self, call: Call) -> AsyncGenerator[Message, None]:
        """Messages of one response, behind one that says whose it is."""
        yield {"type": REPLICA, "replica": self.replica}
        await (self._adapters.find_all() if call.path.startswith(MODELS) else self._adapters.find(call.names))
        async with aclosing(self._hosted.answer(call)) as messages:
            async for message in messages:
                yield message

    async def _end_with_engine(self) -> None:
        """The process ends when its engine has died, as a server's does: Ray starts another one at once, instead of
        after some failed looks at this one's health."""
        while (death := self._engine.death()) is None or isinstance(death, EngineClosed):
            await asyncio.sleep(LOOK)
        _log.error("the engine of replica %s died: %s", self.replica, death)
        await asyncio.sleep(LAST_WORDS)
        os._exit(FAILED)

    async def check_health(self) -> None:
        """What /health/generate does, see `check_generates`. Raises where that fails; when it has failed as often as
        makes Ray replace a replica, the process ends by itself: Ray would give its requests `drain_timeout` seconds,
        in which nothing can come of them here, and elsewhere they can be answered."""
        try:
            await check_generates(partial(self._get, PROBE), self._tokens, self._patience)
            self._failures = 0
        except RuntimeError as error:
            self._failures += 1
            if self._failures >= HOPELESS:
                _log.error("replica %s does not generate, and ends: %s", self.replica, error)
                await asyncio.sleep(LAST_WORDS)
                os._exit(FAILED)
            raise

    async def _tokens(self) -> int:
        snapshot = await asyncio.to_thread(self._engine.snapshot)
        return 0 if snapshot is None else snapshot[0].accounting.counters.tokens

    async def metrics(self) -> tuple[str, str]:
        """This replica's id, and what /metrics says."""
        return self.replica, (await self._get(METRICS))[1].decode()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What `QueueAndBubble` wants to know."""
        snapshot = await asyncio.to_thread(self._engine.snapshot)
        if snapshot is None:
            return Told(0.0, 0.0).as_dict()
        now, busy = monotonic(), snapshot[0].accounting.busy_ms
        idle = idle_share(busy - self._seen[1], 1e3 * (now - self._seen[0]))
        self._seen = (now, busy)
        return Told(float(snapshot[0].waiting), idle).as_dict()

    async def _get(self, path: str) -> tuple[int, bytes]:
        status, body = 0, b""
        headers = tuple((b"x-moondream-auth", key.encode()) for key in self._key)
        async for message in self._hosted.answer(Call("GET", path, headers=headers)):
            status = message.get("status", status)
            body += message.get("body", b"")
        return status, body

    async def __del__(self) -> None:
        """Ray calls this when the last request is over."""
        if hasattr(self, "_watch"):
            self._watch.cancel()
            await self._hosted.stop()


class RayFleet:
    """The engines, through a handle."""

    def __init__(self, engines: Any) -> None:
        self._engines = engines

    async def ask(self, call: Call) -> AsyncGenerator[Message, None]:
        """See `Fleet`."""
        response = self._engines.answer.options(stream=True).remote(call)
        try:
            async for message in response:
                yield message
        except (RayError, RayServeException) as error:
            raise EngineLost(str(error)) from error
        finally:
            with suppress(RayError, RayServeException):  # it says again why there is nothing to cancel
                response.cancel()

    async def texts(self) -> dict[str, str]:
        """What each engine that answers in time tells Prometheus, by its id."""
        asked = self._engines.broadcast("metrics")
        try:  # in a thread, as Ray's own `results_async` has nothing of anybody where one does not answer
            told = await asyncio.to_thread(asked.results, timeout_s=SCRAPE, return_exceptions=True)
        except (RayError, RayServeException, TimeoutError):
            return {}
        return dict(found for found in told if isinstance(found, tuple))


class FrontReplica:
    """What takes HTTP from Ray's proxies."""

    async def __init__(self, engines: Any, settings: ServerSettings, fleet: FleetSettings) -> None:  # type: ignore[misc]
        """`engines`: the handle of their deployment."""
        self._name = serve.get_replica_context().replica_id.unique_id
        self._fleet = RayFleet(engines)
        self._gate = Gate(places_of(settings, fleet))
        self._forward = Forward(self._fleet, settings.request_limits(), self._metrics)
        log_to_stderr()
        page = tuple(files()) if settings.ui else ()  # for everybody, as they are at an engine's own door
        self._door = Door(
            self._forward, settings.keys(), self._gate, Visits(), settings.rate(), settings.cors_origins, page
        )

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """What Ray asks a late application for."""
        return WithoutId(self._door)

    async def drain(self) -> int:
        """Let nobody in any more. Returns how many are inside."""
        self._gate.close()
        return self._gate.held

    async def _metrics(self) -> bytes:
        texts = await self._fleet.texts()
        own = front_families(self._forward.counts, self._gate.held, self._gate.places, len(texts), self._name)
        return await asyncio.to_thread(merged, texts, own)


def app_builder(args: dict[str, Any]) -> Any:
    """The application. `args`: settings of a server by their names, and `fleet` with those of many (docs/fleet.md).
    Raises `InvalidRequest`."""
    settings, fleet = read_fleet(args)
    engines = serve.deployment(name=ENGINE, **engine_options(settings, fleet))(EngineReplica)
    fronts = serve.deployment(name=FRONT, **front_options(settings, fleet))(serve.ingress()(FrontReplica))
    return fronts.bind(engines.bind(settings, fleet), settings, fleet)
