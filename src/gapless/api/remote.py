"""An engine in a process of its own, behind the same methods as `Runner`.

In: requests with a channel each, cancellations, wishes of callers, from any thread. Out: orders for the one thread that
speaks to the engine (`exchange`), and what it has heard. Here is who may ask, and how the process's life begins to end:
when it is closed, abandoned, forked, or the interpreter exits.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
import time
import weakref
from contextlib import suppress
from queue import Empty

from gapless.api import wire
from gapless.api.arena import room_for
from gapless.api.channel import Channel
from gapless.api.exchange import Exchange
from gapless.api.remote_totals import SNAPSHOT_WAIT, TOTALS_WAIT
from gapless.api.ruling import Rule, ruled
from gapless.api.runner import EXIT_GRACE, engine_dead
from gapless.api.spawn import EngineProcess
from gapless.errors import InvalidRequest
from gapless.observe.accounting import Accounting, Snapshot
from gapless.observe.steps import StepTimes
from gapless.records import Prompt, Request, Sampling

_log = logging.getLogger("gapless")


class RemoteRunner:
    """Owns an engine process that is ready; ends it at the end. All public methods may be called from any thread.

    `host_masked`: see `Request`. `now` is the machine's clock, which all its processes share.
    """

    def __init__(self, process: EngineProcess, ready: wire.Ready, host_masked: bool = False) -> None:
        self._process = process
        self._host_masked = host_masked
        self._ids = itertools.count(1)
        self._exchange = Exchange(process, ready)
        self._thread = threading.Thread(target=self._run, name="gapless-remote", daemon=True)
        _living.add(self)
        atexit.register(self._leave)
        self._thread.start()

    def _run(self) -> None:
        self._exchange.run()
        atexit.unregister(self._leave)

    @property
    def pid(self) -> int:
        """The engine's process."""
        return self._process.pid

    @property
    def pictures_held(self) -> int:
        """Pictures in the arena that the engine may still need."""
        return self._process.arena.held

    def accounting(self) -> Accounting:
        """What the engine and its device did since the start; of an engine that has ended, as far as it told."""
        self._ask(TOTALS_WAIT)
        return self._exchange.totals.accounting

    def snapshot(self) -> Snapshot:
        """See `EngineHandle.snapshot`; the engine's part is its last one if it is long at a step."""
        return self.watch(0)[0]

    def watch(self, steps: int) -> tuple[Snapshot, tuple[StepTimes, ...]]:
        """See `EngineHandle.watch`."""
        self._ask(SNAPSHOT_WAIT, steps)
        told, answers = self._exchange.totals, self._exchange.answers
        snapshot = Snapshot.of(told.accounting, told.standing, answers.endings(), len(self._exchange.open))
        return snapshot, told.steps() if steps else ()

    def _ask(self, patience: float, watch: int = 0) -> None:
        """Bring the totals up to date, if the engine says them in so many seconds."""
        with self._exchange.lock:
            if self._exchange.over:
                return
            answer = self._exchange.totals.ask()
            self._exchange.order(wire.Tell(watch))
        self._exchange.wake()
        with suppress(Empty):
            answer.get(timeout=patience)

    def now(self) -> float:
        """Seconds on the loop's clock."""
        return time.perf_counter()

    def check(self) -> None:
        """Raises `EngineDead` or `EngineClosed` if no request would be taken any more. Waits for nothing."""
        self._exchange.check()

    def submit(
        self,
        prompt: Prompt,
        program: str,
        sampling: Sampling,
        deadline: float | None,
        channel: Channel,
        adapter: str | None = None,
        grammar: Rule | None = None,
    ) -> int:
        """See `EngineHandle.submit`."""
        room = room_for(prompt.pictures)
        if room > self._process.arena.capacity:
            raise InvalidRequest(
                f"the crops of the request's pictures take {room} bytes; the engine process takes "
                f"{self._process.arena.capacity}; send smaller pictures, or fewer at once",
                param="image",
            )
        with self._exchange.lock:
            self.check()
            what = (next(self._ids), prompt, program, sampling, self._host_masked, deadline, self.now())
            named = None if adapter is None else self._exchange.shelf.get(adapter)
            request = ruled(Request(*what, named), grammar)
            self._exchange.open[request.id] = channel
            self._exchange.order(request)
        self._exchange.wake()
        return request.id

    def cancel(self, request_id: int) -> None:
        """Ask for the end of a request. Returns at once; ids that are unknown or over are harmless."""
        self._exchange.order(request_id)
        self._exchange.wake()

    def pin(self, picture: str, more: int) -> None:
        """See `EngineHandle.pin`."""
        self._exchange.order(wire.Pin(picture, more))
        self._exchange.wake()

    def load_adapter(self, name: str, path: str) -> None:
        """See `EngineHandle.load_adapter`. The engine's process reads it."""
        self.check()
        order, answer = self._exchange.shelf.order(name, path)
        self._exchange.order(order)
        self._exchange.wake()
        if (error := answer.get()) is not None:
            raise error

    def unload_adapter(self, name: str) -> None:
        """See `EngineHandle.unload_adapter`."""
        with self._exchange.lock:
            self.check()
            self._exchange.order(self._exchange.shelf.drop(name))
        self._exchange.wake()

    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that requests may ask for."""
        return self._exchange.shelf.names()

    def close(self, drain: bool = True, within: float | None = None) -> None:
        """See `Runner.close`; the process has ended when this returns. After `within` seconds it is killed."""
        lived = self._exchange.cause is None
        with self._exchange.lock:
            self._exchange.closing = True
        self._exchange.hasty = self._exchange.hasty or not drain
        self._exchange.wake()
        self._thread.join(within)
        if self._thread.is_alive():
            _log.error("the engine process did not end within %g seconds and is killed", within)
            self._process.kill()
            self._thread.join()
        if lived and (cause := self._exchange.cause) is not None:
            raise engine_dead(cause) from cause

    def abandon(self) -> None:
        """Nobody can ask for anything any more: cancel and end, without waiting for it."""
        self._exchange.closing = self._exchange.hasty = True
        self._exchange.wake()

    def orphan(self) -> None:
        """This process is a fork, and the thread that speaks to the engine is not in it: tell everyone."""
        atexit.unregister(self._leave)
        self._process.life.close()  # or the engine would live as long as this process
        self._exchange.end(RuntimeError("this process was forked from the one that loaded the model"))

    def _leave(self) -> None:
        """The interpreter exits: let calls of daemon threads end, cancel streams that nobody reads."""
        with self._exchange.lock:
            unread = [request_id for request_id, channel in self._exchange.open.items() if channel.unread]
            self._exchange.closing = True
        for request_id in unread:
            self.cancel(request_id)
        self._exchange.wake()
        self._thread.join(EXIT_GRACE)
        self.abandon()
        self._thread.join(EXIT_GRACE)
        if self._thread.is_alive():
            self._process.kill()
            self._thread.join(EXIT_GRACE)


_living: weakref.WeakSet[RemoteRunner] = weakref.WeakSet()


def _after_fork() -> None:
    for runner in list(_living):
        runner.orphan()


os.register_at_fork(after_in_child=_after_fork)
