"""An engine process on the simulated device: order, one finish each, and what its callers hear when a side ends."""

import logging
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.api.engine_room import submit, until, within
from tests.fakes.oracle import answer
from tests.fakes.scene import ask, mix_of_requests, picture, table_of
from tests.fakes.sim_child import ROWS, SPEC
from tests.fakes.verdict import judge

from gapless.api import wire
from gapless.api.arena import ALIGN
from gapless.api.opening import Opening
from gapless.api.remote import RemoteRunner
from gapless.api.spawn import EngineProcess
from gapless.errors import (
    DeviceLost,
    EngineClosed,
    EngineDead,
    InvalidRequest,
    NotEnoughMemory,
    RequestCancelled,
    RequestTimeout,
)

TABLE = table_of(SPEC)
LONG = ask(0, ids=(9, 13), max_tokens=1500)


def start(manner="plain", pictures=8):
    process = EngineProcess(pictures * ALIGN, "tests.fakes.sim_child")
    return RemoteRunner(process, process.open(Opening(manner)))


def shown(seed, **sampling):
    return ask(0, shown=picture(seed), **sampling)


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    """Where sockets are made; nothing may be left there."""
    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield folder
        assert not list(Path(folder).iterdir())
        monkeypatch.undo()


def open_files():
    """What this process holds; engine processes hold what is shared with it."""
    return len(list(Path("/proc/self/fd").iterdir()))


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def begin(folder):
    """Engines that are gone when the test ends, with everything that was held for them."""
    begun, files = [], open_files()

    def begin(*arguments):
        begun.append(start(*arguments))
        return begun[-1]

    yield begin
    for runner in begun:
        within(lambda runner=runner: _end(runner))
        assert not lives(runner.pid)
    until(lambda: open_files() <= files, "the end of all that was held")


def _end(runner):
    if runner._exchange.cause is None:
        runner.close(drain=False)
    runner._thread.join()


def long_ones(runner, count):
    return [submit(runner, LONG) for _ in range(count)]


# -- what it is for --------------------------------------------------------------------------------------------------


def test_many_threads_hear_what_the_oracle_says_through_an_arena_of_four_pictures(begin):
    runner = begin("plain", 4)
    entries = [
        entry.request if i % 3 else replace(entry.request, prompt=shown(i).prompt, program="text")
        for i, entry in enumerate(mix_of_requests(3, 180, cancels=0))
    ]
    assert len({r.prompt.picture.digest for r in entries if r.prompt.picture is not None}) >= 60

    def one_caller(mine):
        for request in mine:
            asked = submit(runner, request, whole=request.id % 2 == 0)
            judge(asked.hear(), answer(SPEC, TABLE, request))
            assert asked.channel._queue.empty(), "something came after the finish"

    failed = []

    def guarded(mine):
        try:
            one_caller(mine)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(entries[i::8],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed and not any(thread.is_alive() for thread in threads)
    until(lambda: runner.pictures_held == 0, "an empty arena")
    assert runner.accounting().counters.finished == len(entries)
    assert runner.accounting().counters.overlapped > 0, "the loop is the pipelined one"


def test_a_picture_without_room_waits_and_then_goes_in(begin):
    runner = begin("slow", 1)
    first = submit(runner, shown(1, max_tokens=1500))
    waiting = [submit(runner, shown(seed)) for seed in (2, 3, 4)]
    until(lambda: len(runner._exchange.pending) == 3, "three that wait")
    runner.cancel(first.id)
    assert isinstance(first.hear().finish.error, RequestCancelled)
    for asked, seed in zip(waiting, (2, 3, 4), strict=True):
        judge(asked.hear(), answer(SPEC, TABLE, shown(seed)))


def test_those_that_wait_for_room_can_be_cancelled_and_run_out_of_time(begin):
    runner = begin("slow", 1)
    first = submit(runner, shown(1, max_tokens=1500))
    cancelled, late = submit(runner, shown(2)), submit(runner, shown(3), deadline=runner.now() + 0.1)
    patient = submit(runner, shown(1))  # behind them, though its picture is there
    until(lambda: len(runner._exchange.pending) == 3, "three that wait")
    runner.cancel(cancelled.id)
    assert isinstance(cancelled.hear().finish.error, RequestCancelled)
    assert isinstance(late.hear().finish.error, RequestTimeout)
    judge(patient.hear(), answer(SPEC, TABLE, shown(1)))
    runner.cancel(first.id)
    assert isinstance(first.hear().finish.error, RequestCancelled)


def test_one_that_waits_for_room_runs_out_of_time_though_the_engine_says_nothing(begin):
    runner = begin("mute", 1)
    submit(runner, shown(1, max_tokens=1500))
    late = submit(runner, shown(2), deadline=runner.now() + 0.3)
    later = submit(runner, shown(3), deadline=runner.now() + 0.6)
    for asked in (late, later):
        assert isinstance(asked.hear().finish.error, RequestTimeout)
    assert list(runner._exchange.open) == [1]
    os.kill(runner.pid, signal.SIGKILL)
    until(lambda: runner._exchange.over, "the engine's death")


def test_a_picture_larger_than_the_arena_is_refused(begin):
    runner = begin("plain", 1)
    with pytest.raises(InvalidRequest, match="the engine process takes 4096") as caught:
        submit(runner, ask(0, shown=picture(1, 40)))
    assert caught.value.param == "image"


def test_cancels_deadlines_and_the_totals_cross(begin):
    runner = begin("slow")
    before = runner.accounting()
    cancelled, late = submit(runner, LONG), submit(runner, LONG, deadline=runner.now() + 0.05)
    cancelled.channel.get()
    runner.cancel(cancelled.id)
    assert isinstance(cancelled.hear().finish.error, RequestCancelled)
    heard = late.hear()
    assert isinstance(heard.finish.error, RequestTimeout) and heard.finish.metrics.output_tokens == len(heard.tokens)
    runner.cancel(cancelled.id)
    runner.cancel(10**9)
    judge(submit(runner, ask(0)).hear(), answer(SPEC, TABLE, ask(0)))
    since = runner.accounting() - before
    assert (since.counters.failed, since.counters.finished) == (2, 1)
    told = runner.snapshot()
    assert told.endings.ended == {"stop": 0, "length": 1, "abort": 1, "timeout": 1, "error": 0}
    assert told.standing.pages > 0 and told.accounting.counters.prompt_tokens > 0
    rest = replace(told.standing, running=0, pages_used=0, steps_in_flight=0, pages_cached=0)
    until(lambda: replace(runner.snapshot().standing, pages_cached=0) == rest, "0")
    assert runner.snapshot().waiting == 0


# -- how it ends -----------------------------------------------------------------------------------------------------


def test_close_lets_running_and_waiting_requests_end(begin):
    runner = begin("slow", 1)
    asked = [submit(runner, shown(seed)) for seed in range(4)]
    runner.check()
    within(runner.close)
    with pytest.raises(EngineClosed):
        runner.check()
    for seed, one in enumerate(asked):
        judge(one.hear(), answer(SPEC, TABLE, shown(seed)))
    with pytest.raises(EngineClosed):
        submit(runner)
    runner.close()
    assert runner.accounting().counters.finished == 4
    assert runner._process.how_it_ended().args == ("the engine process ended with exit code 0",)


def test_a_hasty_close_tells_everyone(begin):
    runner = begin("slow", 1)
    asked = [submit(runner, shown(seed, max_tokens=1500)) for seed in range(3)] + long_ones(runner, 3)
    asked[0].channel.get()
    mine = asked.pop(2)
    runner.cancel(mine.id)
    within(lambda: runner.close(drain=False))
    assert all(isinstance(one.hear().finish.error, EngineClosed) for one in asked)
    assert isinstance(mine.hear().finish.error, RequestCancelled)


def test_a_drain_can_still_be_hurried(begin):
    runner = begin("slow")
    (asked,) = long_ones(runner, 1)
    closing = threading.Thread(target=runner.close)
    closing.start()
    until(lambda: runner._exchange.said_close is True, "the first close")
    within(lambda: runner.close(drain=False))
    closing.join()
    assert isinstance(asked.hear().finish.error, EngineClosed)


@pytest.mark.parametrize(
    ("manner", "cause", "text"),
    [
        ("breaks", DeviceLost, "DeviceLost: the simulated device is worn out"),
        ("exits", ChildProcessError, "the engine process ended with exit code 7"),
    ],
)
def test_an_engine_that_stops_tells_why(begin, manner, cause, text):
    runner = begin(manner)
    asked = long_ones(runner, ROWS + 2)
    for one in asked:
        error = one.hear().finish.error
        assert isinstance(error, EngineDead) and text in str(error) and isinstance(error.__cause__, cause)
        assert manner == "exits" or isinstance(error.__cause__.__cause__, KeyError)
    runner._thread.join()
    with pytest.raises(EngineDead, match="load the model again") as caught:
        submit(runner)
    assert isinstance(caught.value.__cause__, cause)
    with pytest.raises(EngineDead):
        runner.check()
    runner.close()
    assert runner.accounting().counters.finished == 0


@pytest.mark.parametrize("manner", ["slow", "mute"])
def test_a_killed_engine_is_noticed_at_once(begin, manner):
    """Also one that has not been reading for a while."""
    runner = begin(manner, 1)
    asked = [submit(runner, shown(seed, max_tokens=1500)) for seed in range(2)] + long_ones(runner, 2 * ROWS)
    asked[0].channel.get()
    os.kill(runner.pid, signal.SIGKILL)
    begun = time.monotonic()
    for one in asked:
        error = one.hear().finish.error
        assert isinstance(error, EngineDead) and "SIGKILL" in str(error)
    assert time.monotonic() - begun < 5, "nobody was to wait"
    with pytest.raises(EngineDead, match="SIGKILL"):
        submit(runner)
    assert runner.accounting() is runner.accounting()
    told = runner.snapshot()
    assert told.endings.ended["error"] == len(asked) and told.standing.running == told.waiting == 0
    runner.close()


def test_an_engine_that_does_not_end_in_time_is_killed(begin):
    runner = begin("mute")
    (asked,) = long_ones(runner, 1)
    asked.channel.get()
    with pytest.raises(EngineDead, match="SIGKILL"):
        runner.close(drain=False, within=0.1)
    assert isinstance(asked.hear().finish.error, EngineDead)


@pytest.mark.parametrize("noise", [b"", b"\xc1", wire.encode(wire.Hello())])
def test_a_frame_that_is_no_message_ends_the_engine_and_it_says_so(begin, monkeypatch, noise):
    runner = begin("slow")
    (asked,) = long_ones(runner, 1)
    asked.channel.get()
    monkeypatch.setattr(wire, "encode", lambda message: noise)
    runner.cancel(asked.id)
    error = asked.hear().finish.error
    assert isinstance(error, EngineDead) and "Error: " in str(error), error
    assert "process ended" not in str(error), "it was to say so itself"


def test_an_engine_that_talks_nonsense_is_ended(begin, monkeypatch, caplog):
    runner = begin("slow")
    (asked,) = long_ones(runner, 1)
    asked.channel.get()

    def broken(frame):
        raise ValueError("noise")

    with caplog.at_level(logging.CRITICAL, "gapless"):
        monkeypatch.setattr(wire, "decode_upward", broken)
        error = asked.hear().finish.error
        assert isinstance(error, EngineDead) and "ValueError: noise" in str(error)
        runner._thread.join()
    assert not lives(runner.pid)


def test_a_start_that_is_refused_or_breaks_off_raises_and_leaves_nothing():
    files, seen = open_files(), []

    class Seen:
        def show(self, *said):
            seen.append(said)

    process = EngineProcess(ALIGN, "tests.fakes.sim_child")
    with pytest.raises(NotEnoughMemory, match="0 of 9") as caught:
        process.open(Opening("refuses"), Seen())
    process.end()
    assert caught.value.param == "pages" and seen == [("trying", 1, 2)]
    process = EngineProcess(ALIGN, "tests.fakes.no_such_module")
    with pytest.raises(ChildProcessError, match="ended with exit code 1"):
        process.open(Opening("plain"))
    process.end()
    assert open_files() <= files


def test_a_process_that_cannot_be_started_leaves_nothing(monkeypatch):
    files = open_files()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        EngineProcess(ALIGN)
    assert open_files() <= files


def test_signals_that_ask_to_end_are_the_parents_business(begin):
    runner = begin("slow")
    for kind in (signal.SIGINT, signal.SIGTERM):
        os.kill(runner.pid, kind)
    judge(submit(runner, shown(1)).hear(), answer(SPEC, TABLE, shown(1)))


def test_a_signal_in_the_first_moment_ends_no_engine():
    """As a supervisor sends it to all, before the engine's process can say that it ignores them."""
    process = EngineProcess(ALIGN, "tests.fakes.sim_child")
    os.kill(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGINT)
    runner = RemoteRunner(process, process.open(Opening("plain")))
    judge(submit(runner, shown(1)).hear(), answer(SPEC, TABLE, shown(1)))
    runner.close()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGTERM, signal.SIGINT}


def test_a_caller_with_thousands_of_open_files(begin):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        runner = begin("plain")
        judge(submit(runner, shown(1)).hear(), answer(SPEC, TABLE, shown(1)))
        runner.close()
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_engine_that_runs_has_no_folder_any_more_and_a_group_of_its_own(begin, folder):
    """Neither can be left behind, and Ctrl-C in a terminal does not reach it."""
    runner = begin("plain")
    assert not list(Path(folder).iterdir())
    assert os.getpgid(runner.pid) == runner.pid != os.getpgid(0)
