"""An answer as it grows: iterate it, or take pieces with `next`.

Pieces are text for query and caption, dicts for segment; read to the end they are the answer of the same request
without streaming. Whoever leaves a loop over it early, closes it or drops it cancels the request at once: a loop gets
an iterator of its own, whose destructor says that the loop is gone, even while the stream still has a name.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from gapless.api.call import AsyncCall, BlockingCall, Call
from gapless.errors import RequestCancelled
from gapless.skills.base import Piece


class _Growing:
    """What both kinds of stream share: pieces read but not yet asked for, and whether reading was given up."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._pieces: deque[Piece] = deque()
        self._closed = False
        self._left = False
        self._given = 0
        self._told = 0

    @property
    def finish_reason(self) -> str | None:
        """ "stop" or "length" once the request has ended by itself, None until then."""
        finish = self._call.finish
        return finish.reason.value if finish is not None and finish.reason is not None else None

    @property
    def metrics(self) -> dict[str, Any] | None:
        """What the request cost, once it has ended."""
        return self._call.metrics()

    def logprobs(self) -> list[dict[str, Any]]:
        """Those of the tokens that begin in the pieces given since the last call; empty unless they were asked for."""
        text = self._call.text
        told = [] if text is None else text.scores_from(self._told, self._given)
        self._told += len(told)
        return told

    def _give(self) -> Any:
        piece = self._pieces.popleft()
        self._given += len(piece) if isinstance(piece, str) else 0
        return piece

    def _ended(self) -> bool:
        return self._closed or self._call.finish is not None

    def _awaits_reasoning(self) -> bool:
        """Whether more has to be read for the reasoning. Raises the error of a request that ended before it did: no
        news follows on that."""
        awaits = self._call.reasons and self._call.reasoning is None
        if awaits:
            self._call.check()
        return awaits

    def _check(self, closed: bool) -> None:
        if closed:
            raise RequestCancelled(
                "this stream was closed, or a loop over it left before its end, and so its request was cancelled; to "
                "read it in parts use next(stream)"
            )

    def _stop(self) -> None:
        self._closed = True
        self._pieces.clear()
        self._call.cancel()

    def leave(self) -> None:
        """A loop over the stream is gone. Before the end, that says that nobody wants the rest."""
        if self._pieces or not self._ended():
            self._left = True
            self._stop()


class Stream(_Growing):
    """The stream of a thread; not to be shared between threads. Raises the request's error where it comes up."""

    _call: BlockingCall

    def __iter__(self) -> _Loop:
        return _Loop(self)

    def __next__(self) -> Any:
        while not self._pieces:
            if self._ended():
                raise StopIteration
            self._pieces.extend(self._call.pull())
        return self._give()

    def result(self) -> dict[str, Any]:
        """Read to the end; return the dict of the same call without streaming."""
        self._check(self._closed)
        while not self._ended():
            self._call.pull()
        self._pieces.clear()
        return self._call.answer()

    def reasoning(self) -> dict[str, Any] | None:
        """Block until the reasoning has ended and return it; None for a request without one."""
        while self._awaits_reasoning():
            self._pieces.extend(self._call.pull())
        return self._call.reasoning

    def close(self) -> None:
        """Cancel the request unless it has ended; pieces not yet taken are gone."""
        self._stop()


class _Loop:
    """One `for` loop's hold on a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        stream._check(stream._left)

    def __iter__(self) -> _Loop:
        return self

    def __next__(self) -> Any:
        return next(self._stream)

    def __del__(self) -> None:
        self._stream.leave()


class AsyncStream(_Growing):
    """The stream of a task; see `Stream`."""

    _call: AsyncCall

    def __aiter__(self) -> _AsyncLoop:
        return _AsyncLoop(self)

    async def __anext__(self) -> Any:
        while not self._pieces:
            if self._ended():
                raise StopAsyncIteration
            self._pieces.extend(await self._call.pull())
        return self._give()

    async def result(self) -> dict[str, Any]:
        """Read to the end; return the dict of the same call without streaming."""
        self._check(self._closed)
        while not self._ended():
            await self._call.pull()
        self._pieces.clear()
        return self._call.answer()

    async def reasoning(self) -> dict[str, Any] | None:
        """Wait until the reasoning has ended and return it; None for a request without one."""
        while self._awaits_reasoning():
            self._pieces.extend(await self._call.pull())
        return self._call.reasoning

    async def aclose(self) -> None:
        """Cancel the request unless it has ended; pieces not yet taken are gone."""
        self._stop()


class _AsyncLoop:
    """One `async for` loop's hold on a stream."""

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream
        stream._check(stream._left)

    def __aiter__(self) -> _AsyncLoop:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._stream)

    def __del__(self) -> None:
        self._stream.leave()
