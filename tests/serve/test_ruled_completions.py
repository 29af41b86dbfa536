"""Rules for answers over HTTP: as OpenAI's client sends them, as vLLM's users do, and as nobody should."""

import asyncio
import base64
import io
import json
import re

import httpx
import jsonschema
import numpy as np
import openai
import pydantic
import pytest
from PIL import Image
from tests.api.walking import walking
from tests.serve.conftest import Site, events

CHAT = "/v1/chat/completions"
ASKED = [{"role": "user", "content": "What?"}]
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0}, "s": {"enum": ["a", "b"]}},
    "required": ["n", "s"],
    "additionalProperties": False,
}


class Shape(pydantic.BaseModel):
    name: str
    sides: int


class Shapes(pydantic.BaseModel):
    shapes: list[Shape] = pydantic.Field(max_length=3)


def of_schema(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "shapes", "schema": schema} | more}


@pytest.fixture(scope="module")
def ruled():
    with walking() as vlm:
        yield Site(vlm)


def talk(site, work):
    """Run `work(client)` with OpenAI's own client against the application."""

    async def once():
        transport = httpx.ASGITransport(site.app, raise_app_exceptions=False)
        async with (
            httpx.AsyncClient(transport=transport) as http,
            openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http, max_retries=0) as client,
        ):
            return await work(client)

    return asyncio.run(once())


def said(site, **fields):
    return site.raw(CHAT, json.dumps({"messages": ASKED} | fields).encode())


FORMS = [
    ({"response_format": of_schema(SCHEMA, strict=True, description="shapes")}, "json"),
    ({"response_format": of_schema(SCHEMA, strict=False)}, "json"),
    ({"response_format": {"type": "json_object"}}, "object"),
    ({"guided_json": SCHEMA}, "json"),
    ({"guided_json": json.dumps(SCHEMA)}, "json"),
    ({"guided_regex": "[A-C]{3}"}, "regex"),
    ({"guided_choice": ["red", "blue"]}, "choice"),
    ({"structured_outputs": {"choice": ["red", "blue"]}}, "choice"),
    ({"structured_outputs": {"json": SCHEMA, "regex": None}}, "json"),
    ({"structured_outputs": {"regex": "[A-C]{3}"}}, "regex"),
    ({"structured_outputs": {"json_object": True}}, "object"),
    ({"json_schema": SCHEMA}, "json"),
    ({"choice": ["red", "blue"], "json_object": False, "response_format": {"type": "text"}}, "choice"),
    ({"regex": "[A-C]{3}", "response_format": None, "guided_json": None}, "regex"),
    ({"json_object": True}, "object"),
    ({"response_format": {"type": "text"}, "structured_outputs": {}}, "free"),
]


def fits(kind, text):
    match kind:
        case "json":
            jsonschema.validate(json.loads(text), SCHEMA)
        case "object":
            assert isinstance(json.loads(text), dict)
        case "regex":
            assert re.fullmatch("[A-C]{3}", text)
        case "choice":
            assert text in ("red", "blue")
        case _:
            assert text == "free"


@pytest.mark.parametrize(("fields", "kind"), FORMS, ids=lambda value: str(value)[:60])
def test_every_way_to_say_a_rule_is_one(ruled, fields, kind):
    answer = said(ruled, **fields)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    fits(kind, choice["message"]["content"])
    assert choice["finish_reason"] == "stop"
    assert ("rule" in answer.json()["metrics"]) == (kind != "free")
    *pieces, end = said(ruled, stream=True, **fields).text.removesuffix("\n\n").split("\n\n")
    assert end == "data: [DONE]"
    deltas = [json.loads(piece.removeprefix("data: "))["choices"][0] for piece in pieces]
    fits(kind, "".join(delta["delta"].get("content") or "" for delta in deltas))
    assert deltas[-1]["finish_reason"] == "stop"


def test_the_official_client_parses_models(ruled):
    async def work(client):
        parsed = await client.chat.completions.parse(model="glint", messages=ASKED, response_format=Shapes)
        form = of_schema(SCHEMA, strict=True)
        several = await client.chat.completions.create(model="glint", messages=ASKED, response_format=form, n=3)
        async with client.chat.completions.stream(model="glint", messages=ASKED, response_format=Shapes) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_completion()
        guided = {"guided_choice": ["red", "blue"]}
        chosen = await client.chat.completions.create(model="glint", messages=ASKED, extra_body=guided)
        return parsed, several, streamed, chosen

    parsed, several, streamed, chosen = talk(ruled, work)
    for completion in (parsed, streamed):
        message = completion.choices[0].message
        assert isinstance(message.parsed, Shapes) and message.parsed == Shapes.model_validate_json(message.content)
    for choice in several.choices:
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)
    assert chosen.choices[0].message.content in ("red", "blue")


def test_an_answer_that_was_cut_off_says_so():
    with walking(short=3) as vlm:

        async def work(client):
            with pytest.raises(openai.LengthFinishReasonError):
                await client.chat.completions.parse(model="glint", messages=ASKED, response_format=Shapes)
            form = of_schema(SCHEMA)
            whole = await client.chat.completions.create(model="glint", messages=ASKED, response_format=form)
            return whole.choices[0].finish_reason

        assert talk(Site(vlm), work) == "length"


REFUSED = [
    ({"response_format": of_schema({"type": "object", "patternProperties": {}})}, "response_format",
     '"patternProperties" at #/patternProperties'),
    ({"response_format": of_schema({"properties": {"a": {"not": {}}}})}, "response_format",
     '"not" at #/properties/a/not'),
    ({"response_format": of_schema({"$ref": "https://example.com/x"})}, "response_format", '"$ref" at #/$ref'),
    ({"response_format": of_schema({"$ref": "#"})}, "response_format", "recursive"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "response_format.json_schema must be"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format",
     "json_schema.schema must be"),
    ({"response_format": of_schema(SCHEMA, strict="yes")}, "response_format", "json_schema.strict must be true or"),
    ({"response_format": of_schema(SCHEMA, name=5)}, "response_format", "json_schema.name must be a text"),
    ({"response_format": of_schema(SCHEMA, grammar="x")}, "response_format", "'grammar', which is not known there"),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format", "'schema', which is not known"),
    ({"response_format": {"type": "grammar"}}, "response_format", "type 'grammar'"),
    ({"response_format": "json"}, "response_format", "must be an object"),
    ({"guided_json": "{"}, "guided_json", "is no JSON"),
    ({"guided_json": "[" * 100_000}, "guided_json", "is no JSON"),
    ({"guided_json": 7}, "guided_json", "JSON schema"),
    ({"guided_regex": "("}, "guided_regex", "position"),
    ({"guided_regex": ["a"]}, "guided_regex", "pattern"),
    ({"guided_regex": r"(\d+)\1"}, "guided_regex", "position"),
    ({"guided_choice": "red"}, "guided_choice", "list of 1"),
    ({"guided_choice": []}, "guided_choice", "list of 1"),
    ({"guided_grammar": "root ::= 'a'"}, "guided_grammar", "not supported"),
    ({"structured_outputs": {"grammar": "x"}}, "structured_outputs", "'grammar', which is not known"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "regex and choice"),
    ({"structured_outputs": []}, "structured_outputs", "must be an object"),
    ({"regex": "a", "response_format": {"type": "json_object"}}, "regex", "response_format and regex"),
    ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_regex", "guided_choice and guided_regex"),
    ({"json_object": "yes"}, "json_object", "true or false"),
    ({"guided_regex": "a{90}", "max_tokens": 3}, "max_tokens", "shortest answer"),
    ({"guided_regex": "a{90}", "max_completion_tokens": 3}, "max_completion_tokens", "shortest answer"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_cannot_be_honoured_is_a_400_that_names_it(ruled, fields, param, words):
    for more in ({}, {"stream": True}):
        answer = said(ruled, **fields, **more)
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == param, error
        assert words in error["message"] and len(error["message"]) < 600, error
        assert error["type"] == "invalid_request_error" and error["code"]
    assert said(ruled).json()["choices"][0]["message"]["content"] == "free"


def deep(depth):
    return "".join(['{"items":'] * depth) + "true" + "}" * depth


HOSTILE = {
    "100 kB of one word": {"enum": ["x" * 100_000]},
    "200 kB": {"enum": ["x" * 200_000]},
    "depth 60": json.loads(deep(60)),
    "depth 900": json.loads(deep(900)),
    "a thousand members": {"properties": {f"p{n}": {"type": "string"} for n in range(1000)}},
    "alternatives of alternatives": {"allOf": [{"anyOf": [{"minLength": n} for n in range(30)]}] * 6},
    "references in a row": {
        "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)} | {"d60": {}},
        "$ref": "#/$defs/d0",
    },
    "a bomb": {"type": "string", "pattern": "((a{1,99}){1,99}){1,99}"},
    "a backtracking bomb": {"type": "string", "pattern": "^(a+)+$"},
    "huge counts": {"type": "array", "items": {"type": "string", "minLength": 10**9}, "minItems": 10**9},
    "huge numbers": {"type": "number", "minimum": 1e308, "multipleOf": 7},
    "a number of a thousand digits": {"const": 10**1000},
    "odd names": {"properties": {"\u0000": True, "\ud800": True, '"': True, "~1/": {"not": {}}}},
    "a file": {"$ref": "file:///etc/passwd"},
    "types of types": {"type": {"type": "object"}},
    "everything null": {"type": None, "properties": None, "items": None},
}


SECONDS = ("a bomb", "huge counts", "a thousand members", "references in a row")
"""Until their size is noticed."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SECONDS else ()) for n in HOSTILE])
def test_hostile_schemas_are_answered_or_refused_and_harm_nobody(ruled, name):
    answer = said(ruled, response_format=of_schema(HOSTILE[name]), max_tokens=200)
    assert answer.status_code in (200, 400, 413), answer.text
    if answer.status_code == 200:
        found = json.loads(answer.json()["choices"][0]["message"]["content"])
        jsonschema.validate(found, HOSTILE[name])
    else:
        error = answer.json()["error"]
        assert error["param"] in ("response_format", "max_tokens", None) and len(error["message"]) < 600
        assert not any(word in error["message"] for word in ("Traceback", ".py", "Error("))
    fits("choice", said(ruled, choice=["red", "blue"]).json()["choices"][0]["message"]["content"])


def test_a_nest_that_json_itself_cannot_hold(ruled):
    body = f'{{"messages": [{{"role": "user", "content": "a"}}], "guided_json": {deep(50_000)}}}'
    answer = ruled.raw(CHAT, body.encode())
    assert answer.status_code == 400 and "nested too deeply" in answer.json()["error"]["message"]


def test_thirty_schemas_at_once_and_free_answers_between_them(ruled):
    async def all_of_them():
        async with ruled.client() as client:
            bodies = [
                {
                    "messages": ASKED,
                    "guided_json": {"type": "array", "items": {"const": n}, "minItems": n, "maxItems": n},
                }
                for n in range(30)
            ]
            bodies += [{"messages": ASKED}] * 10
            return await asyncio.gather(*(client.post(CHAT, json=body) for body in bodies))

    answers = [answer.json()["choices"][0]["message"]["content"] for answer in asyncio.run(all_of_them())]
    assert [json.loads(text) for text in answers[:30]] == [[n] * n for n in range(30)]
    assert answers[30:] == ["free"] * 10


def test_more_rules_than_may_wait_are_told_to_come_again():
    with walking() as vlm:
        site = Site(vlm)
        said(site, choice=["a"])
        vlm.desk.rules._compiler._most_waiting = 1

        async def all_of_them():
            async with site.client() as client:
                bodies = [{"messages": ASKED, "guided_regex": f".*a.{{8}}{n}"} for n in range(6)]
                return await asyncio.gather(*(client.post(CHAT, json=body) for body in bodies))

        answers = asyncio.run(all_of_them())
        assert {answer.status_code for answer in answers} == {200, 429}
        (refused,) = {answer.json()["error"]["code"] for answer in answers if answer.status_code == 429}
        assert refused == "rate_limit_exceeded"
        assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 429)


def picture():
    data = io.BytesIO()
    Image.fromarray(np.zeros((30, 30, 3), np.uint8)).save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


@pytest.mark.parametrize("route", ["query", "caption"])
def test_the_moondream_routes_take_rules_among_their_settings(ruled, route):
    asked = {"image_url": picture(), **({"question": "What?"} if route == "query" else {})}
    key = {"query": "answer", "caption": "caption"}[route]
    whole = ruled.post(f"/v1/{route}", asked | {"settings": {"json_schema": SCHEMA}}).json()
    fits("json", whole[key])
    assert whole["metrics"]["rule"]["states"] > 3
    streamed = ruled.post(f"/v1/{route}", asked | {"stream": True, "settings": {"regex": "[A-C]{3}"}})
    *chunks, last = events(streamed.text)
    fits("regex", "".join(chunk["chunk"] for chunk in chunks))
    assert last["completed"] and last["finish_reason"] == "stop"
    wrong = ruled.post(f"/v1/{route}", asked | {"settings": {"json_schema": {"if": True}}})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "json_schema"
    assert '"if" at #/if' in wrong.json()["error"]["message"]


@pytest.mark.parametrize("route", ["detect", "point", "segment"])
def test_routes_that_answer_in_places_take_none(ruled, route):
    wrong = ruled.post(f"/v1/{route}", {"image_url": picture(), "object": "star", "settings": {"choice": ["a"]}})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "choice"
    parts = [{"type": "image_url", "image_url": {"url": picture()}}, {"type": "text", "text": "star"}]
    form = {"skill": route, "response_format": {"type": "json_object"}}
    wrong = said(ruled, messages=[{"role": "user", "content": parts}], **form)
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "response_format"
