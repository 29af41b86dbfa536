"""The front without Ray: real routes behind it, engines that end, refuse or are full, and clients that leave."""

import asyncio
import base64
import json
from contextlib import aclosing

import httpx
import pytest
from tests.serve.conftest import LIMITS, Site, events, micro_folder, one_thread, png, url, vlm  # noqa: F401

from gapless.serve import forward
from gapless.serve.deadline import time_of
from gapless.serve.door import Door
from gapless.serve.forward import REPLICA, EngineLost, Forward, WithoutId
from gapless.serve.hosted import Call, Hosted
from gapless.serve.limits import Gate
from gapless.serve.metrics import Visits

ASK = {"image_url": url(png()), "question": "What?", "settings": {"temperature": 0, "max_tokens": 6}}
CHAT = {"messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0, "max_tokens": 6, "stream": True}


class Engines:
    """Engines by name, each an application; `ending`: how many messages of an answer come before the engine ends;
    `silent`: those that take no request."""

    def __init__(self, apps, ending=(), silent=()):
        self.silent = silent
        self.apps = {name: Hosted(app) for name, app in apps.items()}
        self.ending = dict(ending)
        self.asked = []

    async def ask(self, call):
        name = next((name for name in self.apps if name not in call.avoid), next(iter(self.apps)))
        self.asked.append((name, call))
        call.chosen.append(name)  # as a router does
        if name in self.silent:
            await asyncio.sleep(60)
        yield {"type": REPLICA, "replica": name}
        async with aclosing(self.apps[name].answer(call)) as messages:
            count = 0
            async for message in messages:
                if count == self.ending.get(name):
                    raise EngineLost("killed")
                count += 1
                yield message


def refusing(status):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"{}", "more_body": False})

    return app


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(forward, "PAUSE", 0.001)


class Front:
    def __init__(self, engines, keys=(), limits=LIMITS):
        self.engines = engines
        self.forward = Forward(engines, limits, self._metrics)
        self.gate = Gate(8)
        self.door = Door(self.forward, keys, self.gate, Visits())

    async def _metrics(self):
        return b"told 1\n"

    def request(self, method, path, **options):
        async def once():
            transport = httpx.ASGITransport(self.door, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://fleet") as client:
                return await client.request(method, path, **options)

        return asyncio.run(once())

    def until_broken_off(self, path, body):
        """What was sent of an answer that has no end, which `httpx` does not take."""
        sent, asked = [], [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def receive():
            if asked:
                return asked.pop()
            return await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        headers = ((b"content-type", b"application/json"),)
        asyncio.run(asyncio.wait_for(self.door(Call("POST", path, headers=headers).scope(), receive, send), 30))
        assert sent[0]["status"] == 200 and all(message["more_body"] for message in sent[1:])
        return b"".join(message["body"] for message in sent[1:]).decode()


@pytest.fixture(scope="module")
def site(vlm):  # noqa: F811
    return Site(vlm)


def test_answers_and_errors_are_those_of_the_engine(site):
    front = Front(Engines({"a": site.app}))
    bare = Front(Engines({"a": site.app}))
    bare.door = WithoutId(bare.door)
    assert "x-request-id" not in bare.request("GET", "/health").headers
    alone, found = site.post("/v1/query", ASK), front.request("POST", "/v1/query", json=ASK)
    assert found.status_code == 200 and found.json()["answer"] == alone.json()["answer"]
    assert found.headers["x-gapless-replica"] == "a"
    assert found.headers.get_list("x-request-id") == [found.json()["request_id"]]
    named = front.request("POST", "/v1/query", json=ASK, headers={"x-request-id": "mine"})
    assert named.headers.get_list("x-request-id") == ["mine"]
    for path, body in (("/v1/query", {"question": 3}), ("/v1/nothing", {}), ("/v1/caption", {"image_url": "x"})):
        assert front.request("POST", path, json=body).status_code == site.post(path, body).status_code >= 400
    assert (
        front.request("GET", "/v1/models").json()["data"][0]["id"]
        == site.ask("GET", "/v1/models").json()["data"][0]["id"]
    )
    assert front.request("GET", "/openapi.json").json() == site.ask("GET", "/openapi.json").json()
    assert front.request("GET", "/metrics").text == "told 1\n"
    assert front.engines.asked[0][1].key and front.gate.held == 0
    assert front.forward.counts["passed"] == 7 and front.forward.counts.total() == 7


@pytest.mark.parametrize("escapes", [(), ("/", "\\/"), ("+", "\\u002B"), ("+", "\\u002b")])
def test_pictures_are_told_apart_however_their_writer_escapes(escapes):
    """Files that begin alike, as photographs of one camera do."""
    front, keys = Front(Engines({"a": refusing(400)})), []
    for number in range(3):
        data = base64.b64encode(bytes(range(256)) * 2 + bytes([number])).decode()
        body = json.dumps({"image_url": f"data:image/jpeg;base64,{data}", "adapter": "moon"})
        if escapes:
            assert escapes[0] in body
            body = body.replace(*escapes)
        front.request("POST", "/v1/point", content=body)
        call = front.engines.asked[-1][1]
        keys.append(call.key)
        assert call.body == body.encode() and call.names == ("moon",)
    assert len(set(keys)) == 3 and "" not in keys
    front.request("POST", "/v1/point", content=",".join(f'"model": "m{n}"' for n in range(99)))
    assert len(front.engines.asked[-1][1].names) == forward.MOST_NAMES


def test_the_front_asks_for_keys_and_limits_bodies(site):
    front = Front(Engines({"a": site.app}), keys=("secret",))
    assert front.request("POST", "/v1/query", json=ASK).status_code == 401
    assert front.request("POST", "/v1/query", json=ASK, headers={"x-moondream-auth": "secret"}).status_code == 200
    large = front.request("POST", "/v1/query", content=b" " * 3 * 2**20, headers={"x-moondream-auth": "secret"})
    assert large.status_code == 413 and len(front.engines.asked) == 1


@pytest.mark.parametrize("ending", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_ends_before_anything_was_sent_is_replaced(site, quick, ending, stream):
    front = Front(Engines({"a": site.app, "b": site.app}, {"a": ending}))
    found = front.request("POST", "/v1/query", json=ASK | {"stream": stream})
    assert found.status_code == 200 and found.headers["x-gapless-replica"] == "b"
    said = "".join(e["chunk"] for e in events(found.text)) if stream else found.json()["answer"]
    assert said == site.post("/v1/query", ASK).json()["answer"]
    assert [name for name, _ in front.engines.asked] == ["a", "b"] and front.engines.asked[1][1].avoid == ("a",)
    assert front.forward.counts == {"passed": 1, "lost": 1, "silent": 0, "refused": 0, "full": 0, "broken": 0}


@pytest.mark.parametrize(("path", "body"), [("/v1/query", ASK | {"stream": True}), ("/v1/chat/completions", CHAT)])
def test_a_stream_that_has_begun_ends_with_an_error_and_is_not_asked_again(site, quick, path, body):
    front = Front(Engines({"a": site.app, "b": site.app}, {"a": 3}))
    *whole, torn = front.until_broken_off(path, body).split("\n\n")
    last = json.loads(whole[-1].removeprefix("data: "))
    assert "ended in the middle" in last["error"]["message"] and torn == 'data: {"'
    assert len(front.engines.asked) == 1
    assert front.forward.counts["broken"] == front.forward.counts["lost"] == 1


@pytest.mark.parametrize(("status", "reason"), [(503, "refused"), (429, "full")])
def test_an_engine_that_refuses_is_passed_over_and_the_last_word_is_told(site, quick, status, reason):
    front = Front(Engines({"a": refusing(status), "b": site.app}))
    assert front.request("POST", "/v1/query", json=ASK).status_code == 200
    assert front.forward.counts[reason] == 1
    alone = Front(Engines({"a": refusing(status)}))
    assert alone.request("POST", "/v1/query", json=ASK).status_code == status
    assert alone.forward.counts[reason] == forward.ATTEMPTS - 1


def test_engines_that_always_end_are_told_as_such(site, quick):
    front = Front(Engines({"a": site.app}, {"a": 0}))
    found = front.request("POST", "/v1/query", json=ASK)
    assert found.status_code == 503 and "none has answered" in found.json()["error"]["message"]
    assert front.forward.counts["lost"] == forward.ATTEMPTS and front.gate.held == 0


def test_an_engine_that_does_not_stir_is_passed_over_and_others_are_spared_it(site, quick, monkeypatch):
    monkeypatch.setattr(forward, "HELLO", 0.02)
    front = Front(Engines({"a": site.app, "b": site.app}, silent=("a",)))
    for _ in range(2):
        assert front.request("POST", "/v1/query", json=ASK).headers["x-gapless-replica"] == "b"
    assert [name for name, _ in front.engines.asked] == ["a", "b", "b"]
    assert front.forward.counts["silent"] == 1
    monkeypatch.setattr(forward, "SHUNNED", 0.0)
    later = Front(Engines({"a": site.app, "b": site.app}, silent=("a",)))
    for _ in range(2):  # it is asked again when its time is over
        assert later.request("POST", "/v1/query", json=ASK).status_code == 200
    assert later.forward.counts["silent"] == 2


@pytest.mark.parametrize(
    ("taken", "status", "said"), [(True, 504, "did not begin to answer"), (False, 503, "was free")]
)
def test_nobody_waits_longer_than_his_own_time(site, monkeypatch, taken, status, said):
    async def hanging(scope, receive, send):
        await receive()
        await receive()

    monkeypatch.setattr(forward, "MARGIN", 0.05)
    front = Front(Engines({"a": hanging}, silent=() if taken else ("a",)))
    body = ASK | {"settings": ASK["settings"] | {"timeout": 0.05}}
    found = front.request("POST", "/v1/query", json=body)
    assert found.status_code == status and said in found.json()["error"]["message"] and front.gate.held == 0


def test_asking_again_gives_a_request_no_more_time(site, quick):
    async def noting(scope, receive, send):
        spent.append(scope["state"]["spent"])
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    spent = []
    front = Front(Engines({"a": noting}))
    front.request("POST", "/v1/query", json=ASK)
    assert spent[0] == 0.0 and 0 < spent[1] < spent[2] < spent[3]

    async def at_an_engine(path, body, seconds):
        headers = ((b"content-type", b"application/json"),)
        call = Call("POST", path, headers=headers, body=json.dumps(body).encode(), spent=seconds)
        async with aclosing(Hosted(site.app).answer(call)) as messages:
            return (await anext(messages))["status"]

    timed = ASK | {"settings": ASK["settings"] | {"timeout": 30}}
    chat = CHAT | {"timeout": 30, "stream": False}
    for path, body in (("/v1/query", timed), ("/v1/chat/completions", chat)):
        assert asyncio.run(at_an_engine(path, body, 30.0)) == 504
        assert asyncio.run(at_an_engine(path, body, 0.5)) == 200
    assert asyncio.run(at_an_engine("/v1/query", ASK, LIMITS.request_timeout + 1)) == 504
    wrong = ASK | {"settings": {"timeout": -1}}
    assert asyncio.run(at_an_engine("/v1/query", wrong, 5.0)) == 400


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        (b'{"settings": {"timeout": 2}}', 2.0),
        (b'{"timeout":0.5, "messages": []}', 0.5),
        (b'{"settings": {"timeout": 99}}', 10.0),
        (b'{"question": "what is \\"timeout\\": 3?"}', 10.0),
        (b'{"schema": {"const": {"timeout": 1}}}', 10.0),
        (b'{"timeout": 1', 10.0),
        (b'["timeout": 1]', 10.0),
        (b'[{"timeout": 1}]', 10.0),
        (b'{"timeout": 0, "settings": 3}', 10.0),
        (b'{"timeout": 1, "timeout": 2}', 10.0),
        (b"\xff\x00" + b'"timeout": 1', 10.0),
        (b"", 10.0),
    ],
)
def test_the_time_that_a_body_asks_for(body, seconds):
    assert time_of(body, 10.0) == seconds


def test_a_client_that_leaves_ends_its_request_at_the_engine(quick):
    left = []

    async def endless(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await receive()
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        left.append((await receive())["type"])

    async def once():
        front = Front(Engines({"a": endless}))
        came, messages = asyncio.Event(), []

        async def receive():
            if not messages:
                messages.append("body")
                return {"type": "http.request", "body": b"{}", "more_body": False}
            await came.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if message["type"] == "http.response.body":
                came.set()

        await asyncio.wait_for(front.door(Call("POST", "/v1/query").scope(), receive, send), 10)
        assert front.gate.held == 0

    asyncio.run(once())
    assert left == ["http.disconnect"]


def test_a_hosted_application_lives_between_start_and_stop():
    seen = []

    async def app(scope, receive, send):
        for phase in ("startup", "shutdown"):
            seen.append((await receive())["type"])
            await send({"type": f"lifespan.{phase}.complete"})

    async def failing(scope, receive, send):
        await receive()
        raise ValueError("no")

    async def refusing_to_start(scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "not today"})

    async def once():
        hosted = Hosted(app)
        await hosted.start()
        await hosted.stop()
        with pytest.raises(ValueError, match="no"):
            await Hosted(failing).start()
        with pytest.raises(RuntimeError, match="not today"):
            await Hosted(refusing_to_start).start()
        await Hosted(app).stop()

    asyncio.run(once())
    assert seen == ["lifespan.startup", "lifespan.shutdown"]
