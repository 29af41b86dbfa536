"""A client's connection, whose requests must begin within a time and a size, and whose answers must be taken.

In: bytes. Out: requests for the application, as uvicorn makes them. Invariants: a connection that has sent nothing, or
the beginning of a request but not all of its headers, is closed after `header_timeout` seconds or `MOST_HEADERS` bytes;
so is one that sends so many bytes around its body without any of it (trailers, which are dropped, and what stands
beside the size of a chunk); one that takes no byte of what waits for it within `send_timeout` seconds is broken off.
What is wrong with a request is told behind the answers to those before it, never into them or in their place. A client
that leaves has left all its requests. A wish for another protocol is passed over, and takes nothing of the request
away. HTTP/1.0 gets no chunks. A body has limits of its own (`serve.limits`), and idle connections between requests
uvicorn's.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import httptools
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gapless.serve.door import Door
from gapless.serve.errors import DoorError, HeadersTooLarge, NotHttp, TooSlow

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

MOST_HEADERS = 2**16
"""Bytes of a request's line and headers; the usual proxies allow 8 to 64 KiB."""


class UntilClosed(RequestResponseCycle):
    """A response to HTTP/1.0, which knows no chunks: one without a length ends where its connection does."""

    _endless = False

    async def send(self, message: Any) -> None:
        """See uvicorn's, which counts down what is left of a length."""
        if message["type"] == "http.response.start":
            self._endless = all(name.lower() != b"content-length" for name, _ in message["headers"])
            if self._endless:
                self.chunked_encoding = False
        if self._endless:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class Connection(HttpToolsProtocol):
    """uvicorn's, with an eye on slow beginnings and on answers that nobody takes."""

    door: Door
    header_timeout = 10.0
    send_timeout = 30.0
    _patience: asyncio.TimerHandle | None = None
    """Runs while the headers of a request are waited for."""
    _head = 0
    """Bytes since the request, or the last part of its body, began."""
    _behind_headers = _body_came = _request_ended = False
    _data = b""
    """What the parser is at."""
    _other_protocol = False
    """The request wishes for one, and is to be read again without that."""
    _look: asyncio.TimerHandle | None = None
    """Runs while bytes wait for a client that does not take them; so many waited when it began."""
    _untaken = 0
    _refused: DoorError | None = None
    """What is told behind the answers that are still due. Nothing is read any more."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first request is waited for."""
        self._due: list[RequestResponseCycle] = []
        self._application: ASGI3Application = self.app
        self.app = self._answer
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more. uvicorn tells the last request alone that its client has left."""
        self._wait_no_more()
        self._look_no_more()
        super().connection_lost(exc)
        for cycle in self._due:
            cycle.disconnected = True
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        if self._refused is not None:
            return
        self._body_came = self._request_ended = False
        self._data = data
        super().data_received(data)
        if self._body_came or self._request_ended:  # how much of it belongs to what has begun since is not known
            self._head = 0
        elif self._patience is not None or self._behind_headers:
            self._head += len(data)
            if self._head > MOST_HEADERS:
                self._refuse(_too_large())

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP is told so in the shape of all errors."""
        stopped = sys.exc_info()[1]
        if stopped is not None and isinstance(stopped.__context__, HeadersTooLarge):
            self._refuse(stopped.__context__)
        else:
            self._refuse(NotHttp("this is not a request of HTTP/1.1; see to the client or its proxy"))

    def on_message_begin(self) -> None:
        """The first bytes of a request are there."""
        super().on_message_begin()
        self._head, self._behind_headers = 0, False
        if self._patience is None:
            self._wait()

    def on_headers_complete(self) -> None:
        """So are its headers."""
        self._other_protocol = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._other_protocol:
            return
        line = len(self.parser.get_method()) + len(self.url) + 14  # with its blanks, version and ends
        if line + sum(len(name) + len(value) + 4 for name, value in self.headers) > MOST_HEADERS:
            raise _too_large()  # comes out of the parser as the cause of its own error
        self._wait_no_more()
        self._head, self._behind_headers = 0, True
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.__class__ = UntilClosed  # it has not run yet
        self._due.append(self.cycle)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; one behind the body is dropped."""
        if not self._behind_headers:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._body_came = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if not self._other_protocol:
            self._behind_headers, self._request_ended = False, True
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """The parser has stopped behind headers that wish for another protocol (Java's client does so for HTTP/2), and
        takes what follows for that protocol's. It is this request's body: read on as if there were no such wish."""
        stopped = sys.exc_info()[1]
        if not self._other_protocol or not isinstance(stopped, httptools.HttpParserUpgrade):
            super()._unsupported_upgrade_warning()
            return
        head = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        head += [b"%s: %s" % header for header in without_upgrade(self.headers)]
        rest = self._data[stopped.args[0] :]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self.data_received(b"\r\n".join(head) + b"\r\n\r\n" + rest)

    def pause_writing(self) -> None:
        """More waits for the client than it takes."""
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        """It has taken most of that."""
        super().resume_writing()
        if not self.transport.is_closing():
            self._look_no_more()

    def on_response_complete(self) -> None:
        """An answer is on its way, with the last of it perhaps still here; a closed connection waits for that."""
        self._due = [cycle for cycle in self._due if not cycle.response_complete]
        super().on_response_complete()
        if self.transport.is_closing():
            self._look_if_closed()
        elif self._refused is not None and not self._due:
            self._tell_and_close(self._refused)

    def timeout_keep_alive_handler(self) -> None:
        """No other request has come."""
        super().timeout_keep_alive_handler()
        self._look_later()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application. uvicorn closes the connection behind an answer that has no end."""
        try:
            await self._application(scope, receive, send)  # type: ignore[arg-type]
        finally:
            self.loop.call_soon(self._look_if_closed)

    def _look_if_closed(self) -> None:
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._look_later()

    def _wait(self) -> None:
        self._patience = self.loop.call_later(self.header_timeout, self._out_of_patience)

    def _out_of_patience(self) -> None:
        if self.flow.read_paused:  # it may have sent all of them
            self._wait()
        else:
            self._refuse(
                TooSlow(
                    f"the request's headers did not arrive within {self.header_timeout:g} seconds; send them faster"
                )
            )

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _look_later(self) -> None:
        if self._look is None:
            self._untaken = self.transport.get_write_buffer_size()
            self._look = self.loop.call_later(self.send_timeout, self._break_off_if_stuck)

    def _look_no_more(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _break_off_if_stuck(self) -> None:
        """Nothing is written meanwhile, so what waits is less if the client has taken any of it."""
        self._look, left = None, self.transport.get_write_buffer_size()
        if left and left >= self._untaken:
            self.transport.abort()  # to close would be to wait for the client
        elif left:
            self._look_later()

    def _refuse(self, error: DoorError) -> None:
        """Tell what is wrong as soon as no other answer is due, and close."""
        self._wait_no_more()
        if self.transport.is_closing() or self._refused is not None:
            return
        if not self._behind_headers:
            if self._due:
                self._refused = error
            else:
                self._tell_and_close(error if self._head or not isinstance(error, TooSlow) else None)
        else:  # of a body, for which the application waits: too late if its answer has begun
            begun = len(self._due) > 1 or any(cycle.response_started for cycle in self._due)
            self._tell_and_close(None if begun else error)

    def _tell_and_close(self, error: DoorError | None) -> None:
        if error is not None:
            self.transport.write(self.door.turned_away(error, self.client))
        self.transport.close()
        self._look_if_closed()


def _too_large() -> HeadersTooLarge:
    return HeadersTooLarge(f"the request's line and headers have more than {MOST_HEADERS} bytes; send fewer")


def connection_type(door: Door, header_timeout: float, send_timeout: float = 30.0) -> type[Connection]:
    """Connections to a door that give their clients so many seconds for a request's headers, and to take any of an
    answer."""
    given = {"door": door, "header_timeout": header_timeout, "send_timeout": send_timeout}
    return type("PatientConnection", (Connection,), given)


def without_upgrade(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers of a request, names in small letters, without the wish for another protocol."""
    kept = []
    for name, value in headers:
        if name in (b"connection", b"proxy-connection"):
            words = [word.strip() for word in value.split(b",")]
            words = [word for word in words if word.lower() != b"upgrade"]
            kept += [(name, b", ".join(words))] if words else []
        elif name != b"upgrade":
            kept.append((name, value))
    return kept
