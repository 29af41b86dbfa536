"""Work that several threads want at once is done by one of them, and the others wait for what it makes.

In: a key and what makes its value. Out: the value, or the error, to all who asked while it was made. Invariants:
whoever asks first works in its own thread, so nobody waits for a thread that is not there; an error goes to all, each
gets one of its own; one who is interrupted (anything but an `Exception`) takes nobody along: of those who wait, the
next one works.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

from gapless.errors import GaplessError
from gapless.locks import Lock

T = TypeVar("T")


class Once(Generic[T]):
    """For any thread. Nothing is kept: whoever asks after the value is there works again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._making: dict[tuple[int, Hashable], Future[T | None]] = {}  # by process: a fork's has nobody who works

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` makes, here or in a thread that began before; values are never None."""
        own = (os.getpid(), key)
        while True:
            with self._lock:
                known = self._making.get(own)
                if known is None:
                    made = self._making[own] = Future()
            if known is None:
                return self._work(own, made, make)
            if (found := _awaited(known)) is not None:
                return found

    def _work(self, own: tuple[int, Hashable], made: Future[T | None], make: Callable[[], T]) -> T:
        value, failed = None, None
        try:
            value = make()
            return value
        except Exception as error:
            failed = error
            raise
        finally:
            with self._lock:
                del self._making[own]
            if failed is None:
                made.set_result(value)  # None: interrupted
            else:
                made.set_exception(failed)


def _awaited(made: Future[T | None]) -> T | None:
    try:
        return made.result()
    except GaplessError as error:  # each its own: they are raised in several threads
        raise type(error)(str(error), param=error.param) from error
