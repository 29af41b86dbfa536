"""A lock that a forked child finds free.

Of a process's threads only the one that forks goes on in the child. What another one held at that moment is held for
ever there, and whoever asks for it, an exit handler for instance, never returns. So every lock of this package is one
of these. What a lock guards may be half written in the child: its owner sees to that, or never uses it there.
"""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType


class Lock:
    """For `with` alone. Not to be held by a thread that forks."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _living.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def renew(self) -> None:
        """This process is a fork: whoever held the lock is not in it."""
        self._lock = threading.Lock()


_living: weakref.WeakSet[Lock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_living):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
