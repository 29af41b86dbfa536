"""Two thousand malformed requests against a running server: no answer is a 5xx, each has the shape of an error or is
right, an ordinary request in between says what it said before, and neither process grows."""

import asyncio
import collections
import io
import json
import urllib.parse

import pytest
from PIL import Image
from tests.serve.conftest import png, url
from tests.serve.hash_server import resident
from tests.serve.hostile import CUT_OFF, hostile
from tests.serve.raw_http import exchange, get, post
from tests.serve.serving import Served
from tests.serve.test_load_served import needs_linux

INTERNALS = (b"Traceback", b"gapless/", b".py", b" at 0x", b"site-packages", b"object at")
ORDINARY = {"image_url": url(png(2)), "object": "cross"}
AT_ONCE = 6
SHORT = 0.15
"""Seconds after which a client is gone whose request may never end."""


async def ordinary(port):
    said = await exchange(port, post("/v1/point", ORDINARY))
    assert said.status == 200, said
    return said.json()["points"]


async def throw(port, seed, seen):
    data, kind = hostile(seed)
    reply = await exchange(port, data, leave=SHORT if kind in CUT_OFF else None)
    seen[reply.status] += 1
    assert reply.status or kind in CUT_OFF, (seed, kind)
    if not reply.status:
        return
    assert reply.status < 500, (seed, kind, data[:200], reply)
    assert not any(word in reply.body for word in INTERNALS), (seed, kind, reply)
    if reply.status == 200:
        assert reply.whole, (seed, kind, reply)
    elif reply.status != 431:  # which has no body
        told = reply.json()
        assert told["error"]["message"] and told["error"]["type"] and told["request_id"], (seed, kind, told)
        if kind != "odd_headers":  # among which may be an id of the client's
            assert reply.headers["x-request-id"] == told["request_id"]


async def volley(port, seeds, every, watch=None):
    """Throw them, some at once, and ask an ordinary question after `every` of them. Returns the statuses seen."""
    right, seen = await ordinary(port), collections.Counter()
    for first in range(0, len(seeds), every):
        places = asyncio.Semaphore(AT_ONCE)

        async def placed(seed, places=places):
            async with places:
                await throw(port, seed, seen)

        await asyncio.gather(*(placed(seed) for seed in seeds[first : first + every]))
        assert await ordinary(port) == right
        if watch is not None:
            watch()
    async with asyncio.timeout(30):
        while json.loads((await exchange(port, get("/health"))).body)["requests"]:
            await asyncio.sleep(0.02)
    return seen


def test_malformed_requests_do_no_harm(endpoint):
    seen = asyncio.run(volley(urllib.parse.urlsplit(endpoint).port, range(128), every=64))
    assert {200, 400, 404} <= set(seen), seen


def test_what_is_not_http_is_told_so_in_the_shape_of_all_errors(endpoint):
    port = urllib.parse.urlsplit(endpoint).port
    for data in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"hello\r\n\r\n", b"POST /v1/query HTTP/9.9\r\nA: b\r\n\r\n"):
        reply = asyncio.run(exchange(port, data))
        assert reply.status == 400 and reply.json()["error"]["type"] == "not_http" and reply.whole


@pytest.mark.slow
@needs_linux
@pytest.mark.parametrize("process", ["off", "on"])
def test_s_mem_01_two_thousand_malformed_requests_leave_the_memory_as_it_was(tmp_path, process):
    words = ("--process", process, "--picture-cache", "4MB")  # which is full soon
    server, held = Served("glint", tmp_path / "log", *words), []
    try:
        server.said("curl http://")
        seen = asyncio.run(
            volley(server.port, range(2000), every=250, watch=lambda: held.append(resident(server.process.pid)))
        )
        assert sum(seen.values()) == 2000 and {200, 400, 404, 405, 413, 415} <= set(seen), seen
        assert held[-1] - held[1] < 32 * 2**20, [f"{one / 2**20:.1f} MiB" for one in held]
    finally:
        assert server.end() == 0
    log = server.log.read_text()
    assert "Traceback" not in log and "failed" not in log, log[-3000:]


@pytest.mark.slow
@needs_linux
def test_s_mem_05_large_pictures_at_once_leave_nothing_behind(tmp_path):
    """Twelve of 20 million pixels each, from threads that never saw one before: a few kilobytes on the wire."""
    large = io.BytesIO()
    Image.new("RGB", (5000, 4000), "red").save(large, "PNG")
    body = {"image_url": url(large.getvalue()), "question": "What?", "settings": {"max_tokens": 1}}
    server = Served("glint", tmp_path / "log", "--process", "on")
    try:
        server.said("curl http://")

        async def crowd():
            await ordinary(server.port)
            before = resident(server.process.pid)
            said = await asyncio.gather(*(exchange(server.port, post("/v1/query", body)) for _ in range(12)))
            assert [reply.status for reply in said] == [200] * 12
            await ordinary(server.port)
            return before, resident(server.process.pid)

        before, after = asyncio.run(crowd())
        assert after - before < 48 * 2**20, (before, after)
    finally:
        assert server.end() == 0
