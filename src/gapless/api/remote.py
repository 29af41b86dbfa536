"""An engine in a process of its own, behind the same methods as `Runner`.

In: requests with a channel each, cancellations. Out: every request's emissions into its channel, in order, and exactly
one finish, whatever happens to either process. One thread owns the socket and the arena. Everybody else leaves orders
for it and wakes it, so that a destructor, which may run anywhere, takes no lock and waits for nothing.

A picture that finds no room in the arena waits on this side, and with it all requests behind it, until a picture before
it is not needed any more. Its deadline and its cancelling are then this side's to see to.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import math
import os
import socket
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue

import zmq

from gapless.api import wire
from gapless.api.arena import room_for
from gapless.api.channel import Channel
from gapless.api.remote_shelf import RemoteShelf
from gapless.api.remote_tables import RemoteTables
from gapless.api.remote_totals import SNAPSHOT_WAIT, TOTALS_WAIT, Totals
from gapless.api.ruling import Rule, ruled
from gapless.api.runner import EXIT_GRACE, NOTHING, closed_while_running, engine_dead, explained
from gapless.api.spawn import EngineProcess
from gapless.errors import EngineClosed, GaplessError, InvalidRequest, RequestCancelled, overdue
from gapless.locks import Lock
from gapless.observe.accounting import Accounting, Snapshot
from gapless.observe.answers import Answers
from gapless.observe.steps import StepTimes
from gapless.records import Emission, Finish, Prompt, Request, Sampling

_log = logging.getLogger("gapless")


class RemoteRunner:
    """Owns an engine process that is ready; ends it at the end. All public methods may be called from any thread.

    `host_masked`: see `Request`. `now` is the machine's clock, which all its processes share.
    """

    def __init__(self, process: EngineProcess, ready: wire.Ready, host_masked: bool = False) -> None:
        self._process = process
        self._host_masked = host_masked
        self._ids = itertools.count(1)
        self._lock = Lock()
        self._open: dict[int, Channel] = {}
        self._totals = Totals(ready.totals)
        self._answers = Answers()
        self._orders: SimpleQueue[Request | int | wire.Tell | wire.Shelve | wire.Discard | wire.Pin] = SimpleQueue()
        """Requests, ids to cancel, wishes for totals, adapters to load and to discard, pictures to pin."""
        self._shelf, self._tables = RemoteShelf(ready.adapters), RemoteTables()
        self._pending: deque[Request] = deque()
        self._given_up: set[int] = set()
        self._closing = self._hasty = self._over = False
        self._said_close: bool | None = None
        """The `drain` of the last `Close` that was sent."""
        self._cause: BaseException | None = None
        self._wake_there, self._wake_here = socket.socketpair()
        self._wake_here.setblocking(False)
        self._wake_there.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="gapless-remote", daemon=True)
        _living.add(self)
        atexit.register(self._leave)
        self._thread.start()

    # -- callers' side -----------------------------------------------------------------------------------------------

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
        return self._totals.accounting

    def snapshot(self) -> Snapshot:
        """See `EngineHandle.snapshot`; the engine's part is its last one if it is long at a step."""
        return self.watch(0)[0]

    def watch(self, steps: int) -> tuple[Snapshot, tuple[StepTimes, ...]]:
        """See `EngineHandle.watch`."""
        self._ask(SNAPSHOT_WAIT, steps)
        told = self._totals
        snapshot = Snapshot.of(told.accounting, told.standing, self._answers.endings(), len(self._open))
        return snapshot, told.steps() if steps else ()

    def _ask(self, patience: float, watch: int = 0) -> None:
        """Bring the totals up to date, if the engine says them in so many seconds."""
        with self._lock:
            if self._over:
                return
            answer = self._totals.ask()
            self._orders.put(wire.Tell(watch))
        self._wake()
        with suppress(Empty):
            answer.get(timeout=patience)

    def now(self) -> float:
        """Seconds on the loop's clock."""
        return time.perf_counter()

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
        room = room_for(prompt.pictures)
        if room > self._process.arena.capacity:
            raise InvalidRequest(
                f"the crops of the request's pictures take {room} bytes; the engine process takes "
                f"{self._process.arena.capacity}; send smaller pictures, or fewer at once",
                param="image",
            )
        with self._lock:
            self.check()
            what = (next(self._ids), prompt, program, sampling, self._host_masked, deadline, self.now())
            request = ruled(Request(*what, None if adapter is None else self._shelf.get(adapter)), grammar)
            self._open[request.id] = channel
            self._orders.put(request)
        self._wake()
        return request.id

    def cancel(self, request_id: int) -> None:
        """Ask for the end of a request. Returns at once; ids that are unknown or over are harmless."""
        self._orders.put(request_id)
        self._wake()

    def pin(self, picture: str, more: int) -> None:
        """See `EngineHandle.pin`."""
        self._orders.put(wire.Pin(picture, more))
        self._wake()

    def load_adapter(self, name: str, path: str) -> None:
        """See `EngineHandle.load_adapter`. The engine's process reads it."""
        self.check()
        order, answer = self._shelf.order(name, path)
        self._orders.put(order)
        self._wake()
        if (error := answer.get()) is not None:
            raise error

    def unload_adapter(self, name: str) -> None:
        """See `EngineHandle.unload_adapter`."""
        with self._lock:
            self.check()
            self._orders.put(self._shelf.drop(name))
        self._wake()

    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that requests may ask for."""
        return self._shelf.names()

    def close(self, drain: bool = True, within: float | None = None) -> None:
        """See `Runner.close`; the process has ended when this returns. After `within` seconds it is killed."""
        lived = self._cause is None
        with self._lock:
            self._closing = True
        self._hasty = self._hasty or not drain
        self._wake()
        self._thread.join(within)
        if self._thread.is_alive():
            _log.error("the engine process did not end within %g seconds and is killed", within)
            self._process.kill()
            self._thread.join()
        if lived and self._cause is not None:
            raise engine_dead(self._cause) from self._cause

    def abandon(self) -> None:
        """Nobody can ask for anything any more: cancel and end, without waiting for it."""
        self._closing = self._hasty = True
        self._wake()

    def orphan(self) -> None:
        """This process is a fork, and the thread that speaks to the engine is not in it: tell everyone."""
        atexit.unregister(self._leave)
        self._process.life.close()  # or the engine would live as long as this process
        self._end(RuntimeError("this process was forked from the one that loaded the model"))

    def _leave(self) -> None:
        """The interpreter exits: let calls of daemon threads end, cancel streams that nobody reads."""
        with self._lock:
            unread = [request_id for request_id, channel in self._open.items() if channel.unread]
            self._closing = True
        for request_id in unread:
            self.cancel(request_id)
        self._wake()
        self._thread.join(EXIT_GRACE)
        self.abandon()
        self._thread.join(EXIT_GRACE)
        if self._thread.is_alive():
            self._process.kill()
            self._thread.join(EXIT_GRACE)

    def _wake(self) -> None:
        with suppress(OSError):  # full: it is awake; closed: it is over
            self._wake_here.send(b"!")

    # -- the thread that speaks to the engine ------------------------------------------------------------------------

    def _run(self) -> None:
        cause: BaseException | None
        try:
            cause = self._exchange()
        except BaseException as error:
            _log.exception("the engine process cannot be understood")
            self._process.kill()
            cause = error
        self._end(cause)
        self._process.end()
        self._wake_here.close()
        self._wake_there.close()
        atexit.unregister(self._leave)

    def _exchange(self) -> BaseException | None:
        """Speak and listen until the engine has ended. Returns why, None if it was closed."""
        poller = zmq.Poller()
        for source in (self._process.line.socket, self._process.life, self._wake_there):
            poller.register(source, zmq.POLLIN)
        while not self._process.gone:
            while (frame := self._process.line.receive()) is not None:
                self._hear(wire.decode_upward(frame))
                if self._over:
                    return self._cause
            try:
                self._take_orders()
                self._send_pending()
                self._send_close()
            except zmq.Again:  # nobody is there any more
                break
            poller.poll(self._patience())
            with suppress(BlockingIOError):
                self._wake_there.recv(4096)
        for frame in self._process.last_words():
            self._hear(wire.decode_upward(frame))
            if self._over:
                return self._cause
        return self._process.how_it_ended()

    def _hear(self, message: wire.Upward) -> None:
        match message:
            case wire.Report(news=news, freed=freed, talk=talk):
                for offset in freed:
                    self._process.arena.free(offset)
                for some in talk:
                    for request_id, token in zip(some.requests, some.tokens, strict=True):
                        self._open[request_id].say(request_id, token)
                for one in news:
                    self._deliver(one.emission())
            case wire.Shelved() as said:
                with self._lock:
                    if (old := self._shelf.answered(said)) is not None:
                        self._orders.put(old)
            case wire.Totals() as told:
                self._totals.heard(told)
            case wire.Bye(totals=totals):
                self._totals.accounting = totals
                self._end(None)
            case wire.Died(error=note):
                self._end(note.error(RuntimeError))
            case _:
                raise ValueError(f"a running engine does not say {type(message).__name__}")

    def _deliver(self, emission: Emission) -> None:
        channel = self._open[emission.request_id]
        if emission.finish is None:
            channel.put(emission)
            return
        finish = explained(emission.request_id, emission.finish, self._given_up, channel)
        self._answers.note(finish)
        channel.put(replace(emission, finish=finish))
        with self._lock:  # only now: a fork in between would leave its waiter without any finish
            del self._open[emission.request_id]

    def _take_orders(self) -> None:
        with suppress(Empty):
            while True:
                match self._orders.get_nowait():
                    case Request() as request:
                        self._pending.append(request)
                    case int() as request_id:
                        self._cancel(request_id)
                    case wire.Discard(key=key):
                        self._shelf.unused.append(key)
                    case wire.Tell() | wire.Shelve() | wire.Pin() as order:
                        self._process.line.send(order)

    def _cancel(self, request_id: int) -> None:
        if request_id not in self._open:
            return
        self._given_up.add(request_id)
        for request in self._pending:
            if request.id == request_id:
                self._withdraw(request, RequestCancelled(f"request {request_id} was cancelled by its caller"))
                return
        self._process.line.send(wire.Cancel(request_id))

    def _withdraw(self, request: Request, error: GaplessError) -> None:
        """End a request that the engine has not seen."""
        self._pending.remove(request)
        self._deliver(Emission(request.id, finish=Finish(NOTHING, error=error)))

    def _send_pending(self) -> None:
        """Send requests in order, as far as there is room for their pictures; end those whose time is over."""
        while self._pending and self._send(self._pending[0]):
            self._pending.popleft()
        for discard in self._shelf.discards(request.adapter for request in self._pending):
            self._process.line.send(discard)
        for request in list(self._pending):
            if request.deadline is not None and request.deadline <= self.now():
                waited = self.now() - (request.submitted or 0.0)
                self._withdraw(request, overdue(waited, 0))

    def _send(self, request: Request) -> bool:
        prompt = request.prompt
        regions = self._process.arena.place_all(prompt.pictures)
        if regions is None:
            return False
        for message in self._tables.around(request.grammar or request.guide, wire.Submit.of(request, regions)):
            self._process.line.send(message)
        return True

    def _send_close(self) -> None:
        if self._hasty:
            for request in list(self._pending):
                self._withdraw(request, closed_while_running())
        drain = not self._hasty
        if self._closing and not self._pending and self._orders.empty() and self._said_close in (None, not drain):
            self._process.line.send(wire.Close(drain))
            self._said_close = drain

    def _patience(self) -> int | None:
        """Milliseconds to the next deadline of a request that the engine has not seen."""
        deadlines = [request.deadline for request in self._pending if request.deadline is not None]
        return max(1, math.ceil(1e3 * (min(deadlines) - self.now()))) if deadlines else None

    def _end(self, cause: BaseException | None) -> None:
        """Nobody is served any more: whoever still waits is told so. Harmless when it was so already."""
        error = (
            engine_dead(cause) if cause is not None else EngineClosed("the engine was closed before the request ended")
        )
        error.__cause__ = cause
        with self._lock:
            if self._over:
                return
            self._cause, self._closing, self._over = cause, True, True
            left, self._open = self._open, {}
        self._pending.clear()
        self._totals.end()
        self._shelf.end(error)
        for request_id, channel in left.items():
            finish = Finish(NOTHING, error=error)
            self._answers.note(finish)
            channel.put(Emission(request_id, finish=finish))


_living: weakref.WeakSet[RemoteRunner] = weakref.WeakSet()


def _after_fork() -> None:
    for runner in list(_living):
        runner.orphan()


os.register_at_fork(after_in_child=_after_fork)
