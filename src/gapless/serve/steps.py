"""The engine's last steps, as they land, for whoever looks: the strip at the foot of the playground.

In: what `EngineHandle.watch` tells, asked for every `EVERY` seconds. Out: server-sent events, the same for all who
look. Invariants: nobody looks, nothing is asked and nothing kept; however many look, the engine is asked once; who
reads slowly misses events and delays nobody. A feed ends with its client, the engine, or a server that stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gapless.observe.accounting import Snapshot
from gapless.observe.steps import KEPT, StepTimes
from gapless.serve.engine import Engine
from gapless.serve.errors import NotServing, encoded, told
from gapless.serve.events import Event, EventStream
from gapless.serve.limits import Gate

EVERY = 0.25
"""Seconds between two looks."""
BEAT = 5.0
"""Seconds after which an event is sent though nothing has happened, so that both sides know of each other."""
MOST = 32
"""Clients that may look at once."""
WAITING = 4
"""Events that wait for a slow client; of more the oldest are dropped."""


class StepWatch:
    """Asks for all who look. Belongs to the event loop's thread."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self._engine = engine
        self._gate = gate
        self._feeds: set[asyncio.Queue[bytes]] = set()
        self._asking: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "gapless-steps")

    def join(self) -> asyncio.Queue[bytes]:
        """One more looks; to be taken back with `leave`. An empty event is the last. Raises `NotServing` when there are
        too many."""
        if len(self._feeds) >= MOST:
            raise NotServing(f"{MOST} pages look at the steps already, and no more may; close one of them")
        feed: asyncio.Queue[bytes] = asyncio.Queue(WAITING)
        self._feeds.add(feed)
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())
        return feed

    def leave(self, feed: asyncio.Queue[bytes]) -> None:
        """Somebody looks no more."""
        self._feeds.discard(feed)

    async def _ask(self) -> None:
        """While somebody looks."""
        loop, quiet, before = asyncio.get_running_loop(), 0.0, None
        try:
            while self._feeds and not self._gate.closed and self._engine.death() is None:
                snapshot, steps = await loop.run_in_executor(self._thread, self._engine.vlm().desk.runner.watch, KEPT)
                standing, quiet = _standing(snapshot), quiet + EVERY
                if steps or standing != before or quiet >= BEAT:
                    self._tell(encoded(standing | {"steps": [_row(step) for step in steps]}))
                    before, quiet = standing, 0.0
                await asyncio.sleep(EVERY)
        finally:
            self._asking = None
            self._tell(b"")

    def _tell(self, event: bytes) -> None:
        for feed in self._feeds:
            if feed.full():
                feed.get_nowait()
            feed.put_nowait(event)


class StepEvents(EventStream):
    """One client's feed."""

    def __init__(self, watch: StepWatch, request_id: str, send_timeout: float) -> None:
        super().__init__(request_id, send_timeout)
        self._watch = watch
        self._feed = watch.join()

    def failed(self, error: Exception) -> Event:
        """See `EventStream`."""
        return told(error, self.request_id)

    async def close(self) -> None:
        """See `EventStream`."""
        self._watch.leave(self._feed)

    async def events(self) -> AsyncIterator[bytes]:
        """See `EventStream`."""
        while event := await self._feed.get():
            yield event


def _standing(snapshot: Snapshot) -> dict[str, Any]:
    held = snapshot.standing
    return {
        "running": held.running,
        "waiting": snapshot.waiting,
        "in_flight": held.steps_in_flight,
        "pages": held.pages,
        "pages_used": held.pages_used,
    }


def _row(step: StepTimes) -> list[Any]:
    """Number, kind, rows; then milliseconds: begin, forward, sampling (null: part of the forward), idle before it."""
    sampling = None if step.sampling is None else _ms(step.sampling)
    return [step.id, step.kind.value, step.rows, _ms(step.started), _ms(step.forward), sampling, _ms(step.idle)]


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)
