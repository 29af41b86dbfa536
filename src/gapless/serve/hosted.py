"""An ASGI application without a socket: calls come in as values, its messages go out as they are made.

In: `Call`s. Out: the messages of each response, in order. Invariants: a caller that stops reading has left, and the
application is told so as by a connection that closes; no more than `MOST_AHEAD` messages wait for a caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Scope

MOST_AHEAD = 16
LEAVING = 10.0
"""Seconds in which an application must have noticed that its caller has left."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request with its whole body. `key`: what it is about, see `affinity.picture_key`; `names`: adapters that it
    may mean; `avoid`: engines that have failed it; `spent`: seconds that this took, of those that it may take;
    `chosen`: engines that a router here has chosen for it, the last one last."""

    method: str
    path: str
    query: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    client: tuple[str, int] | None = None
    key: str = ""
    names: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    spent: float = 0.0
    chosen: list[str] = field(default_factory=list, compare=False)

    def scope(self) -> Scope:
        """As a server makes it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode("utf-8", "surrogateescape"),
            "root_path": "",
            "query_string": self.query,
            "headers": list(self.headers),
            "client": self.client,
            "server": ("gapless", None),
            "state": {"spent": self.spent},
        }


class Hosted:
    """The application, between `start` and `stop`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._said: asyncio.Queue[Message] = asyncio.Queue()
        self._heard: asyncio.Queue[Message] = asyncio.Queue()
        self._life: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """What a server does before the first request. Raises whatever the application does."""
        scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self._life = asyncio.ensure_future(_run(self._app, scope, self._heard, self._said))
        await self._phase("lifespan.startup")

    async def stop(self) -> None:
        """What it does after the last."""
        if self._life is not None:
            await self._phase("lifespan.shutdown")

    async def _phase(self, name: str) -> None:
        assert self._life is not None
        await self._heard.put({"type": name})
        answer = asyncio.ensure_future(self._said.get())
        await asyncio.wait({answer, self._life}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            await self._life
        elif answer.result()["type"].endswith("failed"):
            raise RuntimeError(f"{name} failed: {answer.result().get('message', '')}")

    async def answer(self, call: Call) -> AsyncGenerator[Message, None]:
        """The messages of one response. To close this iterator is to leave."""
        said: asyncio.Queue[Message | None] = asyncio.Queue(MOST_AHEAD)
        left, body = asyncio.Event(), [call.body]

        async def receive() -> Message:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def work() -> None:
            try:
                await self._app(call.scope(), receive, said.put)
            finally:
                await said.put(None)

        working = asyncio.ensure_future(work())
        try:
            while (message := await said.get()) is not None:
                yield message
            await working
        finally:
            left.set()
            await _end(working, said)


async def _end(working: asyncio.Task[None], said: asyncio.Queue[Message | None]) -> None:
    """Let an application whose caller has left come to its own end."""
    emptying = asyncio.ensure_future(_empty(said))
    try:
        with suppress(Exception):
            async with asyncio.timeout(LEAVING):
                await asyncio.shield(working)
    finally:
        working.cancel()
        emptying.cancel()
        await asyncio.gather(working, emptying, return_exceptions=True)


async def _empty(said: asyncio.Queue[Message | None]) -> None:
    while True:
        await said.get()


async def _run(app: ASGIApp, scope: Scope, heard: asyncio.Queue[Message], said: asyncio.Queue[Message]) -> None:
    await app(scope, heard.get, said.put)
