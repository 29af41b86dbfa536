"""Where other threads leave requests and cancellations for the loop, and where the loop sleeps.

The only object of the engine that several threads touch. The loop blocks here and nowhere else but `Device.wait`.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from gapless.records import Request


@dataclass(frozen=True, slots=True)
class Mail:
    """What arrived: new requests, ids to cancel, and requests cancelled before the loop ever saw them."""

    requests: tuple[Request, ...] = ()
    cancels: tuple[int, ...] = ()
    withdrawn: tuple[Request, ...] = ()


NOTHING = Mail()


class Pile:
    """What waits for a loop to take it, in the order in which it came. For one thread at a time."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._cancels: list[int] = []
        self._withdrawn: list[Request] = []

    @property
    def empty(self) -> bool:
        """Nothing waits to be taken. For any thread: what comes at this moment may be overlooked."""
        return not (self._requests or self._cancels or self._withdrawn)

    def add(self, request: Request) -> None:
        """A request."""
        self._requests.append(request)

    def cancel(self, request_id: int) -> None:
        """The end of a request is wished for; one that the loop has not taken yet is withdrawn. Unknown and finished
        ids are harmless."""
        for request in self._requests:
            if request.id == request_id:
                self._requests.remove(request)
                self._withdrawn.append(request)
                return
        self._cancels.append(request_id)

    def take(self, limit: int) -> Mail:
        """See `Mailbox`."""
        count = min(limit, len(self._requests))
        requests = tuple(self._requests.popleft() for _ in range(count))
        mail = Mail(requests, tuple(self._cancels), tuple(self._withdrawn))
        self._cancels.clear()
        self._withdrawn.clear()
        return mail


class Mailbox(Protocol):
    """The loop's view of a mailbox."""

    @property
    def empty(self) -> bool:
        """Nothing waits to be taken."""
        ...

    def take(self, limit: int) -> Mail:
        """Take at most `limit` requests and every cancellation."""
        ...

    def sleep(self, seconds: float | None) -> None:
        """Block until something arrives or is notified, at most `seconds` (None: without limit)."""
        ...


class ThreadMailbox:
    """A mailbox on one condition variable."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._pile = Pile()
        self._notified = False

    @property
    def empty(self) -> bool:
        """See `Mailbox`."""
        with self._condition:
            return self._pile.empty

    def submit(self, request: Request) -> None:
        """Leave a request (any thread)."""
        with self._condition:
            self._pile.add(request)
            self._wake()

    def cancel(self, request_id: int) -> None:
        """Ask for the end of a request (any thread). Unknown and finished ids are harmless."""
        with self._condition:
            self._pile.cancel(request_id)
            self._wake()

    def notify(self) -> None:
        """Wake the loop (any thread): a mask is ready, or the engine is to close."""
        with self._condition:
            self._wake()

    def _wake(self) -> None:
        self._notified = True
        self._condition.notify_all()

    def take(self, limit: int) -> Mail:
        """See `Mailbox`."""
        if self._pile.empty:  # nearly always, and then no lock is taken; what comes this moment can wait
            return NOTHING
        with self._condition:
            return self._pile.take(limit)

    def sleep(self, seconds: float | None) -> None:
        """See `Mailbox`."""
        with self._condition:
            if not self._notified and self._pile.empty:
                self._condition.wait(seconds)
            self._notified = False
