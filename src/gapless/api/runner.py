"""The engine's thread: runs the loop while there is work, sleeps on the mailbox otherwise.

In: requests with a channel each, cancellations. Out: every request's emissions into its channel, in order, and exactly
one finish, whatever happens. If the loop raises, every waiting and every later call gets `EngineDead` with the cause
(I11). Each time the engine falls idle its ledgers are audited; a failed audit ends it the same way.

A destructor may run on any thread, even the engine's own, in the middle of anything. So `cancel`, `pin` and `abandon`
take no lock of the runner's and wait for nothing: they leave a note and wake the engine's thread.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import threading
import weakref
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue

from gapless.api.channel import Channel
from gapless.api.ruling import Rule, ruled
from gapless.api.shelf import Shelf, no_slots
from gapless.config import EngineConfig
from gapless.constrain.guided import GuidedMasks
from gapless.constrain.masks import TableMasks
from gapless.constrain.table import Table
from gapless.device.base import Device
from gapless.engine.build import Engine
from gapless.engine.mailbox import ThreadMailbox
from gapless.errors import EngineClosed, EngineDead, GaplessError, RequestCancelled
from gapless.locks import Lock
from gapless.observe.accounting import Accounting, Snapshot
from gapless.observe.answers import Answers
from gapless.observe.meter import Part
from gapless.observe.steps import StepTimes
from gapless.records import Emission, Finish, FinishReason, Metrics, Prompt, Request, Sampling, Talk

EXIT_GRACE = 10.0
"""Seconds that requests still running get at interpreter exit, before they are cancelled."""

SWITCH_INTERVAL = 1e-4
"""Seconds after which a busy Python thread hands the interpreter to the engine's; the default is 50 times that."""

NOTHING = Metrics(0, 0, 0.0, 0.0, 0.0, 0.0)
_log = logging.getLogger("gapless")


class Runner:
    """Owns the device from here on; closes it at the end. All public methods may be called from any thread."""

    def __init__(self, device: Device, table: Table, config: EngineConfig, shelf: Shelf | None = None) -> None:
        self._device = device
        self._shelf = shelf
        self._host_masked = config.constraints == "host"
        self._mailbox = ThreadMailbox()
        self._engine = Engine(
            device, table, config, TableMasks(), self._mailbox, guided=GuidedMasks(self._mailbox.notify)
        )
        self._ids = itertools.count(1)
        self._lock = Lock()
        self._open: dict[int, Channel] = {}
        self._answers = Answers()
        self._cancels: SimpleQueue[int] = SimpleQueue()
        self._pins: SimpleQueue[tuple[str, int]] = SimpleQueue()
        self._closing = False
        self._hasty = False
        self._given_up: set[int] = set()
        """Open requests that their callers cancelled; others are cancelled only because the engine closes at once."""
        self._cause: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gapless-engine", daemon=True)
        _living.add(self)  # first, so that no fork comes between
        atexit.register(self._leave)
        self._thread.start()

    # -- callers' side -----------------------------------------------------------------------------------------------

    def accounting(self) -> Accounting:
        """What the engine and its device did since the start."""
        return Accounting.of(self._engine.meter)

    def snapshot(self) -> Snapshot:
        """The same, with what is held now and how requests ended. Waits for nothing."""
        return Snapshot.of(self.accounting(), self._engine.standing(), self._answers.endings(), len(self._open))

    def watch(self, steps: int) -> tuple[Snapshot, tuple[StepTimes, ...]]:
        """See `EngineHandle.watch`. Waits for nothing."""
        watched = self._engine.watch(steps)
        return self.snapshot(), watched

    def now(self) -> float:
        """Seconds on the loop's clock, for deadlines."""
        return self._engine.clock.now()

    def check(self) -> None:
        """Raises `EngineDead` or `EngineClosed` if no request would be taken any more. Waits for nothing."""
        if self._cause is not None:
            raise engine_dead(self._cause) from self._cause
        if self._closing:
            raise EngineClosed("the engine was closed; load the model again to go on")

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
        with self._lock:
            self.check()
            own = None if adapter is None else self._shelved(adapter).get(adapter)
            what = (prompt, program, sampling, self._host_masked, deadline, self.now(), own)
            request = ruled(Request(next(self._ids), *what), grammar)
            self._open[request.id] = channel
            self._mailbox.submit(request)
            return request.id

    def cancel(self, request_id: int) -> None:
        """Ask for the end of a request. Returns at once; ids that are unknown or over are harmless."""
        self._cancels.put(request_id)
        self._mailbox.notify()

    def pin(self, picture: str, more: int) -> None:
        """See `EngineHandle.pin`."""
        self._pins.put((picture, more))
        self._mailbox.notify()

    def load_adapter(self, name: str, path: str) -> None:
        """See `EngineHandle.load_adapter`. Reads in the caller's thread."""
        self.check()
        self._shelved(name).load(name, path)

    def unload_adapter(self, name: str) -> None:
        """See `EngineHandle.unload_adapter`."""
        self.check()
        self._shelved(name).drop(name)

    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that requests may ask for."""
        return () if self._shelf is None else self._shelf.names()

    def _shelved(self, name: str) -> Shelf:
        if self._shelf is None:
            raise no_slots(name)
        return self._shelf

    def close(self, drain: bool = True, within: float | None = None) -> None:
        """Take no more requests, let running ones end (`drain`) or end them with `EngineClosed`, end the threads.

        Idempotent. Raises `EngineDead` if the engine died while closing, which includes a failed audit. After `within`
        seconds its thread is left to end when it can.
        """
        lived = self._cause is None
        with self._lock:
            self._closing = True
        self._hasty = self._hasty or not drain
        self._mailbox.notify()
        self._thread.join(within)
        if lived and self._cause is not None:
            raise engine_dead(self._cause) from self._cause

    def abandon(self) -> None:
        """Nobody can ask for anything any more: cancel and end, without waiting for it."""
        self._closing = self._hasty = True
        self._mailbox.notify()

    def orphan(self) -> None:
        """This process is a fork, and the engine's thread is not in it: tell everyone. The device is left alone."""
        self._mailbox = ThreadMailbox()  # whose lock nobody holds
        atexit.unregister(self._leave)
        self._end(RuntimeError("this process was forked from the one that loaded the model"))

    def _leave(self) -> None:
        """The interpreter exits: let calls of daemon threads end, cancel streams that nobody reads."""
        with self._lock:
            unread = [request_id for request_id, channel in self._open.items() if channel.unread]
            self._closing = True
        for request_id in unread:
            self._cancels.put(request_id)
        self._mailbox.notify()
        self._thread.join(EXIT_GRACE)
        self.abandon()
        self._thread.join(EXIT_GRACE)

    # -- the engine's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        _switching.enter()
        try:
            self._serve()
        except BaseException as error:
            _log.exception("the engine stopped")
            self._end(error)
        else:
            self._end(None)
        finally:
            self._close_device()
            _switching.leave()
            atexit.unregister(self._leave)

    def _close_device(self) -> None:
        try:
            self._device.close()
        except Exception:
            _log.exception("the device did not close cleanly")

    def _serve(self) -> None:
        """Tick until the engine is idle and closing."""
        meter = self._engine.meter
        while True:
            self._take_cancels()
            self._take_pins()
            busy = self._engine.loop.tick()
            meter.enter(Part.DELIVER)
            self._deliver()
            if busy:
                continue
            self._engine.audit()
            if self._closing and self._mailbox.empty:
                return
            meter.enter(Part.MAIL)
            self._mailbox.sleep(None)

    def _take_cancels(self) -> None:
        if self._hasty:
            for request_id in list(self._open):
                self._mailbox.cancel(request_id)
        with suppress(Empty):
            while True:
                request_id = self._cancels.get_nowait()
                if request_id in self._open:
                    self._given_up.add(request_id)
                    self._mailbox.cancel(request_id)

    def _take_pins(self) -> None:
        with suppress(Empty):
            while True:
                self._engine.pin(*self._pins.get_nowait())

    def _deliver(self) -> None:
        for emission in self._engine.loop.book.take_news():
            if isinstance(emission, Talk):
                for request_id, token in zip(emission.requests, emission.tokens, strict=True):
                    self._open[request_id].say(request_id, token)
            elif emission.finish is None:
                self._open[emission.request_id].put(emission)
            else:
                channel = self._open[emission.request_id]
                finish = explained(emission.request_id, emission.finish, self._given_up, channel)
                self._answers.note(finish)
                channel.put(replace(emission, finish=finish))
                with self._lock:  # only now: a fork in between would leave its waiter without any finish
                    del self._open[emission.request_id]

    def _end(self, cause: BaseException | None) -> None:
        """Nobody is served any more: whoever still waits is told so, in the book, the mailbox or anywhere else."""
        error = (
            engine_dead(cause) if cause is not None else EngineClosed("the engine was closed before the request ended")
        )
        error.__cause__ = cause
        with suppress(Exception):  # the ledgers may be in any state now
            self._engine.loop.book.end_all(error, self.now())
            self._deliver()
        with self._lock:
            self._cause, self._closing = cause, True
            left, self._open = self._open, {}
        for request_id, channel in left.items():
            finish = Finish(NOTHING, error=error)
            self._answers.note(finish)
            channel.put(Emission(request_id, finish=finish))


def explained(request_id: int, finish: Finish, given_up: set[int], channel: Channel) -> Finish:
    """Who cancelled a request is known to its runner alone: its caller, and it is among `given_up`, which then forgets
    it; or whoever closed the engine. A caller that has the whole answer already lost nothing: it is a stop."""
    if request_id in given_up:
        given_up.remove(request_id)
        if channel.answered and isinstance(finish.error, RequestCancelled):
            return Finish(finish.metrics, FinishReason.STOP)
    elif isinstance(finish.error, RequestCancelled):
        return replace(finish, error=closed_while_running())
    return finish


def closed_while_running() -> EngineClosed:
    """What a request hears whose engine was closed without waiting for it."""
    return EngineClosed(
        "the engine was closed while this request ran; load the model again to go on, or close with drain=True to let "
        "requests end first"
    )


def engine_dead(cause: BaseException) -> GaplessError:
    """What calls of a stopped engine are told; to be raised from the cause."""
    return EngineDead(f"the engine stopped ({type(cause).__name__}: {cause}); load the model again")


_living: weakref.WeakSet[Runner] = weakref.WeakSet()


def _after_fork() -> None:
    for runner in list(_living):
        if runner._thread is not threading.current_thread():
            runner.orphan()
    _switching.orphan()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Switching:
    """Shortens the interpreter's switch interval while any engine thread lives, and puts it back after the last."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._engines = 0
        self._before = 0.0

    def enter(self) -> None:
        with self._lock:
            if not self._engines:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, SWITCH_INTERVAL))
            self._engines += 1

    def leave(self) -> None:
        with self._lock:
            self._engines -= 1
            if not self._engines:
                sys.setswitchinterval(self._before)

    def orphan(self) -> None:
        """This process is a fork, without the engines' threads."""
        if self._engines:
            self._engines = 0
            sys.setswitchinterval(self._before)


_switching = _Switching()
