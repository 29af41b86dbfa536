"""The model behind the server: loading, ready, or gone.

In: a function that loads. Out: an `AsyncVLM` while there is one, an error with its status otherwise. The load runs in a
thread of its own, so that the server answers /health meanwhile; its end is noticed on the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gapless.api.aio import AsyncVLM
from gapless.api.load import Progress
from gapless.api.rules import RuleCounts
from gapless.api.vlm import VLM
from gapless.errors import EngineDead, GaplessError
from gapless.images.cache import PictureCounts
from gapless.observe.accounting import Snapshot
from gapless.serve.errors import NotServing

Loading = Callable[[Progress], VLM]
CLOSE_WITHIN = 10.0
"""Seconds an engine gets to end; one in a process of its own is then killed."""


class Watcher(Progress, Protocol):
    """Whoever starts a server: told how loading goes, and what there is to say."""

    def say(self, line: str) -> None:
        """Something to be read by a person."""
        ...

    def ready(self, line: str) -> None:
        """Loading is over; `line` says where to ask."""
        ...


@dataclass(frozen=True, slots=True)
class Stage:
    """How far the start is: `done` of `total` parts of what it is `doing`."""

    doing: str
    done: int
    total: int


class Engine:
    """One model. All methods belong to the event loop's thread, except `show` and `snapshot`."""

    def __init__(self, load: Loading, watcher: Watcher) -> None:
        self.stage: Stage | None = None
        self.failure: BaseException | None = None
        """Why loading failed."""
        self._load = load
        self._watcher = watcher
        self._vlm: AsyncVLM | None = None
        self._closing = False

    def show(self, doing: str, done: int, total: int) -> None:
        """Progress of the load (any thread)."""
        self.stage = Stage(doing, done, total)
        self._watcher.show(doing, done, total)

    def start(self) -> None:
        """Begin to load. A daemon thread: whoever stops the server does not wait for it."""
        loop = asyncio.get_running_loop()

        def work() -> None:
            try:
                vlm = self._load(self)
            except BaseException as error:
                with suppress(RuntimeError):  # the loop is closed: nobody wants to know
                    loop.call_soon_threadsafe(self._fail, error)
                return
            try:
                loop.call_soon_threadsafe(self.adopt, vlm)
            except RuntimeError:
                vlm.desk.abandon()

        threading.Thread(target=work, name="gapless-load", daemon=True).start()

    def adopt(self, vlm: VLM) -> None:
        """From now on this model answers; one that comes when the server is closing already is let go."""
        if self._closing:
            vlm.desk.abandon()
        else:
            self._vlm = AsyncVLM(vlm)

    def _fail(self, error: BaseException) -> None:
        self.failure = error

    @property
    def ready(self) -> bool:
        """A model was loaded; it may have died since."""
        return self._vlm is not None

    def vlm(self) -> AsyncVLM:
        """The model. Raises `NotServing` before there is one, `EngineDead` or `EngineClosed` when it is gone."""
        if self._vlm is None:
            raise NotServing("the model is still loading; /health says how far it is")
        self._vlm.check()
        return self._vlm

    def snapshot(self) -> tuple[Snapshot, str] | None:
        """What it has done, and the model's name; None before there is one. May wait for a moment (any thread)."""
        vlm = self._vlm
        return None if vlm is None else (vlm.desk.runner.snapshot(), vlm.desk.context.name)

    def pictures(self) -> tuple[PictureCounts, str] | None:
        """Pictures that it was asked about, and the model's name; None before there is one (any thread)."""
        vlm = self._vlm
        return None if vlm is None else (vlm.desk.pictures(), vlm.desk.context.name)

    def rules(self) -> tuple[RuleCounts, str] | None:
        """Rules that it compiled, and the model's name; None before there is one (any thread)."""
        vlm = self._vlm
        return None if vlm is None else (vlm.desk.rules.counts(), vlm.desk.context.name)

    def death(self) -> GaplessError | None:
        """Why there will be no more answers, None if there may be."""
        if self._vlm is None:
            return None
        try:
            self._vlm.check()
        except GaplessError as error:
            return error
        return None

    async def close(self) -> None:
        """End what still runs with `EngineClosed`, and the engine. Takes little more than `CLOSE_WITHIN` seconds at
        most, whatever the engine is at; twice as long if the system does not manage to kill it: its end is waited for
        in a thread that nobody waits for."""
        closing, self._closing = self._closing, True
        if self._vlm is None or closing:
            return
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        close = partial(self._vlm.desk.close, False, CLOSE_WITHIN)

        def work() -> None:
            with suppress(EngineDead):  # known already: the process ends because of it
                close()
            with suppress(RuntimeError):  # the loop did not wait
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=work, name="gapless-close", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * CLOSE_WITHIN):
                await ended.wait()
