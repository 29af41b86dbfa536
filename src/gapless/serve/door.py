"""The first thing that a request meets: its id, its key, its place, and the line it leaves in the log.

In: ASGI messages. Out: the same, with `X-Request-Id` on every response. Invariants: nothing but /health and the
playground's files is answered without a key where keys are set, however its path is written; a place is held from
before the body is read until after the last byte is sent; an exception becomes an error of one shape, and its text
stays in the log.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gapless.serve.errors import DoorError, NotServing, Unauthorized, encoded, error_response, told, type_of
from gapless.serve.health import HEALTH
from gapless.serve.limits import Gate, Places, RateLimit
from gapless.serve.metrics import Visits

access_log = logging.getLogger("gapless.access")
_log = logging.getLogger("gapless.serve")
_OUTER_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
_METHODS = ("GET", "HEAD", "POST")
_LEFT = 499
"""What the log says of a client that left before its answer began."""
DOCUMENT = "/openapi.json"
UNREAD: Scope = {"method": "-", "path": "-", "headers": []}
"""Of what never became a request."""


class Visit:
    """What is noted of one request, and what has become of its response."""

    def __init__(self, scope: Scope) -> None:
        now = datetime.now(UTC)
        skill = re.sub(r"[^a-z]", "", scope["path"].rpartition("/")[2])[:16] or "request"
        self.request_id = f"{now:%Y-%m-%d}_{skill}_{now:%Y-%m-%d-%H:%M:%S}-{secrets.token_hex(6)}"
        self.method = scope["method"]
        self.path = scope["path"][:200]
        self.client = (scope.get("client") or [None])[0]
        """The address it comes from: a proxy's, if there is one."""
        outer = Headers(scope=scope).get("x-request-id", "")
        self.outer_id = outer if _OUTER_ID.fullmatch(outer) else None
        """The client's own name for the request: echoed and logged, never a key to anything."""
        self.status = 0
        self.sent_bytes = 0
        self.whole = False
        self._began = time.monotonic()

    def note(self, message: Message) -> None:
        """A message of the response is on its way."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", (self.outer_id or self.request_id).encode()),
            ]
        elif message["type"] == "http.response.body":
            self.sent_bytes += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)

    @property
    def method_or_other(self) -> str:
        """The method, if it is one that routes have."""
        return self.method if self.method in _METHODS else "other"

    def line(self, error: BaseException | None) -> str:
        """One JSON object, ASCII, whatever the client sent. What is sent to a client that has left reaches nobody."""
        status = self.status or _LEFT
        fields: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": self.request_id,
            "client": self.client,
            "method": self.method,
            "path": self.path,
            "status": status,
            "whole": self.whole and status != _LEFT,
            "bytes": self.sent_bytes if status != _LEFT else 0,
            "ms": round(1e3 * (time.monotonic() - self._began), 3),
        }
        if error is not None:
            fields["type"] = type_of(error)
        return json.dumps(fields | ({"client_request_id": self.outer_id} if self.outer_id else {}))


class Door:
    """An ASGI application in front of another one. `keys` empty: nobody is asked for one. `origins`: whose pages may
    ask from a browser; a browser's own question about that (OPTIONS) has no key, and is answered without one. `open`:
    paths that are the same for everybody, to be looked at without a key."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Sequence[str],
        gate: Gate,
        visits: Visits,
        rate: RateLimit | None = None,
        origins: Sequence[str] = (),
        open: Collection[str] = (),
    ) -> None:
        self._app = app
        self._open = frozenset((HEALTH, *open))
        self._keys = [key.encode() for key in keys]
        self._gate = gate
        self._visits = visits
        self._rate = rate
        self._front: ASGIApp = self._answer
        if origins:
            self._front = CORSMiddleware(
                self._answer,
                allow_origins=origins,
                allow_methods=_METHODS,
                allow_headers=["*"],
                expose_headers=["X-Request-Id", "Retry-After"],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        visit = Visit(scope)
        scope.setdefault("state", {})["request_id"] = visit.request_id

        async def noted(message: Message) -> None:
            visit.note(message)
            await send(message)

        scope["state"]["visit"] = visit
        try:
            await self._front(scope, receive, noted)
        finally:
            self._over(visit, _route_of(scope), scope["state"].get("error"))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit: Visit = scope["state"]["visit"]
        try:
            key = self._check_key(scope)
            with self._place(scope, key) as places:
                scope["state"]["places"] = places
                await self._app(scope, receive, send)
        except Exception as error:
            scope["state"].setdefault("error", error)
            await self._failed(visit, error, scope, receive, send)
        except asyncio.CancelledError:  # the server ends, and this has not arrived, or is not taken
            stopped = NotServing("the server stopped before this request was over; ask again, or ask another server")
            scope["state"].setdefault("error", stopped)
            await self._failed(visit, stopped, scope, receive, send)

    def turned_away(self, error: DoorError, client: tuple[str, int] | None = None) -> bytes:
        """The whole response to what never became a request: bytes that are none, headers that do not end. It is
        counted and logged as any, without a method and a path."""
        visit = Visit({**UNREAD, "client": client})
        body = encoded(told(error, visit.request_id))
        phrase = HTTPStatus(error.status).phrase
        head = f"HTTP/1.1 {error.status} {phrase}\r\nconnection: close\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nx-request-id: {visit.request_id}\r\n\r\n"
        visit.status, visit.sent_bytes, visit.whole = error.status, len(body), True
        self._over(visit, None, error)
        return head.encode() + body

    def _over(self, visit: Visit, route: str | None, error: BaseException | None) -> None:
        self._visits.count(visit.method_or_other, route, visit.status or _LEFT, error)
        access_log.info("%s", visit.line(error))

    async def _failed(self, visit: Visit, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        if not isinstance(error, DoorError):
            _log.error("request %s failed", visit.request_id, exc_info=error)
        if visit.status == 0:
            await error_response(error, visit.request_id, visit.path)(scope, receive, send)

    def _place(self, scope: Scope, key: str) -> AbstractContextManager[Places | None]:
        if scope["method"] != "POST":
            return nullcontext()
        if self._rate is not None:
            self._rate.take(key)
        return self._gate.place()

    def _check_key(self, scope: Scope) -> str:
        """Compare with every key, in a time that does not tell how much of one is right. Returns the key, "" where none
        is asked for."""
        if not self._keys or (scope["path"] in self._open and scope["method"] in ("GET", "HEAD")):
            return ""
        headers = Headers(scope=scope)
        given = headers.get("x-moondream-auth", "")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if not given and scheme.lower() == "bearer":
            given = token.strip()
        sent = given.encode("latin-1")  # the header's bytes, as they came
        known = [hmac.compare_digest(sent, key) for key in self._keys]
        if not any(known):
            raise Unauthorized(
                "this server asks for a key: send X-Moondream-Auth: KEY or Authorization: Bearer KEY"
                if not given
                else "this key is not one of the server's; look for a typing error, or ask for a new key"
            )
        return given


def _route_of(scope: Scope) -> str | None:
    """The route as the document has it; None: there is none."""
    if "endpoint" in scope and scope["path"] == DOCUMENT:
        return DOCUMENT
    return getattr(scope.get("route"), "path_format", None)
