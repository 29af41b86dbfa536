"""One request's way back: from the engine's thread to whoever waits for the answer.

In: emissions, put by the engine's thread. Out: the same emissions in the same order; the one with a finish is the last.
A channel knows neither the engine nor what the tokens mean. Putting never blocks, however slow the reader is; what
waits unread is bounded by the request's own token limit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from queue import SimpleQueue
from weakref import ReferenceType, WeakKeyDictionary, ref

from gapless.records import Emission, Token


class Channel:
    """For one reading thread. `whole`: tokens are held until the finish, so the reader wakes once, not per token."""

    def __init__(self, whole: bool) -> None:
        self.answered = False
        """Its reader has the whole answer already and lets the request be cancelled: a stop string was found."""
        self._whole = whole
        self._held: list[Token] = []
        self._queue: SimpleQueue[Emission] = SimpleQueue()
        self._awaited = False

    def put(self, emission: Emission) -> None:
        """Hand over news (engine's thread)."""
        if self._whole:
            self._held.extend(emission.tokens)
            if emission.finish is None:
                return
            emission = Emission(emission.request_id, tuple(self._held), emission.finish)
        self._deliver(emission)

    def say(self, request_id: int, token: Token) -> None:
        """Hand over one token and nothing else (engine's thread)."""
        if self._whole:
            self._held.append(token)
        else:
            self._deliver(Emission(request_id, (token,)))

    def _deliver(self, emission: Emission) -> None:
        self._queue.put(emission)

    def get(self) -> Emission:
        """Block until there is news. Not to be called again after a finish."""
        self._awaited = True
        try:
            return self._queue.get()
        finally:
            self._awaited = False

    @property
    def unread(self) -> bool:
        """A stream that nobody is waiting for at this moment."""
        return not self._whole and not self._awaited


class AsyncChannel(Channel):
    """For one task of the event loop that was running when it was made."""

    def __init__(self, whole: bool) -> None:
        super().__init__(whole)
        self._loop = asyncio.get_running_loop()
        self._post = _post_of(self._loop)
        self._news: asyncio.Queue[Emission] = asyncio.Queue()

    def _deliver(self, emission: Emission) -> None:
        self._post.letters.append((self._news, emission))
        if not self._post.called:
            self._post.called = True
            try:
                self._loop.call_soon_threadsafe(self._post.deliver)
            except RuntimeError:  # the event loop is closed: its tasks are gone, nobody waits
                self._post.letters.clear()
                self._post.called = False

    async def receive(self) -> Emission:
        """Wait for news. Not to be called again after a finish."""
        return await self._news.get()

    @property
    def unread(self) -> bool:
        """The event loop has ended."""
        return self._loop.is_closed()


class _Post:
    """Letters to one event loop's channels. Waking it costs more than a letter, so it is woken once for all there are:
    whoever adds one and finds that nobody has called since the last delivery began, calls."""

    def __init__(self) -> None:
        self.letters: deque[tuple[asyncio.Queue[Emission], Emission]] = deque()
        self.called = False

    def deliver(self) -> None:
        """Put every letter where it belongs (event loop)."""
        self.called = False  # first: a letter that comes from now on calls again
        while self.letters:
            news, emission = self.letters.popleft()
            news.put_nowait(emission)


_posts: WeakKeyDictionary[asyncio.AbstractEventLoop, ReferenceType[_Post]] = WeakKeyDictionary()
"""Kept by channels alone: letters that nobody fetched know their event loop, and would keep it for good."""


def _post_of(loop: asyncio.AbstractEventLoop) -> _Post:
    """The one post of an event loop (that loop's thread)."""
    known = _posts.get(loop)
    post = None if known is None else known()
    if post is None:
        post = _Post()
        _posts[loop] = ref(post)
    return post
