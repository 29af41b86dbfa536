"""The application in front of many engines: it passes requests on, and asks another engine where one has ended.

In: requests. Out: the answers of engines, unchanged. Invariants: nothing of an answer is sent before its first bytes
are there; until then a request whose engine ends, refuses, is full or does not stir is asked again elsewhere,
`ATTEMPTS` times at most and in the time that its caller gave it, and that is counted; afterwards it ends with an error
that says so, and is never asked twice; a client that leaves ends its request at the engine.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from time import monotonic
from typing import Protocol

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gapless.api.affinity import names_in, picture_key
from gapless.errors import GaplessError, RequestTimeout
from gapless.serve.deadline import time_of
from gapless.serve.errors import NotServing, encoded, speaks_openai, told, told_openai
from gapless.serve.events import TORN
from gapless.serve.hosted import Call
from gapless.serve.limits import RequestLimits, gone, read_bytes
from gapless.serve.metrics import METRICS

ATTEMPTS = 4
HELLO = 3.0
"""Seconds in which an engine takes a request that it is given: one that hangs never does, and it may take Ray minutes
to notice. Twice as many at the second silence, as all may be busy; a silence is not one of the attempts."""
SILENT = "silent"
SHUNNED = 10.0
"""Seconds in which other requests too go to such an engine last."""
AGAIN = {503: "refused", 429: "full"}
"""Statuses of one engine that another one need not have."""
PAUSE = 0.2
"""Seconds before the second attempt; twice as many before the third."""
LARGE = 2**20
"""Bytes of a body that are looked at aside: others wait meanwhile."""
MOST_NAMES = 8
"""Of adapters that a body may mean; it has two fields for one."""
MARGIN = 5.0
"""Seconds beyond a request's own time, in which its engine says that it is over."""
REPLICA = "gapless.replica"
"""The type of an answer's first message, which says whose it is."""
HEADER = b"x-gapless-replica"


class EngineLost(Exception):
    """The engine that was asked has ended, or cannot be reached."""


class Fleet(Protocol):
    """The engines."""

    def ask(self, call: Call) -> AsyncGenerator[Message, None]:
        """An answer's messages, the first of type `REPLICA`. Raises `EngineLost`."""
        ...


class Forward:
    """See the module. `counts`: what became of requests: `passed` (whole), `lost`, `silent`, `refused`, `full` and
    `broken`."""

    def __init__(self, fleet: Fleet, limits: RequestLimits, metrics: Callable[[], Awaitable[bytes]]) -> None:
        self._fleet = fleet
        self._limits = limits
        self._metrics = metrics
        self._silences = Silences()
        self.counts: Counter[str] = Counter(passed=0, lost=0, silent=0, refused=0, full=0, broken=0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the module."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        request = Request(scope, receive)
        if scope["path"] == METRICS and scope["method"] == "GET":
            await _send_metrics(await self._metrics(), send)
            return
        most = self._limits.request_timeout
        body = await read_bytes(request, self._limits) if scope["method"] == "POST" else b""
        call = await asyncio.to_thread(_call, scope, body) if len(body) > LARGE else _call(scope, body)
        allowed = await asyncio.to_thread(time_of, body, most) if len(body) > LARGE else time_of(body, most)
        call = replace(call, avoid=self._silences.engines())
        relay = Relay(self._fleet, self.counts, self._silences, scope, send, allowed)
        working = asyncio.ensure_future(relay.run(call))
        leaving = asyncio.ensure_future(gone(receive))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)


class WithoutId:
    """An application whose answers do not say the request's id: where a proxy in front writes it, and has given it
    where the client did not."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the module."""

        async def without_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [pair for pair in message["headers"] if pair[0].lower() != b"x-request-id"]
            await send(message)

        await self._app(scope, receive, without_id)


class Silences:
    """Engines that did not stir when they were given a request, for `SHUNNED` seconds."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def note(self, engine: str) -> None:
        """This one has not."""
        self._until[engine] = monotonic() + SHUNNED

    def engines(self) -> tuple[str, ...]:
        """Their names."""
        now = monotonic()
        self._until = {engine: until for engine, until in self._until.items() if until > now}
        return tuple(self._until)


class Relay:
    """One request on its way to an engine and back. `allowed`: seconds that its caller gives it, however many engines
    are asked."""

    def __init__(
        self, fleet: Fleet, counts: Counter[str], silences: Silences, scope: Scope, send: Send, allowed: float
    ) -> None:
        self._fleet = fleet
        self._counts = counts
        self._silences = silences
        self._scope = scope
        self._send = send
        self._allowed = allowed
        self._since = monotonic()
        self._replica = ""
        self._start: Message | None = None
        """What is not sent before the bytes behind it."""
        self._begun = self._streams = False

    async def run(self, call: Call) -> None:
        """Ask until an engine answers. Raises `NotServing` if none does, `RequestTimeout` if its time is over."""
        attempts = silences = 0
        while attempts < ATTEMPTS:
            self._replica, self._start = "", None
            reason = await self._once(call, last=attempts == ATTEMPTS - 1, hello=HELLO * 2**silences)
            if not reason:
                return
            self._counts[reason] += 1
            if self._begun:
                self._counts["broken"] += 1
                await self._break_off()
                return
            failed = self._replica or "".join(call.chosen[-1:])
            if reason == SILENT:
                silences += 1
                if failed:
                    self._silences.note(failed)
            else:
                await asyncio.sleep(PAUSE * 2**attempts)
                attempts += 1
            call = replace(call, avoid=tuple({*call.avoid, failed} - {""}), spent=self._spent(), chosen=[])
        raise NotServing(f"{ATTEMPTS} engines were asked and none has answered; ask again in a few seconds")

    async def _once(self, call: Call, last: bool, hello: float) -> str:
        """One engine's answer, sent on. Returns why it is no answer, "" if it is one. `hello`: seconds in which an
        engine must say that it has the request."""
        try:
            async with aclosing(self._fleet.ask(call)) as messages:
                async with asyncio.timeout(min(hello, self._allowed - self._spent())) as until_first:
                    async for message in messages:
                        if message["type"] == REPLICA:
                            self._replica = message["replica"]
                            left = self._allowed + MARGIN - self._spent()
                            until_first.reschedule(asyncio.get_running_loop().time() + left)
                            continue
                        if message["type"] == "http.response.start" and not last and message["status"] in AGAIN:
                            return AGAIN[message["status"]]
                        await self._pass(message)
                        if self._begun:
                            until_first.reschedule(None)
        except EngineLost:
            return "lost"
        except TimeoutError as error:
            if not self._replica and self._spent() < self._allowed:
                return SILENT
            raise self._overdue() from error
        return ""

    def _spent(self) -> float:
        return monotonic() - self._since

    def _overdue(self) -> GaplessError:
        if self._replica:
            return RequestTimeout(f"the engine did not begin to answer within {self._allowed:g} seconds; ask again")
        return NotServing(f"no engine was free within {self._allowed:g} seconds; ask again later")

    async def _pass(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = self._marked(message)
            return
        if self._start is not None:
            self._begun = True
            self._streams = dict(self._start["headers"]).get(b"content-type", b"").startswith(b"text/event-stream")
            await self._send(self._start)
            self._start = None
        if not message.get("more_body", False):
            self._counts["passed"] += 1  # here, as whoever has heard all of it may end this task
        await self._send(message)

    def _marked(self, message: Message) -> Message:
        """The engine's own id of the request is this request's id; the door writes it."""
        visit = self._scope["state"]["visit"]
        found = dict(message.get("headers", ()))
        if visit.outer_id is None and b"x-request-id" in found:
            visit.request_id = found[b"x-request-id"].decode("latin-1")
        kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() != b"x-request-id"]
        return {**message, "headers": [*kept, (HEADER, self._replica.encode())]}

    async def _break_off(self) -> None:
        """As an answer that fails in its middle does, without an end."""
        error = NotServing("the engine ended in the middle of this answer, and the rest of it is lost; ask again")
        self._scope["state"]["error"] = error
        if not self._streams:
            return
        request_id = self._scope["state"]["visit"].request_id
        if speaks_openai(self._scope["path"]):
            event = told_openai(error, request_id)
        else:
            event = told(error, request_id) | {"completed": False}
        body = b"data: " + encoded(event) + b"\n\n" + TORN
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


def _call(scope: Scope, body: bytes) -> Call:
    headers = tuple((name, value) for name, value in scope["headers"] if name.lower() != b"transfer-encoding")
    key, names = picture_key(_unescaped(body)), names_in(body)[:MOST_NAMES]
    return Call(scope["method"], scope["path"], scope["query_string"], headers, body, _client(scope), key, names)


def _unescaped(body: bytes) -> bytes:
    """A body whose pictures are spelled without the escapes that some writers of JSON put into base64 (PHP and Swift
    for /, .NET for +), as the key ends at the first escape: else pictures that begin alike would have one key."""
    if b"\\" not in body:
        return body
    return body.replace(b"\\/", b"/").replace(b"\\u002B", b"+").replace(b"\\u002b", b"+")


def _client(scope: Scope) -> tuple[str, int] | None:
    found = scope.get("client")
    return None if found is None else (found[0], found[1])


async def _send_metrics(text: bytes, send: Send) -> None:
    kind = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
    length = (b"content-length", str(len(text)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [kind, length]})
    await send({"type": "http.response.body", "body": text, "more_body": False})


async def _live(receive: Receive, send: Send) -> None:
    for phase in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{phase}.complete"})
