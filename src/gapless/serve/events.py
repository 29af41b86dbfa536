"""An answer as it grows, as server-sent events in the shapes of the Moondream service.

In: an `AsyncStream`. Out: lines `data: {json}`, each followed by an empty one; the last has `"completed": true`. One
that fails in its middle sends one event with "error" and breaks the connection off, so that no client takes what it has
for the whole. A client that leaves, or reads too slowly, cancels the request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gapless.api.stream import AsyncStream
from gapless.serve.errors import encoded, status_of, told
from gapless.serve.limits import gone

_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}
_log = logging.getLogger("gapless.serve")

Event = dict[str, Any]


class Events(Response):
    """`first`: the piece that was waited for before the status was sent, None if the stream is over already."""

    def __init__(self, stream: AsyncStream, first: Any, reasoning: Any, request_id: str, send_timeout: float) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self.stream = stream
        self._first = first
        self._reasoning = reasoning
        self._request_id = request_id
        self._send_timeout = send_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events, unless the client leaves before."""
        writing = asyncio.ensure_future(self._write(send))
        leaving = asyncio.ensure_future(gone(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            writing.cancel()
            leaving.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)
            await self.stream.aclose()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for event in self._events():
                await self._send(send, event)
        except TimeoutError:
            return  # the client does not read; the connection is broken off
        except Exception as error:
            if status_of(error) >= 500:
                _log.exception("request %s failed while it was streamed", self._request_id)
            await self._send(send, told(error, self._request_id) | {"completed": False})
            return  # without the end of the body
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, event: Event) -> None:
        body = b"data: " + encoded(event) + b"\n\n"
        async with asyncio.timeout(self._send_timeout):
            await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _events(self) -> AsyncIterator[Event]:
        who = {"request_id": self._request_id}
        if self._reasoning is not None:
            yield {"type": "reasoning", "reasoning": self._reasoning, "completed": False} | who
        last: Event = {"chunk": ""}
        async for piece in self._pieces():
            if isinstance(piece, str):
                yield {"chunk": piece, "completed": False} | who
            elif "completed" in piece:
                last = {"type": "final", "path": piece["path"], "bbox": piece["bbox"]}
            elif "bbox" in piece:
                yield {"type": "bbox", "bbox": piece["bbox"], "completed": False} | who
            else:
                yield {"type": "path_delta", "chunk": piece["chunk"], "completed": False} | who
        cost = {"finish_reason": self.stream.finish_reason, "metrics": self.stream.metrics}
        yield last | {"completed": True} | cost | who

    async def _pieces(self) -> AsyncIterator[Any]:
        if self._first is not None:
            yield self._first
        async for piece in self.stream:
            yield piece
