"""An answer as it grows, as server-sent events: how any are sent, and their shapes in the Moondream service.

In: an `AsyncStream`. Out: lines `data: {json}`, each followed by an empty one; the last has `"completed": true`. One
that fails in its middle sends one event with "error" and breaks the connection off, within a line, so that no client
takes what it has for the whole. A client that leaves, or reads too slowly, cancels the request.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gapless.api.stream import AsyncStream
from gapless.serve.errors import encoded, is_inside, told
from gapless.serve.limits import gone

_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}
_log = logging.getLogger("gapless.serve")

TORN = b'data: {"'
"""What follows the error of a stream: the beginning of an event that never comes. Clients that read lines take a broken
connection for the end; on this one they fail. Those that read events never see it."""

Event = dict[str, Any]


class EventStream(Response, ABC):
    """Sends the events of a kind of stream, whatever becomes of it."""

    def __init__(self, request_id: str, send_timeout: float) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self.request_id = request_id
        self._send_timeout = send_timeout

    @abstractmethod
    def events(self) -> AsyncIterator[bytes]:
        """What is sent, each behind `data: `."""
        ...

    @abstractmethod
    def failed(self, error: Exception) -> Event:
        """The event of a stream that fails in its middle."""
        ...

    @abstractmethod
    async def close(self) -> None:
        """Nothing more is sent: cancel what still runs for it."""
        ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events, unless the client leaves before."""
        writing = asyncio.ensure_future(self._write(scope, send))
        leaving = asyncio.ensure_future(gone(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            writing.cancel()
            leaving.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)
            await self.close()

    async def _write(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for event in self.events():
                await self._send(send, event)
        except TimeoutError:
            return  # the client does not read; the connection is broken off
        except Exception as error:
            scope["state"]["error"] = error  # for the log
            if is_inside(error):
                _log.exception("request %s failed while it was streamed", self.request_id)
            with suppress(TimeoutError):  # nor is this read
                await self._send(send, encoded(self.failed(error)), TORN)
            return  # without the end of the body
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, event: bytes, rest: bytes = b"") -> None:
        body = b"data: " + event + b"\n\n" + rest
        async with asyncio.timeout(self._send_timeout):
            await send({"type": "http.response.body", "body": body, "more_body": True})


class Events(EventStream):
    """`first`: the piece that was waited for before the status was sent, None if the stream is over already."""

    def __init__(self, stream: AsyncStream, first: Any, reasoning: Any, request_id: str, send_timeout: float) -> None:
        super().__init__(request_id, send_timeout)
        self._stream = stream
        self._first = first
        self._reasoning = reasoning

    def failed(self, error: Exception) -> Event:
        """See `EventStream`."""
        return told(error, self.request_id) | {"completed": False}

    async def close(self) -> None:
        """See `EventStream`."""
        await self._stream.aclose()

    async def events(self) -> AsyncIterator[bytes]:
        """See `EventStream`."""
        who = {"request_id": self.request_id}
        if self._reasoning is not None:
            yield encoded({"type": "reasoning", "reasoning": self._reasoning, "completed": False} | who)
        last: Event = {"chunk": ""}
        async for piece in self._pieces():
            if isinstance(piece, str):
                yield encoded({"chunk": piece, "completed": False} | who)
            elif "completed" in piece:
                last = {"type": "final", "path": piece["path"], "bbox": piece["bbox"]}
            elif "bbox" in piece:
                yield encoded({"type": "bbox", "bbox": piece["bbox"], "completed": False} | who)
            else:
                yield encoded({"type": "path_delta", "chunk": piece["chunk"], "completed": False} | who)
        cost = {"finish_reason": self._stream.finish_reason, "metrics": self._stream.metrics}
        yield encoded(last | {"completed": True} | cost | who)

    async def _pieces(self) -> AsyncIterator[Any]:
        if self._first is not None:
            yield self._first
        async for piece in self._stream:
            yield piece
