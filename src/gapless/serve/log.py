"""The log: lines on standard error, written by a thread of their own.

In: records of the loggers, and lines for a person, from any thread. Out: the same lines on a file descriptor, in order.
Invariants: whoever leaves a line waits for nothing, whatever the descriptor is (a full disk, a pipe that nobody reads);
no more than `MOST_LINES` wait; those that find no room or cannot be written are counted, and as soon as lines come
through again, one says how many were lost. At the end what waits is written, unless that takes more than `LAST_LINES`
seconds.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from gapless.serve.engine import Watcher

STDERR = 2
MOST_LINES = 4096
LAST_LINES = 2.0

Writing = Callable[[], None]


class BackgroundLog(logging.Handler):
    """The handler, and its thread. `fd`: where to write."""

    def __init__(self, fd: int = STDERR, most: int = MOST_LINES) -> None:
        super().__init__()
        self._fd = fd
        self._most = most
        self._waiting: SimpleQueue[Writing | None] = SimpleQueue()
        """Reentrant, as a destructor may log in the middle of anything. None: the end."""
        self._without_room = self._unwritten = self._told = 0
        self._thread = threading.Thread(target=self._write_all, name="gapless-log", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Lines that nobody will read."""
        return self._without_room + self._unwritten

    def emit(self, record: logging.LogRecord) -> None:
        """Leave a line."""
        line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
        self.leave(partial(self._write, line))

    def leave(self, writing: Writing) -> None:
        """Let the thread write something, when it comes to that."""
        if self._waiting.qsize() < self._most:
            self._waiting.put(writing)
        else:
            self._without_room += 1

    def close(self) -> None:
        """Write what waits, or give up. Called when the interpreter ends."""
        self._waiting.put(None)
        self._thread.join(LAST_LINES)
        super().close()

    def _write_all(self) -> None:
        while (writing := self._waiting.get()) is not None:
            try:
                if self.lost > self._told:
                    self._tell_losses()
                writing()
            except Exception:  # whatever it is, the next line may come through
                self._unwritten += 1

    def _tell_losses(self) -> None:
        lost = self.lost
        self._write(b"gapless: %d lines of the log were lost\n" % (lost - self._told))
        self._told = lost

    def _write(self, line: bytes) -> None:
        while line:
            line = line[os.write(self._fd, line) :]


class Aside:
    """A watcher whose lines are said by the log's thread: to say them may take as long as to log."""

    def __init__(self, watcher: Watcher, log: BackgroundLog) -> None:
        self._watcher = watcher
        self._log = log

    def show(self, doing: str, done: int, total: int) -> None:
        """See `Watcher`."""
        self._watcher.show(doing, done, total)

    def say(self, line: str) -> None:
        """See `Watcher`."""
        self._log.leave(partial(self._watcher.say, line))

    def ready(self, line: str) -> None:
        """See `Watcher`."""
        self._log.leave(partial(self._watcher.ready, line))


def log_to_stderr() -> BackgroundLog:
    """All loggers of this process write there from now on."""
    handler = BackgroundLog()
    logging.getLogger().addHandler(handler)
    for name, level in (("gapless", logging.WARNING), ("gapless.access", logging.INFO), ("uvicorn", logging.WARNING)):
        logging.getLogger(name).setLevel(level)
    logging.getLogger("uvicorn.error").addFilter(_unless_broken_off)
    return handler


def _unless_broken_off(record: logging.LogRecord) -> bool:
    """A stream that fails is broken off on purpose; the access log says that it was not whole."""
    return "without completing response" not in str(record.msg)
