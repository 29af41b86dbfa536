"""Answers as they grow, as chunks of a chat completion.

In: streams of the library, one for each choice. Out: events in OpenAI's order: every choice's role, then pieces as they
come, each choice's finish_reason when it ends, usage if it was asked for, and [DONE]. A stream that fails in its middle
sends one event with "error", no finish_reason and no [DONE], and breaks the connection off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from gapless.api.stream import AsyncStream
from gapless.serve.errors import encoded, told_openai
from gapless.serve.events import Event, EventStream
from gapless.serve.openai_shapes import Chunks
from gapless.skills.chat import reasoning_fields

DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class News:
    """Of one choice: a delta with its tokens' logprobs, or an error, or (neither) its end."""

    index: int
    delta: dict[str, Any] | None = None
    scores: list[dict[str, Any]] | None = None
    error: Exception | None = None


class Gathering:
    """News of several streams, in the order in which they come. To be closed."""

    def __init__(self, streams: Sequence[AsyncStream], *, scored: bool) -> None:
        self.streams = streams
        self._scored = scored
        self._news: asyncio.Queue[News] = asyncio.Queue()
        self._readers = [asyncio.ensure_future(self._follow(n, stream)) for n, stream in enumerate(streams)]

    async def next(self) -> News:
        """The next news. Raises the error of a stream that failed."""
        news = await self._news.get()
        if news.error is not None:
            raise news.error
        return news

    async def close(self) -> None:
        """Read no more, and cancel what still runs."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for stream in self.streams:
            await stream.aclose()

    async def _follow(self, index: int, stream: AsyncStream) -> None:
        try:
            reasoning = await stream.reasoning()
            if reasoning is not None:
                self._news.put_nowait(News(index, reasoning_fields(reasoning)))
            async for piece in stream:
                self._news.put_nowait(News(index, {"content": piece}, stream.logprobs() if self._scored else None))
            self._news.put_nowait(News(index))
        except Exception as error:
            self._news.put_nowait(News(index, error=error))


class ChatEvents(EventStream):
    """`first`: the news that was waited for before the status was sent."""

    def __init__(self, gathering: Gathering, first: News, chunks: Chunks, send_timeout: float) -> None:
        super().__init__(chunks.heading.request_id, send_timeout)
        self._streams = gathering.streams
        self._gathering = gathering
        self._first = first
        self._chunks = chunks

    def failed(self, error: Exception) -> Event:
        """See `EventStream`."""
        return told_openai(error, self.request_id)

    async def events(self) -> AsyncIterator[bytes]:
        """See `EventStream`."""
        for index in range(len(self._streams)):
            yield encoded(self._chunks.delta(index, {"role": "assistant", "content": ""}))
        left, news = len(self._streams), self._first
        while True:
            if news.delta is not None:
                yield encoded(self._chunks.delta(news.index, news.delta, news.scores))
            else:
                left -= 1
                yield encoded(self._chunks.end(news.index, self._streams[news.index].finish_reason or "stop"))
            if not left:
                break
            news = await self._gathering.next()
        if self._chunks.counted:
            yield encoded(self._chunks.usage(stream.metrics or {} for stream in self._streams))
        yield DONE

    async def close(self) -> None:
        """See `EventStream`."""
        await self._gathering.close()


class ResultEvents(EventStream):
    """An answer that is no words, and so comes in one piece."""

    def __init__(self, answer: dict[str, Any], delta: dict[str, Any], chunks: Chunks, send_timeout: float) -> None:
        super().__init__(chunks.heading.request_id, send_timeout)
        self._answer = answer
        self._delta = delta
        self._chunks = chunks

    def failed(self, error: Exception) -> Event:
        """See `EventStream`."""
        return told_openai(error, self.request_id)

    async def close(self) -> None:
        """See `EventStream`; the answer is complete."""

    async def events(self) -> AsyncIterator[bytes]:
        """See `EventStream`."""
        yield encoded(self._chunks.delta(0, {"role": "assistant", "content": ""}))
        yield encoded(self._chunks.delta(0, self._delta))
        yield encoded(self._chunks.end(0, self._answer["finish_reason"]))
        if self._chunks.counted:
            yield encoded(self._chunks.usage([self._answer["metrics"]]))
        yield DONE
