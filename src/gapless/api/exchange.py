"""What one thread does for an engine in a process of its own: it owns the socket and the arena, speaks and listens.

In: orders, left by anybody, and what the engine says. Out: every request's emissions into its channel, in order, and
exactly one finish, whatever happens to either process. Whoever leaves an order wakes it, so that a destructor, which
may run anywhere, takes no lock and waits for nothing.

A picture that finds no room in the arena waits on this side, and with it all requests behind it, until a picture before
it is not needed any more. Its deadline and its cancelling are then this side's to see to.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue

import zmq

from gapless.api import wire
from gapless.api.channel import Channel
from gapless.api.remote_shelf import RemoteShelf
from gapless.api.remote_tables import RemoteTables
from gapless.api.remote_totals import Totals
from gapless.api.runner import NOTHING, closed_while_running, engine_dead, explained
from gapless.api.spawn import EngineProcess
from gapless.errors import EngineClosed, GaplessError, RequestCancelled, overdue
from gapless.locks import Lock
from gapless.observe.answers import Answers
from gapless.records import Emission, Finish, Request

_log = logging.getLogger("gapless")

Order = Request | int | wire.Tell | wire.Shelve | wire.Discard | wire.Pin
"""Requests, ids to cancel, wishes for totals, adapters to load and to discard, pictures to pin."""


class Exchange:
    """`run` is the thread's; `order`, `wake` and `check` are anybody's. `lock` guards `open` (the channels of requests
    that have no finish), the shelf's names, and the order in which requests and ends happen.

    `closing`, `hasty`: what is wished, see `wire.Close`. `over`: nobody is served any more, because of `cause`, or
    without one since it was closed.
    """

    def __init__(self, process: EngineProcess, ready: wire.Ready) -> None:
        self.lock = Lock()
        self.open: dict[int, Channel] = {}
        self.totals = Totals(ready.totals)
        self.answers = Answers()
        self.shelf = RemoteShelf(ready.adapters)
        self.closing = self.hasty = self.over = False
        self.cause: BaseException | None = None
        self.pending: deque[Request] = deque()
        """Taken, and not sent yet."""
        self.said_close: bool | None = None
        """The `drain` of the last `Close` that was sent."""
        self._process = process
        self._tables = RemoteTables()
        self._orders: SimpleQueue[Order] = SimpleQueue()
        self._given_up: set[int] = set()
        self._wake_there, self._wake_here = socket.socketpair()
        self._wake_here.setblocking(False)
        self._wake_there.setblocking(False)

    def check(self) -> None:
        """Raises `EngineDead` or `EngineClosed` if no request would be taken any more. Waits for nothing."""
        if self.cause is not None:
            raise engine_dead(self.cause) from self.cause
        if self.closing:
            raise EngineClosed("the engine was closed; load the model again to go on")

    def order(self, order: Order) -> None:
        """Leave an order; it is seen to when the thread was woken."""
        self._orders.put(order)

    def wake(self) -> None:
        """Let the thread look at its orders and at what is wished."""
        with suppress(OSError):  # full: it is awake; closed: it is over
            self._wake_here.send(b"!")

    def run(self) -> None:
        """Speak and listen until the engine has ended, then tell everyone, and end the process."""
        cause: BaseException | None
        try:
            cause = self._exchange()
        except BaseException as error:
            _log.exception("the engine process cannot be understood")
            self._process.kill()
            cause = error
        self.end(cause)
        self._process.end()
        self._wake_here.close()
        self._wake_there.close()

    def end(self, cause: BaseException | None) -> None:
        """Nobody is served any more: whoever still waits is told so. Harmless when it was so already."""
        error = (
            engine_dead(cause) if cause is not None else EngineClosed("the engine was closed before the request ended")
        )
        error.__cause__ = cause
        with self.lock:
            if self.over:
                return
            self.cause, self.closing, self.over = cause, True, True
            left, self.open = self.open, {}
        self.pending.clear()
        self.totals.end()
        self.shelf.end(error)
        for request_id, channel in left.items():
            finish = Finish(NOTHING, error=error)
            self.answers.note(finish)
            channel.put(Emission(request_id, finish=finish))

    def _exchange(self) -> BaseException | None:
        """Returns why the engine has ended, None if it was closed."""
        poller = zmq.Poller()
        for source in (self._process.line.socket, self._process.life, self._wake_there):
            poller.register(source, zmq.POLLIN)
        while not self._process.gone:
            while (frame := self._process.line.receive()) is not None:
                self._hear(wire.decode_upward(frame))
                if self.over:
                    return self.cause
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
            if self.over:
                return self.cause
        return self._process.how_it_ended()

    # -- what the engine says ----------------------------------------------------------------------------------------

    def _hear(self, message: wire.Upward) -> None:
        match message:
            case wire.Report(news=news, freed=freed, talk=talk):
                for offset in freed:
                    self._process.arena.free(offset)
                for some in talk:
                    for request_id, token in zip(some.requests, some.tokens, strict=True):
                        self.open[request_id].say(request_id, token)
                for one in news:
                    self._deliver(one.emission())
            case wire.Shelved() as said:
                with self.lock:
                    if (old := self.shelf.answered(said)) is not None:
                        self._orders.put(old)
            case wire.Totals() as told:
                self.totals.heard(told)
            case wire.Bye(totals=totals):
                self.totals.accounting = totals
                self.end(None)
            case wire.Died(error=note):
                self.end(note.error(RuntimeError))
            case _:
                raise ValueError(f"a running engine does not say {type(message).__name__}")

    def _deliver(self, emission: Emission) -> None:
        channel = self.open[emission.request_id]
        if emission.finish is None:
            channel.put(emission)
            return
        finish = explained(emission.request_id, emission.finish, self._given_up, channel)
        self.answers.note(finish)
        channel.put(replace(emission, finish=finish))
        with self.lock:  # only now: a fork in between would leave its waiter without any finish
            del self.open[emission.request_id]

    # -- what it is told ---------------------------------------------------------------------------------------------

    def _take_orders(self) -> None:
        with suppress(Empty):
            while True:
                match self._orders.get_nowait():
                    case Request() as request:
                        self.pending.append(request)
                    case int() as request_id:
                        self._cancel(request_id)
                    case wire.Discard(key=key):
                        self.shelf.unused.append(key)
                    case wire.Tell() | wire.Shelve() | wire.Pin() as order:
                        self._process.line.send(order)

    def _cancel(self, request_id: int) -> None:
        if request_id not in self.open:
            return
        self._given_up.add(request_id)
        for request in self.pending:
            if request.id == request_id:
                self._withdraw(request, RequestCancelled(f"request {request_id} was cancelled by its caller"))
                return
        self._process.line.send(wire.Cancel(request_id))

    def _withdraw(self, request: Request, error: GaplessError) -> None:
        """End a request that the engine has not seen."""
        self.pending.remove(request)
        self._deliver(Emission(request.id, finish=Finish(NOTHING, error=error)))

    def _send_pending(self) -> None:
        """Send requests in order, as far as there is room for their pictures; end those whose time is over."""
        while self.pending and self._send(self.pending[0]):
            self.pending.popleft()
        for discard in self.shelf.discards(request.adapter for request in self.pending):
            self._process.line.send(discard)
        for request in list(self.pending):
            now = time.perf_counter()
            if request.deadline is not None and request.deadline <= now:
                self._withdraw(request, overdue(now - (request.submitted or 0.0), 0))

    def _send(self, request: Request) -> bool:
        prompt = request.prompt
        regions = self._process.arena.place_all(prompt.pictures)
        if regions is None:
            return False
        for message in self._tables.around(request.grammar or request.guide, wire.Submit.of(request, regions)):
            self._process.line.send(message)
        return True

    def _send_close(self) -> None:
        if self.hasty:
            for request in list(self.pending):
                self._withdraw(request, closed_while_running())
        drain = not self.hasty
        if self.closing and not self.pending and self._orders.empty() and self.said_close in (None, not drain):
            self._process.line.send(wire.Close(drain))
            self.said_close = drain

    def _patience(self) -> int | None:
        """Milliseconds to the next deadline of a request that the engine has not seen."""
        deadlines = [request.deadline for request in self.pending if request.deadline is not None]
        return max(1, math.ceil(1e3 * (min(deadlines) - time.perf_counter()))) if deadlines else None
