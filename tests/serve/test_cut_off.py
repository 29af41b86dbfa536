"""Requests that the server's end cuts off: a body that is still on its way, an answer that nobody takes."""

import asyncio
import json
import logging

import pytest

from gapless.serve.door import Door
from gapless.serve.limits import Gate
from gapless.serve.metrics import Visits


async def cut_off(door, path="/v1/query"):
    """A request whose body never ends, cancelled as uvicorn does with what is left. Returns what it was told."""
    said = []

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        said.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "http_version": "1.1"}
    asking = asyncio.create_task(door(scope, receive, send))
    await asyncio.sleep(0)
    assert not asking.done()
    asking.cancel()
    await asking  # it raises nothing that would be logged as a failure
    return said


async def reading(scope, receive, send):
    await receive()


async def answering(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await receive()


@pytest.mark.parametrize("path", ["/v1/query", "/v1/chat/completions"])
def test_one_that_is_still_arriving_is_told_in_the_shape_of_its_route(path, caplog):
    gate, visits = Gate(1), Visits()
    with caplog.at_level(logging.INFO):
        start, body = asyncio.run(cut_off(Door(reading, (), gate, visits), path))
    assert start["status"] == 503 and (b"retry-after", b"5") in start["headers"]
    said = json.loads(body["body"])
    assert "stopped before this request was over" in said["error"]["message"]
    assert said["error"].get("code", said["error"]["type"]) in ("not_serving", "server_error") and said["request_id"]
    assert gate.held == 0 and visits.answered == {("POST", "other", 503): 1} and visits.rejected["not_serving"] == 1
    (line,) = [record for record in caplog.records if record.name == "gapless.access"]
    assert json.loads(line.getMessage())["status"] == 503 and len(caplog.records) == 1


def test_one_that_is_being_answered_is_broken_off_without_a_word(caplog):
    gate, visits = Gate(1), Visits()
    with caplog.at_level(logging.INFO):
        (start,) = asyncio.run(cut_off(Door(answering, (), gate, visits)))
    assert start["status"] == 200 and gate.held == 0 and visits.answered == {("POST", "other", 200): 1}
    (line,) = caplog.records
    assert json.loads(line.getMessage())["whole"] is False
