"""Each side of the line alone, with the other one played by the test: what is said when, and what is kept."""

import gc
import socket
import tempfile
import threading
from functools import partial
from types import SimpleNamespace

import pytest
from tests.api.engine_room import submit, until, within
from tests.api.test_remote_arena import arena, view  # noqa: F401 - fixtures
from tests.fakes.scene import ask, picture, table_of
from tests.fakes.sim_child import SPEC, Device
from tests.fakes.sim_clock import SimClock

from gapless.api import child, remote, wire
from gapless.api.arena import ALIGN, Arena
from gapless.api.spawn import EngineProcess
from gapless.config import EngineConfig
from gapless.errors import EngineClosed, EngineDead, RequestTimeout
from gapless.observe.accounting import Accounting
from gapless.observe.meter import Meter
from gapless.records import Emission, Finish, FinishReason, Metrics, Token

TOTALS = Accounting.of(Meter(SimClock(), 1))


class HandLine:
    """The engine's end of a line; the test writes what comes in and reads what goes out."""

    def __init__(self, *messages):
        self.coming = [wire.encode(message) for message in messages]
        self.sent = []
        self.waits = []

    def receive(self):
        return self.coming.pop(0) if self.coming else None

    def send(self, message):
        self.sent.append(message)

    def wait(self, seconds):
        self.waits.append(seconds)
        self.coming.append(wire.encode(wire.Close(True)))


def submitted(number, regions=(), **shown):
    return wire.Submit.of(ask(number, **shown), regions)


def engine_loop(line, view):  # noqa: F811
    return child.EngineLoop(line, view, Device("plain"), table_of(SPEC), EngineConfig(lookahead=8))


# -- the engine's side -----------------------------------------------------------------------------------------------


def test_what_is_cancelled_before_it_was_taken_is_withdrawn_once(view):  # noqa: F811
    line = HandLine(submitted(1), submitted(2), wire.Cancel(1), wire.Cancel(3))
    mail = child.SocketMailbox(line, view, child.ChildShelf(None)).take(8)
    assert [request.id for request in mail.requests] == [2]
    assert [request.id for request in mail.withdrawn] == [1] and mail.cancels == (3,)


def test_whoever_was_in_haste_stays_so(view):  # noqa: F811
    mailbox = child.SocketMailbox(HandLine(wire.Close(False), wire.Close(True)), view, child.ChildShelf(None))
    mailbox.take(8)
    assert mailbox.closing and mailbox.hasty


def test_everything_is_said_before_the_end_and_nothing_is_kept(arena, view):  # noqa: F811
    shown = [picture(1), picture(2)]
    regions = [arena.place(one) for one in shown]
    messages = [submitted(n, [region], shown=one) for n, one, region in zip((1, 2), shown, regions, strict=True)]
    line = HandLine(*messages, submitted(3), wire.Tell(), wire.Close(True))
    loop = engine_loop(line, view)
    loop.run()
    reports = [said for said in line.sent if isinstance(said, wire.Report)]
    assert sorted(new.request_id for said in reports for new in said.news if new.metrics is not None) == [1, 2, 3]
    assert sum(isinstance(said, wire.Totals) for said in line.sent) == 1
    assert not loop._mailbox.open
    loop.deliver()
    freed = [offset for said in line.sent if isinstance(said, wire.Report) for offset in said.freed]
    assert sorted(freed) == sorted(region.offset for region in regions) and view.lent == 0


def test_pins_reach_the_engine(view):  # noqa: F811
    loop = engine_loop(HandLine(wire.Pin("a", 1), wire.Pin("b", 1), wire.Pin("a", -1), wire.Close(True)), view)
    loop.run()
    loop._pin_all()  # also those that came with the last words
    assert loop._engine.ledgers.prefixes._pins == {"b": 1}


@pytest.fixture
def young(monkeypatch):
    """A look at the youngest objects takes no time."""
    monkeypatch.setattr(child, "gc", SimpleNamespace(collect=partial(gc.collect, 0)))


def test_a_picture_in_a_cycle_of_references_is_given_back_before_a_rest(arena, view, young):  # noqa: F811
    line, region = HandLine(), arena.place(picture(1))
    loop = engine_loop(line, view)
    gc.disable()
    try:
        cycle = [view.picture(region)]
        cycle.append(cycle)
        del cycle
        assert view.lent == 1
        loop._rest()
    finally:
        gc.enable()
    assert [said.freed for said in line.sent] == [(region.offset,)] and line.waits == [None]


def test_a_picture_that_is_still_looked_at_is_asked_after_soon(arena, view, young):  # noqa: F811
    line = HandLine()
    loop = engine_loop(line, view)
    looked_at = view.picture(arena.place(picture(1)))
    loop._rest()
    assert not line.sent and line.waits == [child.SOON] and looked_at.crops.size


@pytest.mark.parametrize("tellable", [True, False])
def test_what_can_still_be_told_is_told_before_an_engines_death(tellable):
    class Loop:
        def run(self):
            raise ValueError("a bug")

        def deliver(self):
            if not tellable:
                raise KeyError("the ledgers too")
            line.send("news")

    line = HandLine()
    assert child.serve(line, Loop(), SimpleNamespace(close=lambda: None)) is False
    *news, last = line.sent
    assert news == ["news"] * tellable and isinstance(last, wire.Died) and last.error.name == "ValueError"


# -- the caller's side -----------------------------------------------------------------------------------------------


class HandProcess:
    """An engine process that says what the test says, `frames`, and last `words` once it is `gone`."""

    pid = -1

    def __init__(self, room=ALIGN):
        self.arena = Arena(room)
        self.sent, self.frames, self.words = [], [], []
        self.gone = self.killed = False
        self._ours, self.life = socket.socketpair()
        self._ours.setblocking(False)
        self.line = SimpleNamespace(socket=self._ours, send=self.sent.append, receive=self._receive)

    def _receive(self):
        return self.frames.pop(0) if self.frames else None

    def say(self, *messages):
        """In one breath; the reader is woken."""
        self.frames += [wire.encode(message) for message in messages]
        self.life.send(b"!")

    def go(self, *words):
        self.words = [wire.encode(message) for message in words]
        self.gone = True
        self.life.send(b"!")

    def last_words(self):
        return self.words

    def how_it_ended(self):
        return ChildProcessError("the engine process ended with exit code 9")

    def kill(self):
        self.killed = True

    def end(self):
        self._ours.close()
        self.life.close()
        self.arena.close()


@pytest.fixture
def both():
    process = HandProcess()
    runner = remote.RemoteRunner(process, wire.Ready(4, 0, 100, TOTALS))
    yield process, runner
    if not process.gone:
        process.go(wire.Bye(TOTALS))
    within(runner._thread.join)


def finished(number, *tokens):
    finish = Finish(Metrics(1, len(tokens), 0.0, 0.0, 0.0, 0.0), FinishReason.STOP)
    return wire.News.of(Emission(number, tuple(map(Token, tokens)), finish))


def test_the_last_words_of_a_process_that_has_ended_are_heard(both):
    """An answer, and that it was closed: its end is no death then."""
    process, runner = both
    asked = submit(runner)
    until(lambda: process.sent, "the request")
    process.go(wire.Report((finished(asked.id, 5, 6),)), wire.Bye(TOTALS))
    heard = asked.hear()
    assert [token.id for token in heard.tokens] == [5, 6] and heard.finish.reason is FinishReason.STOP
    within(runner._thread.join)
    with pytest.raises(EngineClosed):
        runner.check()


def test_whoever_asks_an_engine_that_dies_does_not_wait_for_its_totals(both, monkeypatch):
    process, runner = both
    monkeypatch.setattr(remote, "TOTALS_WAIT", 3600.0)

    def dies():
        until(lambda: any(isinstance(said, wire.Tell) for said in process.sent), "the question")
        process.go()

    dying = threading.Thread(target=dies)
    dying.start()
    within(runner.accounting)
    dying.join()
    with pytest.raises(EngineDead, match="exit code 9"):
        runner.check()


def test_pins_are_told_to_the_engine_in_order(both):
    process, runner = both
    for more in (1, 1, -1):
        runner.pin("a", more)
    until(lambda: len(process.sent) == 3, "the pins")
    assert process.sent == [wire.Pin("a", 1), wire.Pin("a", 1), wire.Pin("a", -1)]


def test_the_nearest_deadline_of_those_without_room_is_kept(both, monkeypatch):
    process, runner = both
    monkeypatch.setattr(process.arena, "place_all", lambda pictures: None)
    late = submit(runner, deadline=runner.now() + 3600.0)
    soon = submit(runner, deadline=runner.now() + 0.05)
    assert isinstance(soon.hear().finish.error, RequestTimeout)
    assert list(runner._exchange.open) == [late.id] and not process.sent


def test_last_words_may_come_in_several_breaths():
    class SlowLine:
        waits = 0

        def wait(self, seconds):
            self.waits += 1
            self.left = self.waits in (2, 4)

        def receive(self):
            frame, self.left = (b"word" if self.left else None), False
            return frame

    assert EngineProcess.last_words(SimpleNamespace(line=SlowLine())) == [b"word"] * 2


def test_where_the_way_to_temporary_files_is_long_the_socket_is_elsewhere(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    process = EngineProcess(ALIGN, "tests.fakes.sim_child")
    try:
        process.hear()
        assert not list(deep.iterdir())
    finally:
        process.kill()
        process.end()
