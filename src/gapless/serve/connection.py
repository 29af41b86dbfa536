"""A client's connection, whose requests must begin within a time and a size.

In: bytes. Out: requests for the application, as uvicorn makes them. Invariant: a connection that has sent nothing, or
the beginning of a request but not all of its headers, is closed after `header_timeout` seconds or `MOST_HEADERS` bytes.
The rest of a request has limits of its own (`serve.limits`), and idle connections between requests uvicorn's.
"""

from __future__ import annotations

import asyncio
import secrets

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gapless.serve.errors import NotHttp, encoded, told

MOST_HEADERS = 2**16
"""Bytes of a request's line and headers; the usual proxies allow 8 to 64 KiB."""


class Connection(HttpToolsProtocol):
    """uvicorn's, with an eye on slow beginnings."""

    header_timeout = 10.0
    _patience: asyncio.TimerHandle | None = None
    """Runs while the headers of a request are waited for."""
    _head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first request is waited for."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        super().data_received(data)
        if self._patience is not None:
            self._head += len(data)
            if self._head > MOST_HEADERS:
                self._refuse(b"431 Request Header Fields Too Large")

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP is told so in the shape of all errors."""
        request_id = f"unread-{secrets.token_hex(6)}"
        body = encoded(told(NotHttp("this is not a request of HTTP/1.1; see to the client or its proxy"), request_id))
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}\r\n"
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n" + head.encode() + b"\r\n" + body)
        self.transport.close()

    def on_message_begin(self) -> None:
        """The first bytes of a request are there."""
        super().on_message_begin()
        self._head = 0
        if self._patience is None:
            self._wait()

    def on_headers_complete(self) -> None:
        """So are its headers."""
        self._wait_no_more()
        super().on_headers_complete()

    def _wait(self) -> None:
        self._patience = self.loop.call_later(self.header_timeout, self._refuse, b"408 Request Timeout")

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _refuse(self, status: bytes) -> None:
        self._wait_no_more()
        if not self.transport.is_closing():
            if self._head and (self.cycle is None or self.cycle.response_complete):
                self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()


def connection_type(header_timeout: float) -> type[Connection]:
    """Connections that give their clients so many seconds for a request's headers."""
    return type("PatientConnection", (Connection,), {"header_timeout": header_timeout})
