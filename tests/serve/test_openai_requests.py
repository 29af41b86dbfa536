"""What chat completions refuses, and how it says so; what it passes over. After each an ordinary request succeeds."""

import asyncio
import json
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serve.conftest import LIMITS, Site, png, url
from tests.serve.test_openai_routes import CHAT, PICTURE, asks

from gapless.serve.limits import RequestLimits
from gapless.serve.openai_body import ChatBody, understood

FEW = {"temperature": 1.5, "top_p": 1.0, "seed": 5, "max_tokens": 4}


def url_part(address):
    return {"type": "image_url", "image_url": {"url": address}}


@pytest.fixture(scope="module")
def usual(site):
    found = answer(site)
    assert found["content"]
    return found


def answer(site):
    return site.post(CHAT, {"messages": asks("Why?")} | FEW).json()["choices"][0]["message"]


def refused(site, usual, fields, param, messages=None, raw=None):
    """Whole and streamed alike: an error in OpenAI's shape, and nothing of the inside. An ordinary request follows."""
    sound = {"messages": asks("Why?")} | FEW
    wrong = sound | ({} if messages is None else {"messages": messages})
    sent = [raw or json.dumps(wrong | more | fields).encode() for more in ({}, {"stream": True})]

    async def all_of_them():
        async with site.client() as client:
            headers = {"content-type": "application/json"}
            return [await client.post(CHAT, content=one, headers=headers) for one in [*sent, json.dumps(sound)]]

    *told, fine = asyncio.run(all_of_them())
    for said in told:
        assert said.status_code == 400, said.text
        error = said.json()["error"]
        assert list(error) == ["message", "type", "param", "code"] and said.json()["request_id"]
        assert error["type"] == "invalid_request_error" and error["param"] == param, error
        assert error["code"] and len(error["message"]) < 500 and "Traceback" not in said.text
    assert fine.json()["choices"][0]["message"] == usual


@pytest.mark.parametrize(
    "value",
    ["", {}, [], {"type": None}, {"type": "xml"}, {"type": "json_schema"}, False, "json",
     {"type": "json_schema", "json_schema": ""}, {"type": "json_schema", "json_schema": {}},
     {"type": "json_schema", "json_schema": {"schema": {"type": "dog", "enum": ["a"] * 5000, "pattern": "(a+)+$"}}},
     {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_s_api_01_and_02_forms_of_answers_that_are_none_are_refused_at_the_door(site, usual, value):
    """S-API-01, S-API-02: whatever they hold, the engine never hears of them."""
    refused(site, usual, {"response_format": value}, "response_format")


@pytest.mark.parametrize("form", [None, {"type": "text"}])
def test_s_api_01_text_is_what_comes_anyway(site, form):
    assert site.post(CHAT, {"messages": asks("Why?"), "response_format": form} | FEW).status_code == 200


def nested(depth):
    return f'{{"messages": [], "response_format": {"[" * depth}{"]" * depth}}}'.encode()


def test_s_api_02_a_nest_of_ten_thousand(site, usual):
    """S-API-02."""
    refused(site, usual, {}, None, raw=nested(100_000))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": None, "max_completion_tokens": -5}, "max_completion_tokens"),
        ({"max_tokens": None, "max_completion_tokens": "5"}, "max_completion_tokens"),
        ({"max_tokens": None, "max_completion_tokens": 5.5}, "max_completion_tokens"),
        ({"max_tokens": None, "max_completion_tokens": True}, "max_completion_tokens"),
        ({"max_tokens": None, "max_completion_tokens": 10**12}, "max_completion_tokens"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**12}, "max_tokens"),
    ],
    ids=repr,
)
def test_s_api_03_and_09_token_limits_that_are_refused(site, usual, fields, param):
    """S-API-03, S-API-09: none, negative, text, and two that disagree."""
    refused(site, usual, fields, param)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_completion_tokens": 5},
        {"max_tokens": 5},
        {"max_tokens": 5, "max_completion_tokens": 5},
        {"max_tokens": None, "max_completion_tokens": 5},
    ],
    ids=repr,
)
def test_s_api_03_both_names_are_understood(site, fields):
    """S-API-03: the newer one alone, the older one alone, both if they agree."""
    said = site.post(CHAT, {"messages": asks("Why?"), "temperature": 0} | fields).json()
    assert 1 <= said["usage"]["completion_tokens"] <= 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (-1, 1e308, True, "hot", [], 11)),
        *(("top_p", value) for value in (0, 1.5, -0.1, "1", True)),
        *(("n", value) for value in (0, -1, 17, 1.5, "2", True)),
        *(("seed", value) for value in (-1, 2**63, 1.5, "x", True)),
        *(("stop", value) for value in ("", [""], 3, [3], ["a"] * 17, "a" * 257, ["\ud800"], {"a": 1})),
        *(("stream", value) for value in ("yes", 1)),
        *(("logprobs", value) for value in (1, "true")),
        *(("reasoning", value) for value in ("yes", {"effort": "low"})),
        *(("timeout", value) for value in (0, -1, 10**6, "1")),
        ("skill", "dance"),
        ("model", 3),
        ("messages", "hi"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_s_api_06_a_wrong_value_is_named(site, usual, name, value):
    """S-API-06, S-STR-05, S-STR-07, S-TOK-04: 400 with error.param, before a stream begins."""
    if name == "stream":
        said = site.post(CHAT, {"messages": asks("Why?"), name: value})
        assert said.status_code == 400 and said.json()["error"]["param"] == name
        return
    refused(site, usual, {name: value}, name)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
def test_s_api_06_numbers_that_json_does_not_have(site, usual, literal):
    """S-API-06."""
    refused(site, usual, {}, None, raw=f'{{"messages": [], "temperature": {literal}}}'.encode())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": None, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"skill": "detect", "n": 2}, "n"),
        ({"skill": "detect", "stop": "a"}, "stop"),
        ({"skill": "point", "logprobs": True}, "logprobs"),
        ({"skill": "detect", "reasoning": True}, "reasoning"),
        ({"skill": "detect", "spatial_refs": [[0.5, 0.5]]}, "spatial_refs"),
        ({"spatial_refs": [[0.5, 0.5]]}, "spatial_refs"),
        ({"skill": "point", "spatial_refs": [[0.5, 2]]}, "spatial_refs"),
        ({"skill": "caption"}, "messages[0].content"),
    ],
    ids=repr,
)
def test_s_api_10_fields_that_do_not_go_together(site, usual, fields, param):
    """S-API-06, S-API-10."""
    refused(site, usual, fields, param, messages=asks(PICTURE, "dog"))


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": value} for value in ("", [], None)], {}, None])
def test_s_tok_02_nothing_is_asked(site, usual, messages):
    """S-TOK-02: no messages, no content, a picture without a text; a conversation that is over."""
    for one in messages if isinstance(messages, list) and messages else [messages]:
        said = site.post(CHAT, {"messages": [one] if isinstance(one, dict) and one else one})
        assert said.status_code == 400 and said.json()["error"]["param"].startswith("messages"), said.text
    refused(site, usual, {}, "messages[0]", messages=asks(PICTURE))
    refused(site, usual, {"skill": "caption"}, "messages[0].content", messages=asks(" "))


def test_s_tok_03_and_08_what_does_not_fit_is_refused_at_once(site, usual, vlm):
    """S-TOK-03, S-TOK-08: a data URL that a client put into the text; one token too many."""
    text = "data:image/png;base64," + "iVBORw0KGgo=" * 100_000
    refused(site, usual, {"max_tokens": None}, "messages", messages=asks(text))
    room = vlm.desk.context.max_context
    refused(site, usual, {"max_tokens": room}, "max_tokens")
    for name in ("max_tokens", "max_completion_tokens"):  # the one that was sent
        said = site.post(CHAT, {"messages": asks("Why?"), name: room}).json()["error"]
        assert said["code"] == "context_length_exceeded" and str(room) in said["message"]
        assert said["param"] == name and name in said["message"]


@pytest.mark.parametrize(
    ("skill", "messages", "param"),
    [
        ("detect", asks("dog"), "messages[0].content"),
        ("query", [*asks("a"), {"role": "assistant", "content": "b"}, *asks("x \ud800")], "messages[2].content"),
        ("point", asks(PICTURE, "x \ud800"), "messages[0].content"),
        ("caption", asks(PICTURE, "endless"), "messages[0].content"),
        ("caption", asks(url_part("data:image/png;base64,AAAA")), "messages[0].content[0]"),
    ],
)
def test_errors_of_a_skill_name_the_place_in_the_body(site, usual, skill, messages, param):
    """Not the library's arguments, which no client has sent."""
    refused(site, usual, {"skill": skill}, param, messages=messages)


@pytest.mark.parametrize(
    ("shown", "place"), [(0, "messages[0].content"), (1, "messages[0].content[0]"), (2, "messages")]
)
def test_pictures_for_which_there_is_no_room_are_named(shown, place):
    """An engine process takes so many bytes of crops at once, and says `image`."""
    body = ChatBody(messages=asks(*[PICTURE] * shown, "Why?"))
    wanted = understood(body, LIMITS)
    assert wanted.place_of("image") == place
    assert wanted.place_of("adapter") == "model" and wanted.place_of(None) is None
    assert wanted.settings == {"timeout": LIMITS.request_timeout}, "the server's own, where none is asked for"
    most = ChatBody(messages=body.messages, timeout=LIMITS.request_timeout)
    assert understood(most, LIMITS).settings == wanted.settings


@pytest.mark.parametrize("text", ["a \ud800", "a" * 999 + "漢字🙂"])
@pytest.mark.parametrize("role", ["system", "user"])
def test_s_tok_04_and_07_text_of_any_kind(site, usual, text, role):
    """S-TOK-04, S-TOK-07: half a surrogate pair is a 400 that names the message; long text in any script is fine."""
    messages = [{"role": role, "content": text}, {"role": "user", "content": "Why?"}]
    body = json.dumps({"messages": messages, "max_tokens": 2}).encode()
    said = site.raw(CHAT, body)
    if "\ud800" in text:
        assert said.status_code == 400 and said.json()["error"]["param"].startswith("messages[")
    else:
        assert said.status_code in (200, 400) and answer(site) == usual
    assert answer(site) == usual


HARMLESS = ("user", "metadata", "store", "parallel_tool_calls", "reasoning_effort", "service_tier", "safety_identifier")
HARMLESS += ("prompt_cache_key", "verbosity", "an_invented_one")


def test_s_api_08_harmless_fields_are_passed_over_and_logged_once(site, usual, caplog, monkeypatch):
    """S-API-08."""
    monkeypatch.setattr("gapless.serve.openai_body._named", set())
    with caplog.at_level(logging.WARNING, "gapless.serve"):
        for value in ("x", {"a": 1}, None):
            said = site.post(CHAT, {"messages": asks("Why?")} | dict.fromkeys(HARMLESS, value) | FEW)
            assert said.status_code == 200 and said.json()["choices"][0]["message"] == usual
    told = [record.message for record in caplog.records]
    assert told == [f"the field {name!r} of chat completions is passed over" for name in HARMLESS]


@pytest.mark.parametrize(
    ("name", "value", "neutral"),
    [
        ("tools", [{"type": "function"}], []),
        ("tool_choice", "required", "auto"),
        ("functions", [{}], []),
        ("audio", {"voice": "a"}, None),
        ("modalities", ["text", "audio"], ["text"]),
        ("top_k", 5, -1),
        ("guided_grammar", "root ::= 'a'", None),
        ("min_p", 0.1, 0.0),
        ("settings", {"temperature": 0}, {}),
    ],
)
def test_s_api_08_fields_that_would_change_the_answer_are_refused_by_name(site, usual, name, value, neutral):
    """S-API-08: and taken when they ask for nothing."""
    refused(site, usual, {name: value}, name)
    for nothing in (neutral, None):
        assert site.post(CHAT, {"messages": asks("Why?"), name: nothing} | FEW).json()["choices"][0]["message"] == usual


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:9/a.png", "https://localhost/a.png", "http://[::1]/", "http://0x7f000001/", "ftp://a/b",
     "file:///etc/passwd", "/etc/passwd", "../x.png", "data:image/png,abc", "data:image/png;base64,AAAA", ""],
)  # fmt: skip
def test_s_sec_01_02_and_04_no_picture_is_fetched_or_opened(site, usual, address):
    """S-SEC-01, S-SEC-02, S-SEC-04: 400 that names the part."""
    part = {"type": "image_url", "image_url": {"url": address}}
    refused(site, usual, {}, "messages[0].content[1]", messages=asks("Why?", part))
    shown = {"type": "image", "image": address}
    refused(site, usual, {}, "messages[0].content[1].type", messages=asks("Why?", shown))


def test_pictures_are_counted(vlm, usual):
    site = Site(vlm, RequestLimits(10**6, 5.0, 60.0, 5.0, max_pictures=2))
    tiny = {"type": "image_url", "image_url": {"url": url(png(1, 8, 8))}}
    said = site.post(CHAT, {"messages": asks(tiny, tiny, tiny, "Why?")})
    assert said.status_code == 400 and "3 pictures, and this server takes 2" in said.json()["error"]["message"]
    assert site.post(CHAT, {"messages": asks(tiny, tiny, "Why?")} | FEW).status_code == 200
    said = site.post(CHAT, {"messages": asks(tiny, tiny, "dog"), "skill": "detect"}).json()["error"]
    assert said["param"] == "messages[0]" and "about one picture" in said["message"]


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (401, "authentication_error", "invalid_api_key"),
        (404, "invalid_request_error", "model_not_found"),
        (405, "invalid_request_error", "method_not_allowed"),
        (413, "invalid_request_error", "body_too_large"),
        (415, "invalid_request_error", "not_json"),
        (429, "rate_limit_error", "rate_limit_exceeded"),
        (503, "server_error", "not_serving"),
    ],
)
def test_errors_of_the_door_have_openais_shape_on_openais_routes(vlm, status, kind, code):
    keys = ("secret",) if status == 401 else ()
    site = Site(None if status == 503 else vlm, LIMITS, keys, places=0 if status == 429 else 4)
    body = json.dumps({"messages": asks("Why?"), "model": "gpt-4o"}).encode()
    body = b" " * LIMITS.max_body_bytes + body if status == 413 else body
    kind_of_body = {"content-type": "text/plain" if status == 415 else "application/json"}
    method = "GET" if status == 405 else "POST"
    said = site.ask(method, CHAT, content=body, headers=kind_of_body)
    assert said.status_code == status
    error = said.json()["error"]
    assert (error["type"], error["code"]) == (kind, code) and "param" in error and said.json()["request_id"]
    assert ("retry-after" in said.headers) == (status in (429, 503))
    if status in (401, 503):
        assert site.ask("GET", "/v1/models").json()["error"]["code"] == code
        assert "code" not in site.post("/v1/query", {"question": "Why?"}).json()["error"]


@pytest.mark.parametrize("path", ["/v1/models/other", "/v1/embeddings", "/v1/completions", "/v1/chat", "/v1/responses"])
def test_openais_routes_that_there_are_not(site, path):
    said = site.ask("GET", path)
    assert said.status_code == 404 and said.json()["error"]["type"] == "invalid_request_error"
    assert said.json()["error"]["code"] == ("model_not_found" if "models" in path else "not_found")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
TEXT = {"type": "text", "text": "dog"}
PARTS = (
    st.sampled_from([PICTURE, TEXT, {"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "image"}]) | JSON
)
SOUND = {
    "messages": st.sampled_from([asks("Why?"), asks(PICTURE, "dog"), asks("short", PICTURE)]),
    "stream": st.booleans(),
    "skill": st.sampled_from(["chat", "query", "caption", "detect", "point", "segment"]),
    "n": st.integers(1, 2),
    "stop": st.lists(st.text(min_size=1, max_size=3), max_size=3),
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(0, 20),
    "reasoning": st.booleans(),
    "spatial_refs": st.just([[0.5, 0.5]]),
    "temperature": st.floats(0, 10),
    "seed": st.integers(0, 2**63 - 1),
    "extra": JSON,
}
ROLES = st.sampled_from(["user", "assistant", "system", "tool"])
SPOILT = {
    "messages": st.lists(
        st.fixed_dictionaries({"role": ROLES}, optional={"content": JSON})
        | st.lists(PARTS, max_size=3).map(lambda parts: {"role": "user", "content": parts})
        | JSON,
        max_size=3,
    ),
    "stream_options": JSON,
    "tools": JSON,
    "max_tokens": JSON,
} | {name: JSON for name in SOUND if name not in ("messages", "extra")}  # fmt: skip
SOUND_BODIES = st.fixed_dictionaries(
    {"messages": SOUND["messages"], "max_tokens": st.just(2)},
    optional={name: wanted for name, wanted in SOUND.items() if name != "messages"},
)
SPOILING = st.none() | st.sampled_from(list(SPOILT)).flatmap(lambda name: SPOILT[name].map(lambda value: {name: value}))
BODIES = st.builds(lambda body, spoiling: body | (spoiling or {}), SOUND_BODIES, SPOILING)


@settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=BODIES | JSON)
def test_no_body_is_a_failure_of_the_server(site, body):
    said = site.raw(CHAT, json.dumps(body).encode())
    assert said.status_code in (200, 400), (said.status_code, said.text)
    assert said.status_code == 200 or (said.json()["error"]["message"] and said.json()["error"]["code"])
    assert b'"error"' not in said.content or said.status_code == 400
    assert site.gate.held == 0
