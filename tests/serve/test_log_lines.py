"""The log's thread: nobody waits for it, whatever is behind standard error; what is lost is counted and told."""

import logging
import os
import re
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.api.engine_room import until, within
from tests.serve.conftest import LIMITS, Silent, Site
from tests.serve.raw_http import get
from tests.serve.serving import PATIENCE, Served

from gapless.serve import log as room
from gapless.serve.app import make_app
from gapless.serve.log import MOST_LINES, Aside, BackgroundLog

fcntl = pytest.importorskip("fcntl")
SMALL_PIPE = getattr(fcntl, "F_SETPIPE_SZ", None)
needs_linux = pytest.mark.skipif(SMALL_PIPE is None, reason="asks Linux for a small pipe")


@contextmanager
def pipe():
    """A pipe of one page: its two ends. The reading one does not wait."""
    there, here = os.pipe()
    fcntl.fcntl(here, SMALL_PIPE, 4096)
    os.set_blocking(there, False)
    try:
        yield there, here
    finally:
        os.close(there)  # a thread that writes there ends now
        os.close(here)


def taken(there):
    """What is in the pipe."""
    found = b""
    try:
        while part := os.read(there, 4096):
            found += part
    except BlockingIOError:
        pass
    return found


def leave(log, *lines):
    for line in lines:
        log.handle(logging.makeLogRecord({"msg": line}))


TOLD = re.compile(r"gapless: (\d+) lines of the log were lost")


def all_of(there, count):
    """So many lines, as they come through, and how many others are said to be lost."""
    found = b""

    def parted():
        lines = found.decode().splitlines()
        return [line for line in lines if not TOLD.fullmatch(line)], sum(map(int, TOLD.findall(found.decode())))

    def enough():
        nonlocal found
        found += taken(there)
        return found.endswith(b"\n") and len(parted()[0]) >= count

    until(enough, "lines in the pipe")
    return parted()


@needs_linux
def test_a_pipe_that_nobody_reads_keeps_nobody_waiting_and_says_at_last_what_was_lost():
    with pipe() as (there, here):
        log = BackgroundLog(here, most=100)
        lines = [f"{number} " + "x" * 100 for number in range(500)]
        within(lambda: leave(log, *lines))
        lost = log.lost
        assert 500 - 100 - 4096 // 100 - 2 <= lost <= 400
        found, told = all_of(there, 500 - lost)
        assert found == [line for line in lines if line in found] and len(found) == 500 - lost
        leave(log, "all is well again")
        (last,), rest = all_of(there, 1)
        assert last == "all is well again" and told + rest == lost == log.lost
        log.close()
        assert not log._thread.is_alive()


@needs_linux
def test_what_waits_is_written_at_the_end_unless_that_takes_too_long(monkeypatch):
    with pipe() as (there, here):
        log = BackgroundLog(here)
        leave(log, *map(str, range(50)))
        log.close()
        assert taken(there).decode().split() == [str(number) for number in range(50)]
    monkeypatch.setattr(room, "LAST_LINES", 0.05)
    with pipe() as (there, here):
        log = BackgroundLog(here)
        leave(log, "x" * 5000)
        within(log.close)

        def over():
            taken(there)
            return not log._thread.is_alive()

        assert log._thread.is_alive()
        until(over, "the end of the thread, lest it write to what gets the pipe's number next")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="asks Linux for a disk that is full")
def test_a_full_disk_loses_lines_and_says_so_when_it_has_room(tmp_path):
    with Path("/dev/full").open("wb") as full, (tmp_path / "log").open("wb") as disk:
        log = BackgroundLog(full.fileno())
        leave(log, "a", "b")
        until(lambda: log.lost >= 2, "two lost lines")
        log._fd = disk.fileno()
        leave(log, "c \ud800")
        log.close()
    told, line = (tmp_path / "log").read_text().splitlines()
    assert TOLD.fullmatch(told) and line == "c \\ud800"


def test_a_persons_lines_are_said_in_turn_and_one_that_fails_ends_nothing(tmp_path):
    said = []

    class Person(Silent):
        def say(self, line):
            if line == "fail":
                raise ValueError("no terminal")
            said.append(line)

        ready = say

    with (tmp_path / "log").open("wb") as disk:
        log = BackgroundLog(disk.fileno())
        watcher = Aside(Person(), log)
        for word in ("one", "fail", "two"):
            watcher.say(word)
        watcher.ready("here")
        log.close()
    assert said == ["one", "two", "here"] and log.lost == 1


def test_the_metrics_tell_how_many_were_lost(vlm):
    site, log = Site(vlm), BackgroundLog(most=0)
    site.app = make_app(site.engine, site.gate, LIMITS, (), log=log)
    leave(log, "a", "b", "c")
    assert "gapless:log_lines_lost_total 3.0" in site.ask("GET", "/metrics").text
    log.close()


@pytest.mark.slow
@needs_linux
def test_a_server_whose_log_nobody_reads_goes_on_and_ends(micro_folder, tmp_path, free_port):
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    there = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(there, SMALL_PIPE, 4096)
    server = Served(micro_folder, fifo, "--process", "on", port=free_port)
    try:
        server.until_ready()
        assert server.ask("POST", "/v1/query", {"question": "Who?", "settings": {"max_tokens": 1}})[0] == 200
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as many:
            for _ in range(2 * MOST_LINES // 64):
                many.sendall(get("/health") * 64)
                answers = b""
                while answers.count(b'"ready"') < 64:
                    answers += many.recv(2**16)
        assert server.metrics()["gapless:log_lines_lost_total",] > MOST_LINES / 2
        assert server.ask("POST", "/v1/query", {"question": "Who?", "settings": {"max_tokens": 1}})[0] == 200
    finally:
        code = server.end()
        os.close(there)
    assert code == 0
