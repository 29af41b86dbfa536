"""Keys, places, sizes, times: who is let in, and what the log says of it. /health in every state."""

import asyncio
import json
import logging
import threading

import pytest
import uvicorn
from tests.api.asking import idle
from tests.api.engine_room import until
from tests.serve.conftest import LIMITS, SMALL, Silent, Site, png, url
from tests.serve.test_rate_limit import HandClock

import gapless
from gapless import errors
from gapless.errors import EngineDead
from gapless.serve.app import make_app
from gapless.serve.engine import Engine
from gapless.serve.events import TORN
from gapless.serve.limits import Gate, RequestLimits
from gapless.serve.process import Server

ASK = {"question": "Who?", "settings": SMALL}
KEYS = ("secret-one", "secret-two")


@pytest.fixture
def endless(endless_folder):
    vlm = gapless.load(endless_folder, max_rows=4)
    yield vlm
    vlm.close(drain=False)


# -- keys ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked(vlm):
    return Site(vlm, keys=KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_opens_by_either_header(locked, key):
    for name, value in (("X-Moondream-Auth", key), ("Authorization", f"bearer {key}")):
        assert locked.ask("POST", "/v1/query", json=ASK, headers={name: value}).status_code == 200


def test_a_key_may_be_in_any_script(endless):
    site = Site(endless, keys=("schlüssel-鍵",))
    for key, status in (("schlüssel-鍵", 200), ("schlussel-鍵", 401)):
        assert site.ask("GET", "/v1/models", headers={"X-Moondream-Auth": key.encode()}).status_code == status


@pytest.mark.parametrize(
    "path", ["/v1/query", "//v1/query", "/v1/query/", "/V1/QUERY", "/health/", "/Health", "/nothing"]
)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Moondream-Auth": "sécret-one".encode()},
        {"X-Moondream-Auth": "secret-on"},
        {"Authorization": "Basic secret-one"},
    ],
)
def test_s_sec_03_nothing_is_answered_without_a_key(locked, path, headers):
    for method in ("GET", "POST", "HEAD", "OPTIONS", "DELETE"):
        said = locked.ask(method, path, headers=headers)
        assert said.status_code == 401 and said.headers["www-authenticate"] == "Bearer"


def test_s_sec_03_every_route_of_the_schema_is_locked(locked):
    schema = locked.ask("GET", "/openapi.json", headers={"X-Moondream-Auth": KEYS[0]}).json()
    routes = [(method, path) for path, methods in schema["paths"].items() for method in methods]
    assert len(routes) >= 8
    for method, path in [*routes, ("get", "/openapi.json")]:
        assert locked.ask(method.upper(), path).status_code == (200 if path == "/health" else 401)


# -- sizes and times -------------------------------------------------------------------------------------------------


def test_s_img_09_a_body_over_the_limit(site):
    large = {"image_url": "data:image/png;base64," + "A" * LIMITS.max_body_bytes, "question": "a"}
    said = site.post("/v1/query", large)
    assert said.status_code == 413 and said.json()["error"]["type"] == "body_too_large"
    assert site.post("/v1/query", {"image_url": url(png(1, 500, 500)), **ASK}).status_code == 200


def test_a_body_without_a_length_is_counted_while_it_is_read(site):
    read = 0

    async def endless_body():
        nonlocal read
        while True:
            read += 1
            yield b" " * 2**16

    headers = {"content-type": "application/json"}
    assert site.ask("POST", "/v1/query", content=endless_body(), headers=headers).status_code == 413
    assert read <= LIMITS.max_body_bytes // 2**16 + 2


def test_a_body_that_does_not_arrive(vlm):
    slow = Site(vlm, RequestLimits(1000, 0.05, 60.0, 5.0))

    async def never():
        yield b"{"
        await asyncio.sleep(30)

    said = slow.ask("POST", "/v1/query", content=never(), headers={"content-type": "application/json"})
    assert said.status_code == 408 and slow.gate.held == 0


def test_an_answer_that_takes_too_long(endless):
    site = Site(endless, RequestLimits(10**6, 5.0, 0.2, 5.0))
    whole = site.post("/v1/query", {"question": "Go on?", "settings": {"max_tokens": 5000}})
    assert whole.status_code == 504 and whole.json()["error"]["type"] == "request_timeout"
    idle(endless)


def test_a_stream_that_fails_in_its_middle_says_so_once_and_is_broken_off(endless):
    """S-STR-05: no end of the body follows, so that nobody takes the piece for the whole."""
    site = Site(endless, RequestLimits(10**6, 5.0, 0.5, 5.0))
    body = {"question": "Go on?", "stream": True, "settings": {"max_tokens": 5000}}
    messages = asyncio.run(called(site, body))
    event, _, rest = messages[-1]["body"].partition(b"\n\n")
    last = json.loads(event.removeprefix(b"data: "))
    assert rest == TORN and last["error"]["type"] == "request_timeout" and not last["completed"]
    assert messages[-1]["more_body"] and all(b"error" not in m.get("body", b"") for m in messages[:-1])
    idle(endless)


def test_a_client_that_does_not_read_its_stream_is_let_go(endless):
    site = Site(endless, RequestLimits(10**6, 5.0, 60.0, 0.1))
    body = {"question": "Go on?", "stream": True, "settings": {"max_tokens": 5000}}
    messages = asyncio.run(called(site, body, reads=4))
    assert len(messages) == 4 and messages[-1]["more_body"]
    assert site.gate.held == 0
    idle(endless)


async def called(site, body, leave=None, reads=None, path="/v1/query"):
    """The messages that the application sends. `leave`: an event after which the client is gone; `reads`: how many
    messages the client takes before it stops reading."""
    received = iter([{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}])
    messages = []
    leave = leave or asyncio.Event()

    async def receive():
        for message in received:
            return message
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if len(messages) == reads:
            await asyncio.Event().wait()
        messages.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "root_path": ""}
    scope |= {"query_string": b"", "headers": headers, "scheme": "http", "http_version": "1.1"}
    scope |= {"server": ("test", 80), "client": ("test", 1), "asgi": {"version": "3.0"}}
    await site.app(scope, receive, send)
    return messages


# -- leaving and places ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_s_con_03_a_client_that_leaves_frees_row_pages_and_place(endless, stream):
    site = Site(endless)
    engine = endless.desk.runner._engine
    body = {"image_url": url(png(4)), "question": "Go on?", "stream": stream, "settings": {"max_tokens": 5000}}

    async def leaving():
        leave = [asyncio.Event() for _ in range(6)]
        asking = [asyncio.create_task(called(site, body, event)) for event in leave]
        while len(engine.ledgers.rows.held()) < 4:
            await asyncio.sleep(0.005)
        assert site.gate.held == 6 and engine.standing().pages_used
        for event in leave:
            event.set()
        return await asyncio.gather(*asking)

    found = asyncio.run(leaving())
    assert site.gate.held == 0
    idle(endless)
    if not stream:
        assert {messages[0]["status"] for messages in found} == {499}


def test_one_more_than_there_are_places_is_told_429(endless):
    site = Site(endless, places=3)
    body = {"question": "Go on?", "settings": {"max_tokens": 5000}}

    async def crowd():
        leave = asyncio.Event()
        asking = [asyncio.create_task(called(site, body, leave)) for _ in range(3)]
        while site.gate.held < 3:
            await asyncio.sleep(0.005)
        async with site.client() as client:
            refused = await client.post("/v1/query", json=body)
            health = await client.get("/health")
        leave.set()
        await asyncio.gather(*asking)
        return refused, health

    refused, health = asyncio.run(crowd())
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["type"] == "too_many_requests"
    assert health.status_code == 200 and health.json()["requests"] == 3
    assert site.post("/v1/query", ASK).status_code == 200
    idle(endless)


# -- health ----------------------------------------------------------------------------------------------------------


def test_health_while_loading_and_stopping(vlm):
    site = Site(None)
    site.engine.show("capturing graphs", 3, 8)
    early = site.ask("GET", "/health")
    assert early.status_code == 503
    assert early.json() == {"status": "loading", "doing": "capturing graphs", "done": 3, "total": 8}
    for method, path in (("POST", "/v1/query"), ("GET", "/health/generate"), ("GET", "/v1/models")):
        said = site.ask(method, path, json=ASK)
        assert said.status_code == 503 and "loading" in said.text and said.headers["retry-after"]
    site.engine.adopt(vlm)
    assert site.ask("GET", "/health").json() == {"status": "ready", "requests": 0, "places": 64}
    probe = site.ask("GET", "/health/generate").json()
    assert probe["status"] == "ready" and probe["tokens"] == 1
    site.gate.close()
    assert site.ask("GET", "/health").json() == {"status": "stopping"}
    said = site.post("/v1/query", ASK)
    assert said.status_code == 503 and said.headers["retry-after"] and "stopping" in said.text


def test_many_probes_compute_one_token_a_second(micro_folder, monkeypatch):
    """/health/generate takes no place and counts for no rate, so that nobody can make the engine busy by it."""
    clock = HandClock()
    monkeypatch.setattr("gapless.serve.app.LoopClock", lambda: clock)
    with gapless.load(micro_folder) as vlm:
        site, finished = Site(vlm, places=1), lambda: vlm.accounting().counters.finished

        async def scene():
            async with site.client() as client:

                async def probes(count):
                    return await asyncio.gather(*(client.get("/health/generate") for _ in range(count)))

                with site.gate.place():  # a full server is none that is broken
                    said = await probes(8)
                assert {one.status_code for one in said} == {200} and finished() == 1
                assert len({one.text for one in said}) == 1 and said[0].json()["tokens"] == 1
                clock.time += 0.99
                assert (await probes(2))[0].text == said[0].text and finished() == 1
                clock.time += 0.02
                assert (await probes(2))[1].status_code == 200 and finished() == 2
                site.gate.close()
                (late,) = await probes(1)
                assert late.status_code == 503 and late.headers["retry-after"] and finished() == 2

        asyncio.run(scene())


def test_the_model_is_loaded_when_the_application_starts(vlm):
    engine = Engine(lambda progress: vlm, Silent())

    async def until_ready():
        engine.start()
        while not engine.ready:
            await asyncio.sleep(0.005)

    asyncio.run(until_ready())
    assert engine.death() is None and Site(vlm).post("/v1/query", ASK).status_code == 200


def test_a_model_that_cannot_be_loaded_is_a_failure():
    def load(progress):
        raise OSError("no such disk")

    engine = Engine(load, Silent())
    make_app(engine, Gate(1), LIMITS, ())

    async def until_failed():
        engine.start()
        while engine.failure is None:
            await asyncio.sleep(0.005)

    asyncio.run(until_failed())
    assert not engine.ready and "no such disk" in str(engine.failure)


def test_a_dead_engine(micro_folder, monkeypatch, caplog):
    vlm = gapless.load(micro_folder)
    site = Site(vlm)
    assert site.post("/v1/query", ASK).status_code == 200

    def broken(*_):
        raise RuntimeError("secret of the inside")

    monkeypatch.setattr(vlm.desk.runner, "_take_cancels", broken)
    with caplog.at_level(logging.ERROR, "gapless"):
        said = site.post("/v1/query", ASK)
        assert said.status_code == 503 and "secret" not in said.text and said.json()["request_id"] in said.text
        until(lambda: site.engine.death() is not None, "the engine's death")
        assert isinstance(site.engine.death(), EngineDead)
        health = site.ask("GET", "/health")
        assert (health.status_code, health.json()) == (503, {"status": "dead"})
        again = site.post("/v1/query", ASK)
    assert again.status_code == 503 and again.json()["error"]["type"] == "engine_dead"
    assert "secret of the inside" in caplog.text and said.json()["request_id"] in caplog.text


@pytest.mark.parametrize("how", ["closed", "closing"])
@pytest.mark.parametrize("loads", [True, False])
def test_a_load_that_ends_after_the_server_is_no_trouble(micro_folder, monkeypatch, how, loads):
    """No error in its thread, and no engine that nobody asks."""
    loaded, may_end, raised = [], threading.Event(), []
    monkeypatch.setattr(threading, "excepthook", lambda told: raised.append(told.exc_value))

    def load(progress):
        may_end.wait()
        if not loads:
            raise OSError("no such disk")
        loaded.append(gapless.load(micro_folder))
        return loaded[-1]

    engine, before = Engine(load, Silent()), set(threading.enumerate())

    async def life():
        engine.start()
        (loader,) = [thread for thread in set(threading.enumerate()) - before if thread.name == "gapless-load"]
        await engine.close()
        if how == "closing":  # its end comes to an event loop that still turns
            may_end.set()
            while loader.is_alive():
                await asyncio.sleep(0.005)
        return loader

    loader = asyncio.run(life())
    may_end.set()
    loader.join(60)
    assert not loader.is_alive() and raised == [] and len(loaded) == loads and not engine.ready
    for vlm in loaded:
        until(lambda vlm=vlm: not vlm.desk.runner._thread.is_alive(), "the end of an engine that nobody asks")


@pytest.mark.parametrize("when", ["loading", "serving"])
def test_the_process_ends_with_its_engine(micro_folder, monkeypatch, when):
    said = []
    watcher = Silent()
    watcher.say = said.append
    engine = Engine(lambda progress: None, watcher)
    if when == "loading":
        engine.failure = errors.ModelNotFound("there is no such model")
    else:
        vlm = gapless.load(micro_folder)
        engine.adopt(vlm)
        monkeypatch.setattr(vlm.desk.runner, "_take_cancels", lambda: 1 / 0)
        with pytest.raises(EngineDead):
            vlm.query(question="Who?")
    config = uvicorn.Config(make_app(engine, Gate(1), LIMITS, ()), log_config=None)
    server = Server(config, engine, Gate(1), 1.0, watcher, "http://here")
    assert asyncio.run(server.on_tick(0))
    assert server.code == 1 and said[-1].startswith("the model" if when == "loading" else "the engine died")
