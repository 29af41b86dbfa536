"""What the log says of requests, and what it alone says of errors that nobody expected."""

import asyncio
import json
import logging

import pytest
from tests.serve.conftest import Site
from tests.serve.test_door import ASK, called, endless  # noqa: F401 - a fixture

from gapless.errors import StepFailed
from gapless.serve.door import Door
from gapless.serve.limits import Gate, RequestLimits


def test_the_access_log_is_one_json_object_a_request(site, caplog):
    with caplog.at_level(logging.INFO, "gapless.access"):
        said = site.ask("POST", "/v1/query", json=ASK, headers={"X-Request-Id": "mine"})
        site.ask("GET", "/nothing%0A%ED%A0%BD%22")
    first, second = (json.loads(r.getMessage()) for r in caplog.records if r.name == "gapless.access")
    assert first["request_id"] == said.json()["request_id"] and first["client_request_id"] == "mine"
    assert (first["status"], first["method"], first["path"]) == (200, "POST", "/v1/query")
    assert first["bytes"] == len(said.content) and first["ms"] > 0 and first["whole"]
    assert second["status"] == 404


@pytest.mark.parametrize("error", [RuntimeError("secret"), StepFailed("secret: CUDA error in file.cu")])
def test_an_unexpected_error_is_logged_and_not_told(site, vlm, monkeypatch, caplog, error):
    async def broken(*_):
        raise error

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "gapless"):
        patch.setattr("gapless.serve.limits.asyncio.to_thread", broken)
        said = site.post("/v1/query", ASK)
    assert said.status_code == 500 and "secret" not in said.text
    assert said.json()["request_id"] in said.json()["error"]["message"]
    assert "secret" in caplog.text and said.json()["request_id"] in caplog.text
    assert site.post("/v1/query", ASK).status_code == 200 and site.gate.held == 0


def test_a_client_that_left_before_its_answer_began_is_counted_as_499():
    counted = []

    class Counting:
        def count(self, *visit):
            counted.append(visit)

    async def silent(scope, receive, send):
        """An application whose client has gone."""

    scope = {"type": "http", "method": "POST", "path": "/v1/query", "headers": []}
    asyncio.run(Door(silent, (), Gate(1), Counting())(scope, None, None))
    assert counted == [("POST", None, 499, None)]


def logged(caplog):
    return [json.loads(r.getMessage()) for r in caplog.records if r.name == "gapless.access"]


def test_the_log_says_that_a_client_which_left_got_nothing(endless, caplog):  # noqa: F811
    site, leave = Site(endless), asyncio.Event()

    async def leaving():
        asking = asyncio.create_task(called(site, {"question": "Go on?", "settings": {"max_tokens": 5000}}, leave))
        while not site.gate.held:
            await asyncio.sleep(0.005)
        leave.set()
        await asking

    with caplog.at_level(logging.INFO, "gapless.access"):
        asyncio.run(leaving())
    (line,) = logged(caplog)
    assert (line["status"], line["whole"], line["bytes"], line["type"]) == (499, False, 0, "request_cancelled")
    assert line["client"] == "test"


def test_the_log_has_the_errors_type_also_of_a_stream_that_fails(endless, caplog):  # noqa: F811
    site = Site(endless, RequestLimits(10**6, 5.0, 0.2, 5.0))
    with caplog.at_level(logging.INFO, "gapless.access"):
        site.post("/v1/query", {"question": 3})
        asyncio.run(called(site, {"question": "Go on?", "stream": True, "settings": {"max_tokens": 5000}}))
        site.ask("GET", "/health")
    wrong, late, well = logged(caplog)
    assert (wrong["type"], wrong["whole"]) == ("invalid_request", True)
    assert (late["status"], late["type"], late["whole"]) == (200, "request_timeout", False)
    assert "type" not in well and well["client"]
