"""What somebody who used the server for the first time found, each tried over the application or a connection."""

import pytest
from tests.serve.conftest import LIMITS, SMALL, Silent, Site, png, url
from tests.serve.test_door import KEYS
from tests.serve.test_slow_connections import LARGE, met, told, visits  # noqa: F401 - fixtures

import gapless
from gapless.errors import EngineDead
from gapless.serve.app import make_app
from gapless.serve.connection import MOST_HEADERS
from gapless.serve.engine import Engine
from gapless.serve.errors import told as told_of
from gapless.serve.limits import Gate
from gapless.serve.process import Server, too_few_pages

ASK = {"question": "Who?", "settings": SMALL}
CHAT = "/v1/chat/completions"


def message_of(said, status=400):
    assert said.status_code == status, said.text
    return said.json()["error"]["message"]


# -- headers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_the_bound_on_headers_is_exact_in_one_piece_or_in_many(met, more, parts):  # noqa: F811
    made, _, wire = met
    head = b"GET /nothing HTTP/1.1\r\nHost: a\r\nX-A: "
    head += b"a" * (MOST_HEADERS + more - len(head) - 4) + b"\r\n\r\n"
    assert len(head) == MOST_HEADERS + more
    step = -(-len(head) // parts)
    for first in range(0, len(head), step):
        made.data_received(head[first : first + step])
    if more:
        assert wire.closed and told(wire) == [LARGE] and not made._due
    else:
        assert not wire.closed and len(made._due) == 1


def test_small_requests_in_one_piece_are_not_taken_for_a_large_one(met):  # noqa: F811
    made, _, wire = met
    one = b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n"
    made.data_received(one * (MOST_HEADERS // len(one) + 10) + one[:5])
    assert not wire.closed and wire.sent == b""


# -- what a request is told ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "remedy"),
    [
        ("/v1/query", {"question": "a", "temperature": 0}, 'put it into settings: {"settings": {"temperature": ...}}'),
        ("/v1/query", {"question": "a", "schema": {}}, 'put it into settings: {"settings": {"json_schema": ...}}'),
        ("/v1/query", {"question": "a", "image": "x"}, "did you mean image_url?"),
        ("/v1/detect", {"image_url": "x", "object": "a", "xyzzy": 1}, "leave it out; it knows settings, model, image_"),
        (CHAT, {"messages": [], "settings": {"seed": 1}}, "put what is in it beside messages, at the top of the body"),
        (CHAT, {"messages": [], "image_url": "x"}, "put the picture into a message's content"),
        (CHAT, {"messages": [], "timeout": 100}, "this server gives 60; ask for no more, or raise its request_timeout"),
        ("/v1/query", {"question": "a", "settings": {"timeout": 100}}, "this server gives 60; ask for no more, or"),
    ],
)
def test_a_field_at_the_wrong_place_is_told_the_right_one(site, path, body, remedy):
    assert remedy in message_of(site.post(path, body))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses"])
def test_openais_other_ways_are_shown_the_one_there_is(site, path):
    assert message_of(site.post(path, {}), 404).endswith("use /v1/chat/completions")


@pytest.mark.parametrize("name", ["moondream-2B", "moondream3-preview", "moondream/moondream3-preview"])
def test_names_of_the_hosted_service_mean_the_model_that_is_served_on_every_route(site, name):
    assert site.post("/v1/query", {"question": "a", "model": name, "settings": SMALL}).status_code == 200
    assert site.post(CHAT, {"messages": [{"role": "user", "content": "a"}], "model": name, "max_tokens": 2}).is_success
    assert "this server has the model" in message_of(site.post("/v1/query", {"question": "a", "model": "x"}), 404)
    assert site.ask("GET", f"/v1/models/{name}").status_code == 404, "it is none that is served"


def test_a_dead_engine_is_told_with_when_to_ask_again(vlm, monkeypatch):
    site = Site(vlm)
    monkeypatch.setattr(site.engine._vlm, "check", lambda: (_ for _ in ()).throw(EngineDead("secret")))
    said = site.post("/v1/query", ASK)
    assert "ask again in a few seconds" in message_of(said, 503) and "secret" not in said.text
    assert said.headers["retry-after"] == "5" and said.json()["error"]["type"] == "engine_dead"
    assert told_of(EngineDead("secret"), "an-id")["error"]["message"].endswith("an-id")


# -- browsers --------------------------------------------------------------------------------------------------------

PAGE = "https://example.org"
PREFLIGHT = {"origin": PAGE, "access-control-request-method": "POST"}
PREFLIGHT |= {"access-control-request-headers": "authorization,content-type"}


def door(vlm, origins, keys=KEYS):
    site = Site(vlm)
    site.app = make_app(site.engine, site.gate, LIMITS, keys, origins=origins)
    return site


def test_pages_of_other_origins_may_ask_where_they_are_named(vlm):
    site = door(vlm, (PAGE,))
    asked = site.ask("OPTIONS", "/v1/query", headers=PREFLIGHT)
    assert asked.status_code == 200 and asked.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in asked.headers["access-control-allow-headers"] and asked.headers["x-request-id"]
    key = {"origin": PAGE, "authorization": f"Bearer {KEYS[0]}"}
    said = site.ask("POST", "/v1/query", json=ASK, headers=key)
    assert said.status_code == 200 and said.headers["access-control-allow-origin"] == PAGE
    assert "X-Request-Id" in said.headers["access-control-expose-headers"]
    locked = site.ask("POST", "/v1/query", json=ASK, headers={"origin": PAGE})
    assert locked.status_code == 401 and locked.headers["access-control-allow-origin"] == PAGE
    for headers in ({}, {"origin": PAGE}):  # no browser's question
        assert site.ask("OPTIONS", "/v1/query", headers=headers).status_code == 401
    other = site.ask("OPTIONS", "/v1/query", headers=PREFLIGHT | {"origin": "https://elsewhere.org"})
    assert other.status_code == 400 and "access-control-allow-origin" not in other.headers


def test_any_page_may_ask_where_all_may_and_none_where_none_is_named(vlm):
    everybody = door(vlm, ("*",), keys=()).ask("GET", "/v1/models", headers={"origin": PAGE})
    assert everybody.headers["access-control-allow-origin"] == "*"
    nobody = door(vlm, ())
    assert nobody.ask("OPTIONS", "/v1/query", headers=PREFLIGHT).status_code == 401
    assert "access-control-allow-origin" not in nobody.ask("GET", "/health", headers={"origin": PAGE}).headers


# -- what a person is told -------------------------------------------------------------------------------------------


def test_a_cache_that_is_too_small_for_an_ordinary_question_is_told_at_the_start(micro_folder, vlm):
    whole = -(-(vlm.desk.context.max_context - 1) // 16) + 1  # the defaults fill the context
    for pages, fits in ((whole, False), (whole + 1, True)):
        with gapless.load(micro_folder, page_size=16, pages=pages, max_rows=2) as small:
            site = Site(small)
            said = too_few_pages(site.engine, 16)
            answer = site.post("/v1/query", {"question": "Who is it?", "image_url": url(png(1))})
            assert answer.status_code == (200 if fits else 413)
            if fits:
                assert said is None
            else:
                assert said.startswith(
                    f"the KV cache has {pages - 1} pages, and a question about a picture may need {pages} "
                )
                assert message_of(answer, 413).endswith("lower max_tokens, or raise pages")


def test_signals_are_answered_in_words(vlm):
    said, gate = [], Gate(4)
    watcher = Silent()
    watcher.say = said.append
    engine = Engine(lambda progress: None, watcher)
    server = Server.__new__(Server)
    server._gate, server._watcher, server._drain, server._stop_by, server._engine = gate, watcher, 30.0, None, engine
    with gate.place(), gate.place():
        server.handle_exit(15, None)
        server.handle_exit(15, None)
    server._stop_by = None
    server.handle_exit(2, None)
    first, second, third = said
    assert first == "stopping: 2 requests running, for 30 seconds at most; again to end now"
    assert (second, third) == ("ending now", "stopping: no request is running")
