"""Clients that do not finish what they send, or take what they are sent: they are let go, and nobody else notices."""

import asyncio
import json
import logging
from types import SimpleNamespace

import pytest
import uvicorn
from uvicorn.server import ServerState

from gapless.serve.connection import MOST_HEADERS, connection_type
from gapless.serve.door import Door
from gapless.serve.limits import Gate
from gapless.serve.metrics import Visits

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

    def call_soon(self, work, *arguments):
        self.call_later(0, work, *arguments)

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
def visits():
    return Visits()


@pytest.fixture
def met(visits):
    door = Door(app, (), Gate(1), visits)
    config = uvicorn.Config(door, http=connection_type(door, 7.0, 3.0), log_config=None, ws="none", lifespan="off")
    config.load()
    loop, wire = HandLoop(), Wire()
    made = config.http_protocol_class(config=config, server_state=ServerState(), app_state={}, _loop=loop)
    made.connection_made(wire)
    return made, loop, wire


def answered(made, cycle):
    """This request's answer is on its way."""
    cycle.response_started = cycle.response_complete = True
    made.on_response_complete()


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
    answered(made, made.cycle)
    made.data_received(b"GET")
    (timer,) = loop.due()
    timer.run()
    assert wire.closed and wire.sent.startswith(b"HTTP/1.1 408 ")


def told(wire):
    """The statuses and errors that were written, one behind the other."""
    found, rest = [], wire.sent
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        found.append((int(head.split(b" ")[1]), json.loads(rest[:length])["error"]["type"]))
        rest = rest[length:]
    return found


LATE, LARGE, ODD = (408, "too_slow"), (431, "headers_too_large"), (400, "not_http")


@pytest.mark.parametrize("wrong", [LATE, LARGE, ODD])
def test_what_is_wrong_with_a_request_is_told_behind_the_answer_to_the_one_before(met, visits, wrong):
    """The first one is not to be cut off, nor written into, for what its client sends behind it."""
    made, loop, wire = met
    made.data_received(WHOLE + (b"GE\0" if wrong == ODD else b"GET / HTTP/1.1\r\n"))
    if wrong == LARGE:
        made.data_received(b"X-A: " + b"a" * MOST_HEADERS)
    elif wrong == LATE:
        (timer,) = loop.due()
        timer.run()
    made.data_received(b"more, which nobody reads" * 1000)
    first = made.cycle
    assert not wire.closed and wire.sent == b"" and not first.disconnected
    assert not sum(visits.answered.values()), "it is told when it is sent"
    answered(made, first)
    assert wire.closed and told(wire) == [wrong]
    assert visits.answered == {("other", "other", wrong[0]): 1} and visits.rejected[wrong[1]] == 1


def test_a_client_whose_bytes_are_not_read_is_not_late(met):
    """Reading stands still while two requests wait for their answers; the third may be there in full."""
    made, loop, wire = met
    made.data_received(WHOLE + WHOLE + b"GET / HT")
    first, second = made._due
    for _ in range(3):
        (timer,) = loop.due()
        timer.live = False
        timer.run()
    answered(made, first)
    made.data_received(WHOLE[8:])
    assert not wire.closed and len(made._due) == 2 and made._due[0] is second
    answered(made, second)
    answered(made, made.cycle)
    assert wire.sent == b"" and not wire.closed


def test_s_con_03_a_client_that_leaves_has_left_all_its_requests(met):
    made, _, _ = met
    made.data_received(WHOLE * 3)
    assert len(made._due) == 3
    made.connection_lost(None)
    assert all(cycle.disconnected and cycle.message_event.is_set() for cycle in made._due)


def test_what_never_becomes_a_request_is_counted_and_logged(met, visits, caplog):
    made, _, wire = met
    with caplog.at_level(logging.INFO, "gapless.access"):
        made.data_received(b"\x16\x03\x01\x02\x00")  # a client that begins to speak TLS
    assert wire.closed and told(wire) == [ODD]
    (line,) = (json.loads(r.getMessage()) for r in caplog.records if r.name == "gapless.access")
    head, _, body = wire.sent.partition(b"\r\n\r\n")
    assert f"x-request-id: {line['request_id']}".encode() in head
    assert json.loads(body)["request_id"] == line["request_id"]
    assert (line["method"], line["path"], line["status"], line["whole"]) == ("-", "-", 400, True)
    assert line["bytes"] == len(body) and visits.answered["other", "other", 400] == 1


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
    assert sent >= MOST_HEADERS - 1000 and told(wire) == [LARGE]


@pytest.mark.parametrize("before", [b"", WHOLE])
def test_an_answer_that_has_begun_is_not_written_into(met, before):
    """Nor one that an earlier request still waits for."""
    made, _, wire = met
    made.data_received(before + CHUNKED)
    made.cycle.response_started = not before
    made.data_received(b"not the size of a chunk\r\n")
    assert wire.closed and wire.sent == b""


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
    wire.waits = 10
    wire.close()
    answered(made, made.cycle)
    made.resume_writing()
    loop.due()[0].run()
    assert wire.broken


def test_a_stream_that_is_broken_off_does_not_wait_for_ever_either(visits):
    """uvicorn closes the connection when the application returns without an end of the body."""

    async def torn(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"da", "more_body": True})

    door, loop, wire = Door(torn, (), Gate(1), visits), HandLoop(), Wire()
    config = uvicorn.Config(door, http=connection_type(door, 7.0, 3.0), log_config=None, ws="none", lifespan="off")
    config.load()
    made = config.http_protocol_class(config=config, server_state=ServerState(), app_state={}, _loop=loop)
    made.connection_made(wire)
    made.data_received(WHOLE)
    asyncio.run(made.cycle.run_asgi(made.app))
    assert wire.closed and wire.sent.endswith(b"da\r\n")
    wire.waits = 5
    (soon,) = loop.due()
    soon.live = False
    soon.run()
    (timer,) = loop.due()
    assert timer.seconds == 3.0
    timer.run()
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
        door = Door(answer, (), Gate(1), Visits())
        kind = connection_type(door, 0.3)
        config = uvicorn.Config(door, port=0, http=kind, log_config=None, ws="none", lifespan="off", access_log=False)
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
