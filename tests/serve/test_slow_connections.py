"""Clients that do not finish what they send, or take what they are sent: they are let go, and nobody else notices."""

import asyncio
from types import SimpleNamespace

import pytest
import uvicorn
from uvicorn.server import ServerState

from gapless.serve.connection import MOST_HEADERS, connection_type

WHOLE = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
PATIENCE = 30.0


class HandLoop:
    """A loop whose timers run when the test says so."""

    def __init__(self):
        self.timers = []

    def call_later(self, seconds, work, *arguments):
        timer = SimpleNamespace(seconds=seconds, run=lambda: work(*arguments), live=True)
        timer.cancel = lambda: setattr(timer, "live", False)
        self.timers.append(timer)
        return timer

    def create_task(self, work, **_):
        work.close()
        return Task()

    def due(self):
        return [timer for timer in self.timers if timer.live]


class Task:
    def add_done_callback(self, _):
        pass


class Wire:
    """What the protocol writes to."""

    def __init__(self):
        self.sent, self.closed, self.broken, self.waits = b"", False, False, 0

    def get_extra_info(self, name):
        return None

    def write(self, data):
        self.sent += data

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    def abort(self):
        self.broken = True

    def get_write_buffer_size(self):
        return self.waits

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


async def app(scope, receive, send):
    raise AssertionError("not run here")


@pytest.fixture
def met():
    config = uvicorn.Config(app, http=connection_type(7.0, 3.0), log_config=None, ws="none", lifespan="off")
    config.load()
    loop, wire = HandLoop(), Wire()
    made = config.http_protocol_class(config=config, server_state=ServerState(), app_state={}, _loop=loop)
    made.connection_made(wire)
    return made, loop, wire


def test_one_that_never_says_a_thing_is_closed(met):
    _, loop, wire = met
    (timer,) = loop.due()
    assert timer.seconds == 7.0
    timer.run()
    assert wire.closed and wire.sent == b"" and not loop.due()


def test_headers_that_drip_in_do_not_buy_time(met):
    made, loop, wire = met
    (timer,) = loop.due()
    for byte in WHOLE[:-1]:
        made.data_received(bytes([byte]))
        assert loop.due() == [timer]
    timer.run()
    assert wire.closed and wire.sent.startswith(b"HTTP/1.1 408 ")


def test_whole_headers_end_the_wait_and_the_next_request_begins_another(met):
    made, loop, wire = met
    made.data_received(WHOLE)
    assert not loop.due()
    made.cycle.response_complete = True
    made.data_received(b"GET")
    (timer,) = loop.due()
    timer.run()
    assert wire.closed and wire.sent.startswith(b"HTTP/1.1 408 ")


def test_a_request_behind_one_that_is_answered_does_not_write_into_its_answer(met):
    made, loop, wire = met
    made.data_received(WHOLE + b"GET")
    loop.due()[0].run()
    assert wire.closed and wire.sent == b""


def test_headers_without_end_are_cut_off(met):
    made, loop, wire = met
    made.data_received(WHOLE[:-2])
    sent = 0
    while not wire.closed:
        made.data_received(b"X-A: " + b"a" * 1000 + b"\r\n")
        sent += 1007
        assert sent <= MOST_HEADERS + 1007
    assert wire.sent.startswith(b"HTTP/1.1 431 ") and not loop.due()


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"


@pytest.mark.parametrize("begun", [b"0\r\n", b"0\r\nX-A: b", b"2;a="], ids=["trailers", "a trailer", "a size"])
def test_what_stands_around_a_body_is_cut_off_too(met, begun):
    made, _, wire = met
    made.data_received(CHUNKED)
    made.data_received(begun)
    line = b"a" * 1000 if begun != b"0\r\n" else b"X-A: " + b"a" * 993 + b"\r\n"
    sent = 0
    while not wire.closed:
        made.data_received(line)
        sent += 1000
        assert sent <= MOST_HEADERS + 1000
    assert sent >= MOST_HEADERS - 1000 and wire.sent == b"", "its answer may have begun"


def test_a_long_body_is_no_headers_and_its_trailers_are_dropped(met):
    made, _, wire = met
    made.data_received(CHUNKED)
    for _ in range(100):
        made.data_received(b"3e8\r\n" + b"a" * 1000 + b"\r\n")
    made.data_received(b"0\r\nX-Moondream-Auth: late\r\n\r\n")
    assert not wire.closed and not made.cycle.more_body
    assert [name for name, _ in made.cycle.scope["headers"]] == [b"host", b"transfer-encoding"]


def test_one_that_takes_nothing_is_broken_off(met):
    made, loop, wire = met
    made.data_received(WHOLE)
    wire.waits = 70_000
    made.pause_writing()
    (timer,) = loop.due()
    assert timer.seconds == 3.0
    wire.waits = 69_999  # slow, but alive
    timer.live = False
    timer.run()
    (timer,) = loop.due()
    assert not wire.broken
    timer.run()
    assert wire.broken


def test_one_that_takes_all_is_not_looked_at_any_more(met):
    made, loop, _ = met
    made.data_received(WHOLE)
    made.pause_writing()
    made.resume_writing()
    assert not loop.due()


def test_a_closed_connection_does_not_wait_for_ever_for_its_last_bytes(met):
    made, loop, wire = met
    made.data_received(WHOLE)
    made.cycle.response_complete = True
    wire.waits = 10
    wire.close()
    made.on_response_complete()
    made.resume_writing()
    loop.due()[0].run()
    assert wire.broken


def test_an_idle_one_that_never_took_its_answer_is_broken_off(met):
    made, loop, wire = met
    made.data_received(WHOLE)
    wire.waits = 10
    made.timeout_keep_alive_handler()
    loop.due()[0].run()
    assert wire.closed and wire.broken


def test_a_connection_that_is_lost_waits_for_nothing(met):
    made, loop, _ = met
    made.pause_writing()
    assert len(loop.due()) == 2
    made.connection_lost(None)
    assert not loop.due()


def test_over_a_socket_others_are_served_meanwhile():
    async def answer(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def both():
        config = uvicorn.Config(
            answer, port=0, http=connection_type(0.3), log_config=None, ws="none", lifespan="off", access_log=False
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in slow:
            writer.write(WHOLE[:-2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(WHOLE)
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        told = [await asyncio.wait_for(reader.read(), PATIENCE) for reader, _ in slow]
        server.should_exit = True
        await serving
        return told

    assert all(one.startswith(b"HTTP/1.1 408 ") for one in asyncio.run(both()))
