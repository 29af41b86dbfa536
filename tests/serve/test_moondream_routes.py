"""The five routes: their answers are the library's, whole and streamed; a wrong field is named."""

import pytest
from tests.serve.conftest import SMALL, events, png, url

PICTURE = png(1)
WARM = {"temperature": 1.5, "top_p": 1.0, "max_tokens": 24, "seed": 3}
REFS = [[0.2, 0.3], [0.1, 0.2, 0.6, 0.9]]
FEW = {"max_objects": 3, "max_tokens": 20}


def bodies(stream):
    image = {"image_url": url(PICTURE), "stream": stream}
    return {
        "query": image | {"question": "What?", "settings": WARM},
        "refs": image | {"question": "What?", "settings": WARM, "spatial_refs": REFS},
        "text": {"question": "Who are you?", "settings": WARM, "stream": stream},
        "reasoning": image | {"question": "Why?", "settings": WARM, "reasoning": True},
        "caption": image | {"length": "long", "settings": WARM},
        "segment": image | {"object": "dog", "settings": FEW},
        "point": {"image_url": url(PICTURE), "object": "dog", "settings": FEW, "spatial_refs": REFS[:1]},
        "detect": {"image_url": url(PICTURE), "object": "dog", "settings": FEW},
    }


ROUTES = {"refs": "query", "text": "query", "reasoning": "query"}


def library(vlm, name):
    calls = {
        "query": lambda: vlm.query(PICTURE, "What?", settings=WARM),
        "refs": lambda: vlm.query(PICTURE, "What?", settings=WARM, spatial_refs=REFS),
        "text": lambda: vlm.query(question="Who are you?", settings=WARM),
        "reasoning": lambda: vlm.query(PICTURE, "Why?", settings=WARM, reasoning=True),
        "caption": lambda: vlm.caption(PICTURE, "long", settings=WARM),
        "segment": lambda: vlm.segment(PICTURE, "dog", settings=FEW),
        "point": lambda: vlm.point(PICTURE, "dog", settings=FEW, spatial_refs=REFS[:1]),
        "detect": lambda: vlm.detect(PICTURE, "dog", settings=FEW),
    }
    return {key: value for key, value in calls[name]().items() if key != "metrics"}


@pytest.mark.parametrize("name", bodies(False))
def test_an_answer_is_the_librarys(site, vlm, name):
    said = site.post(f"/v1/{ROUTES.get(name, name)}", bodies(False)[name])
    assert said.status_code == 200, said.text
    found = said.json()
    assert found.pop("request_id") == said.headers["x-request-id"]
    assert found.pop("metrics")["output_tokens"] > 0
    assert found == library(vlm, name)


@pytest.mark.parametrize("name", [name for name in bodies(True) if name not in ("point", "detect")])
def test_a_stream_adds_up_to_the_answer(site, vlm, name):
    """Also S-STR-06: exactly one event carries the finish reason. And S-STR-08: each ends with an empty line."""
    said = site.post(f"/v1/{ROUTES.get(name, name)}", bodies(True)[name])
    assert said.status_code == 200 and said.headers["content-type"].startswith("text/event-stream")
    found, whole = events(said.text), library(vlm, name)
    assert [event["completed"] for event in found] == [False] * (len(found) - 1) + [True]
    assert {event["request_id"] for event in found} == {said.headers["x-request-id"]}
    assert [event["finish_reason"] for event in found if "finish_reason" in event] == [whole["finish_reason"]]
    text = "".join(event.get("chunk", "") for event in found)
    if name == "segment":
        boxes = [event["bbox"] for event in found[:-1] if event["type"] == "bbox"]
        assert boxes == ([whole["bbox"]] if whole["bbox"] else [])
        assert found[-1]["type"] == "final" and (found[-1]["path"], found[-1]["bbox"]) == (whole["path"], whole["bbox"])
        assert all(event["type"] == "path_delta" for event in found[len(boxes) : -1])
    else:
        assert text == whole["caption" if name == "caption" else "answer"]
    if name == "reasoning":
        assert found[0]["reasoning"] == whole["reasoning"]


def test_the_served_model_may_be_named(site, vlm):
    name = site.ask("GET", "/v1/models").json()["data"][0]["id"]
    assert name == vlm.desk.context.name
    body = {"question": "Who?", "settings": SMALL}
    assert site.post("/v1/query", body | {"model": name}).status_code == 200
    other = site.post("/v1/query", body | {"model": "moondream3"})
    assert other.status_code == 404 and other.json()["error"]["param"] == "model" and name in other.text


IMAGE = {"image_url": url(PICTURE)}
WRONG = [
    ("query", {}, "question"),
    ("query", {"question": 3}, "question"),
    ("query", {"question": "a", "variant": "b"}, "variant"),
    ("query", {"question": "a", "stream": "yes"}, "stream"),
    ("query", {"question": "a", "spatial_refs": [[0.1, "x"]]}, "spatial_refs[0][1]"),
    ("query", {"question": "a", "spatial_refs": [[0.1]]}, "spatial_refs"),
    ("query", {"question": "a", "settings": {"variant": "b"}}, "variant"),
    ("query", {"question": "a", "settings": {"timeout": 61}}, "timeout"),
    ("query", {"question": "a", "settings": []}, "settings"),
    ("caption", {}, "image_url"),
    ("caption", {"image_url": None}, "image_url"),
    ("caption", IMAGE | {"length": "tiny"}, "length"),
    ("detect", IMAGE | {"object": "a", "stream": True}, "stream"),
    ("detect", IMAGE | {"object": "a", "spatial_refs": [[0, 0]]}, "spatial_refs"),
    ("point", IMAGE, "object"),
    ("segment", IMAGE | {"object": "a", "mask": True}, "mask"),
    ("segment", IMAGE | {"object": "a", "reasoning": True}, "reasoning"),
]


@pytest.mark.parametrize(("route", "body", "param"), WRONG)
def test_a_wrong_field_is_named(site, route, body, param):
    said = site.post(f"/v1/{route}", body)
    assert said.status_code == 400, said.text
    told = said.json()
    assert told["error"]["param"] == param and param in told["error"]["message"]
    assert told["error"]["type"] == "invalid_request" and told["request_id"] == said.headers["x-request-id"]


def test_what_is_wrong_with_a_stream_is_told_before_it_begins(site):
    """S-STR-05 and S-STR-07."""
    for settings in ({"max_tokens": "5"}, {"max_tokens": 0}, {"temperature": "0.5"}):
        said = site.post("/v1/query", {"question": "a", "stream": True, "settings": settings})
        assert said.status_code == 400 and said.json()["error"]["param"] in settings


def test_routes_and_methods_that_do_not_exist(site):
    for path in ("/", "/v1/query/", "//v1/query", "/v1/nothing", "/V1/query", "/docs", "/redoc"):
        said = site.ask("GET", path)
        assert said.status_code == 404 and said.json()["error"]["type"] == "not_found", path
    wrong = site.ask("GET", "/v1/query")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"


def test_the_schema_names_the_fields_of_every_route(site):
    paths = site.ask("GET", "/openapi.json").json()["paths"]
    for route, fields in {"query": {"question", "image_url", "reasoning"}, "segment": {"object", "stream"}}.items():
        schema = paths[f"/v1/{route}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert fields <= set(schema["properties"]) and schema["additionalProperties"] is False
