"""The processes of the serving benchmark: a real `gapless serve`, and the clients.

In: words of a command line, jobs. Out: an address, runs, an exit code. Invariants: a process that was started is ended
by `close`, whatever happened before; it ends by itself, too, when this process is gone, since it watches its input.
"""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from gapless.api.load import Progress
from gapless.bench.serve_client import Job
from gapless.bench.serve_load import Run
from gapless.own_process import command, main_of

SERVER = """
import os, threading
def watch():
    os.read(0, 1)
    os._exit(9)
threading.Thread(target=watch, daemon=True).start()
from gapless.__main__ import run
sys.exit(run())
"""
STARTING = 240.0
"""Seconds that a server gets to load its model."""
STOPPING = 40.0
"""Seconds that it gets to end."""
LOOK = 0.2
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/")


class Served:
    """A server as a process; its log goes to a file."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self.log = log
        self.port = 0
        with log.open("wb") as sink:
            self._process = _started(command(SERVER, "serve", *words, "--port", "0"), sink)

    def until_ready(self, progress: Progress | None = None) -> None:
        """Wait until it answers. Raises `ChildProcessError` if it ends before, `TimeoutError` if it takes too long."""
        end = time.monotonic() + STARTING
        while not self._ready(progress):
            if self._process.poll() is not None:
                raise ChildProcessError(f"the server ended with {self._process.returncode}: {self.last_words()}")
            if time.monotonic() > end:
                raise TimeoutError(f"the server was not ready after {STARTING:g} s: {self.last_words()}")
            time.sleep(LOOK)

    def _ready(self, progress: Progress | None) -> bool:
        if not self.port:
            found = _ADDRESS.search(self.log.read_text(errors="replace"))
            if found is None:
                return False
            self.port = int(found[1])
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            told = json.loads(answer.read())
        except OSError:  # the port is taken, but nobody listens yet
            return False
        finally:
            connection.close()
        if progress is not None and "doing" in told:
            progress.show(f"the server: {told['doing']}", told["done"], told["total"])
        return answer.status == 200

    def last_words(self) -> str:
        """The end of its log, in one line."""
        lines = self.log.read_text(errors="replace").strip().splitlines()[-6:]
        return " | ".join(line.strip() for line in lines)[-900:]

    def stop(self) -> int:
        """Ask it to end, and return its exit code; kill it if it does not. Raises `subprocess.TimeoutExpired` then."""
        try:
            self._process.send_signal(signal.SIGTERM)
            return self._process.wait(STOPPING)
        finally:
            self.close()

    def close(self) -> None:
        """End it at once, if it still runs."""
        _end(self._process)


class Clients:
    """The clients' process."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("wb") as sink:
            self._process = _started(main_of("gapless.bench.serve_client"), sink, subprocess.PIPE)

    def run(self, job: Job) -> Run:
        """Do a job. Raises `ChildProcessError` with what the clients say went wrong."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"error": self.log.read_text(errors="replace")[-600:]}
        if "error" in found:
            raise ChildProcessError(f"the clients: {found['error']}")
        return Run.read(found)

    def close(self) -> None:
        """End them."""
        _end(self._process)


def _started(words: Sequence[str], err: IO[bytes], out: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    """A process whose input stays open as long as this one lives."""
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out, stderr=err, text=True)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
