"""An engine's process as its parent holds it: started, loaded, watched, ended.

In: a command and how large a picture arena is to be. Out: a line to a process that is ready, or the error with which it
refused. Nothing of it is left behind however either process ends: the arena has no name, the socket's folder goes as
soon as the process has said hello (and with that process, if its parent has ended before), and each process sees the
other's end as the end of a pair of sockets.
"""

from __future__ import annotations

import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import zmq

from gapless.api import wire
from gapless.api.arena import Arena
from gapless.config import Opening
from gapless.own_process import main_of
from gapless.weights.progress import Progress

LEAVE = 10.0
"""Seconds that a process gets to end after its last word, before it is killed."""
LAST_WORDS = 0.2
"""Seconds that last messages of a process that ended may take to come through."""
LONGEST_ADDRESS = 100
"""Bytes of a local socket's address; systems allow a little more."""


class EngineProcess:
    """A process that runs `main` of a module on this machine's Python and import path."""

    def __init__(self, capacity: int, module: str = "gapless.api.child") -> None:
        self.arena = Arena(capacity)
        self._folder = _private_folder()
        address = f"ipc://{self._folder}/line"
        self.line = wire.Line(address, serves=True)
        self.life, theirs = socket.socketpair()
        self._ending = select.poll()  # not `select`, which takes no file number from 1024 on
        self._ending.register(self.life, select.POLLIN)
        with theirs:
            handed = (theirs.fileno(), self.arena.fd)
            words = [address, *map(str, handed), str(self.arena.capacity)]
            try:
                self._process = _start(module, words, handed)
            except BaseException:
                self._give_back()
                raise

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self._ending.poll(0) != []

    def open(self, opening: Opening, progress: Progress | None = None) -> wire.Ready:
        """Let it load a model. Raises the error with which it refuses, and `ChildProcessError` if it just ends."""
        self.hear()
        self.line.send(wire.Open(opening))
        return self.until_ready(progress)

    def hear(self) -> None:
        """Wait for its hello."""
        message = self._next()
        if not isinstance(message, wire.Hello):
            raise ChildProcessError(f"the engine process began with {type(message).__name__}")
        shutil.rmtree(self._folder, ignore_errors=True)  # the connection stays

    def until_ready(self, progress: Progress | None = None) -> wire.Ready:
        """Wait until requests may come."""
        while True:
            match self._next():
                case wire.Progressed(doing=doing, done=done, total=total):
                    if progress is not None:
                        progress.show(doing, done, total)
                case wire.Refused(error=note):
                    raise note.error(ChildProcessError)
                case wire.Ready() as ready:
                    return ready
                case message:
                    raise ChildProcessError(f"the engine process said {type(message).__name__} while it loaded")

    def last_words(self) -> list[bytes]:
        """What it said before it ended and nobody has read yet."""
        frames, end = [], time.monotonic() + LAST_WORDS
        while (left := end - time.monotonic()) > 0:
            self.line.wait(left)
            while (frame := self.line.receive()) is not None:
                frames.append(frame)
        return frames

    def how_it_ended(self) -> ChildProcessError:
        """The error that says so. It has ended, or is about to."""
        try:
            code = self._process.wait(LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return ChildProcessError(f"the engine process {how}")

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def end(self, patience: float = LEAVE) -> None:
        """Wait until it has ended, at most so long, then kill it; give back all that is held for it."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._give_back()

    def _give_back(self) -> None:
        self.line.close(linger=0)
        self.life.close()
        self.arena.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _next(self) -> wire.Upward:
        """The next message of a process that loads."""
        poller = zmq.Poller()
        poller.register(self.line.socket, zmq.POLLIN)
        poller.register(self.life, zmq.POLLIN)
        while (frame := self.line.receive()) is None:
            poller.poll()
            if self.gone:
                words = self.last_words()
                if not words:
                    raise self.how_it_ended()
                frame = words[-1]
                break
        return wire.decode_upward(frame)


def _start(module: str, words: list[str], handed: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """It begins with the parent's signals blocked, or one would end it before it can say that it ignores them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wire.PARENTS_SIGNALS)
    try:
        return subprocess.Popen(
            main_of(module, *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=handed,
            process_group=0,  # a terminal's Ctrl-C is for the parent
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="gapless-"))
    if len(str(folder)) > LONGEST_ADDRESS - len("/line"):
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="gapless-", dir="/tmp"))
    return folder
