"""A server as a process: its port, its signals, its end.

In: settings, and who is told about it. Out: an exit code: 0 after a signal, 1 when the model could not be loaded or the
engine died. The port is taken before the model is loaded. On the first SIGTERM or SIGINT new requests are told 503, and
those inside go on, up to `drain_timeout` seconds; then, or at the second signal, the rest is ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import FrameType

import uvicorn

from gapless.api.load import Progress, open_model
from gapless.api.vlm import VLM
from gapless.errors import GaplessError, InvalidRequest
from gapless.serve.app import make_app
from gapless.serve.connection import connection_type
from gapless.serve.engine import Engine, Watcher
from gapless.serve.limits import Gate
from gapless.serve.log import Aside, log_to_stderr
from gapless.serve.memory import give_back_large_blocks
from gapless.serve.settings import ServerSettings

STOPPED, FAILED = 0, 1
QUESTION = 16
"""Tokens of an ordinary one."""
LAST_WORDS = 1
"""Seconds for the answers of requests that are ended to reach their clients."""

_log = logging.getLogger("gapless.serve")


def load_model(settings: ServerSettings, progress: Progress) -> VLM:
    """The model that the settings name."""
    return open_model(
        settings.opening(),
        settings.image_limits(),
        process=settings.process,
        progress=progress,
        picture_cache=settings.picture_cache,
    )


def run(settings: ServerSettings, watcher: Watcher) -> int:
    """Serve until a signal comes or the engine dies. Raises `InvalidRequest` for settings that cannot be had."""
    keys = settings.keys()
    listening = listen(settings.host, settings.port)
    port = listening.getsockname()[1]
    url = f"http://{spelled(settings.host)}:{port}"
    log = log_to_stderr()
    watcher = Aside(watcher, log)
    give_back_large_blocks()
    engine = Engine(partial(load_model, settings), watcher)
    gate = Gate(settings.max_requests)
    threads = settings.threads_for_pictures()
    page = settings.image_limits() if settings.ui else None
    limits, origins = settings.request_limits(), settings.cors_origins
    door = make_app(engine, gate, limits, keys, settings.rate(), threads, log, origins, page)
    config = uvicorn.Config(
        door,
        loop="uvloop",
        http=connection_type(door, settings.header_timeout, settings.send_timeout),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=LAST_WORDS,
    )
    from_here = f"http://{spelled(reached_here(settings.host))}:{port}"
    if not keys and not is_local(settings.host):
        watcher.say(
            f"whoever can reach {url} may use it, since it asks for no key: set GAPLESS_API_KEYS_FILE or "
            "--api-keys-file, or listen on --host 127.0.0.1"
        )
    watcher.say(f"loading {settings.model}; {from_here}/health says how far it is")
    look = f"; open {from_here} in a browser" if settings.ui else ""
    greeting = f"ready at {url}/v1{look}; try: {example(from_here, locked=bool(keys))}"
    with listening:
        server = Server(config, engine, gate, settings.drain_timeout, watcher, greeting, settings.page_size)
        server.run(sockets=[listening])
    if server.code == STOPPED:
        if line := summary(engine):
            watcher.say(line)
        watcher.say("stopped")
    return server.code


class Server(uvicorn.Server):
    """uvicorn, with an end of its own."""

    def __init__(
        self,
        config: uvicorn.Config,
        engine: Engine,
        gate: Gate,
        drain: float,
        watcher: Watcher,
        greeting: str,
        page_size: int = 16,
    ) -> None:
        super().__init__(config)
        self.code = STOPPED
        self._engine = engine
        self._gate = gate
        self._drain = drain
        self._watcher = watcher
        self._greeting = greeting
        self._page_size = page_size
        self._greeted = False
        self._stop_by: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: the first begins to drain, the second ends that."""
        self._gate.close()
        if self._stop_by is not None:
            self._watcher.say("ending now")
        elif self._gate.held:
            self._watcher.say(
                f"stopping: {self._gate.held} requests running, for {self._drain:g} seconds at most; again to end now"
            )
        else:
            self._watcher.say("stopping: no request is running")
        self._stop_by = time.monotonic() + (self._drain if self._stop_by is None else 0.0)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether the server is to end."""
        if not self._greeted and self._engine.ready:
            self._greeted = True
            if warning := await asyncio.to_thread(too_few_pages, self._engine, self._page_size):
                self._watcher.say(warning)
            self._watcher.ready(self._greeting)
        error = self._engine.failure or self._engine.death()
        if error is not None:
            self.code = FAILED
            what = "the model could not be loaded" if self._engine.failure else "the engine died"
            self._watcher.say(f"{what}: {error}")
            if not isinstance(error, GaplessError):
                _log.error(what, exc_info=error)
            return True
        if self._stop_by is not None and (not self._gate.held or time.monotonic() >= self._stop_by):
            await self._engine.close()  # what still runs is told so, before its connection is closed
            return True
        return await super().on_tick(counter)


def too_few_pages(engine: Engine, page_size: int) -> str | None:
    """What there is to say where the KV cache has no room for an ordinary question about a picture. May wait for a
    moment."""
    told = engine.snapshot()
    if told is None or engine.death() is not None:
        return None
    context, pages = engine.vlm().desk.context, told[0].standing.pages
    tokens = min(context.prefix + QUESTION + context.templates.defaults.max_tokens, context.max_context)
    need = -(-(tokens - 1) // page_size) + 1
    if need <= pages:
        return None
    return (
        f"the KV cache has {pages} pages, and a question about a picture may need {need} of {page_size} tokens: such "
        "requests are told 413 unless they lower max_tokens; raise pages"
    )


def summary(engine: Engine) -> str | None:
    """What was answered, and how much of it was there already; None if nothing was."""
    told, pictures = engine.snapshot(), engine.pictures()
    if told is None or pictures is None or not told[0].accounting.counters.finished:
        return None
    spent, counts = told[0].accounting, pictures[0]
    return (
        f"answered {spent.counters.finished} requests; {spent.cached_share:.0%} of {spent.counters.prompt_tokens:,} "
        f"prompt tokens were there already, and of {counts.asked} pictures {counts.decoded} had to be decoded"
    )


def example(url: str, locked: bool) -> str:
    """A line that shows that the server answers. `locked`: it asks for a key, which the reader puts in."""
    body = json.dumps({"question": "Who are you?"})
    key = " -H 'X-Moondream-Auth: KEY'" if locked else ""
    return f"curl {url}/v1/query{key} -H 'Content-Type: application/json' -d '{body}'"


def reached_here(host: str) -> str:
    """Where this machine reaches a server that listens on `host`."""
    if host == "":
        return "127.0.0.1"
    address = _address(host)
    if address is None or not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"


def is_local(host: str) -> bool:
    """Nobody else can reach it."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(host: str) -> IPv4Address | IPv6Address | None:
    with suppress(ValueError):
        return ip_address(host)
    return None


def listen(host: str, port: int) -> socket.socket:
    """Take the port, or say why it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)
    except (OSError, UnicodeError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest(
            f"cannot listen on {host} port {port}: {reason}; choose another --port or --host"
        ) from error
    return listening


def spelled(host: str) -> str:
    """An address as a URL has it."""
    return f"[{host}]" if ":" in host else host
