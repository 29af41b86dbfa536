"""Five hundred mixed requests a round, sixty-four at once, against a server whose answers are known beforehand: some
clients leave, some deadlines are short. Nothing is lost or swapped, nothing is left, and memory does not grow."""

import asyncio
import json
import random
import re
from pathlib import Path

import pytest
from tests.fakes.micro import write_micro
from tests.serve.conftest import png, url
from tests.serve.hash_answers import Oracle
from tests.serve.hash_server import HashServed, resident
from tests.serve.raw_http import exchange, post

ROUNDS, REQUESTS, AT_ONCE = 5, 500, 64
GROWTH = 32 * 2**20
LEAVES, DEADLINE = 0.2, 0.1
TEXT = {"query": "answer", "caption": "caption", "segment": "path"}

needs_linux = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="asks Linux for its memory")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_micro(tmp_path_factory.mktemp("models") / "hash", max_context=512)


@pytest.fixture(scope="module")
def oracle(folder):
    return Oracle(folder)


PICTURES = [url(png(seed, 8 + 7 * seed, 90 - 3 * seed)) for seed in range(24)]


def made(rng, number):
    """A request of any kind that no other is like: its route and its body."""
    route = rng.choice(["query", "query", "text", "caption", "point", "detect", "segment"])
    settings = {"max_tokens": rng.choice([1, 3, 8, 20, 40]), "seed": number, "temperature": rng.choice([0, 0.7, 1.4])}
    body = {"settings": settings}
    if route != "text":
        body["image_url"] = rng.choice(PICTURES)
    if route in ("query", "text"):
        body["question"] = f"What is number {number}?"
    elif route == "caption":
        body["length"] = rng.choice(["short", "normal", "long"])
    else:
        body["object"] = f"thing {number}"
    route = "query" if route == "text" else route
    if route in TEXT:
        body["stream"] = rng.random() < 0.5
    return route, body


def judge(reply, route, body, right, tokens, hurried):
    """The whole right answer; or, where there was a deadline, a beginning of it and the error that says so."""
    if reply.headers["content-type"].startswith("text/event-stream"):
        return judge_events(reply, route, right, tokens, hurried)
    told = reply.json()
    assert reply.whole
    if reply.status == 504:
        assert hurried and told["error"]["type"] == "request_timeout"
        return False
    assert reply.status == 200, told
    assert {key: told[key] for key in right} == right, body
    assert told["metrics"]["output_tokens"] == tokens
    return True


def judge_events(reply, route, right, tokens, hurried):
    """S-CON-17: pieces in order, and one end behind them."""
    events = reply.events()
    said = "".join(event.get("chunk", "") for event in events)
    if "error" in events[-1]:
        assert hurried and events[-1]["error"]["type"] == "request_timeout" and not reply.whole
        assert right[TEXT[route]].startswith(said)
        return False
    assert reply.whole and [event["completed"] for event in events].count(True) == 1 and events[-1]["completed"]
    if route != "segment":
        assert said == right[TEXT[route]]
    else:
        assert (events[-1]["path"], events[-1]["bbox"]) == (right["path"], right["bbox"])
    assert events[-1]["finish_reason"] == right["finish_reason"]
    assert events[-1]["metrics"]["output_tokens"] == tokens
    return True


async def one(port, oracle, rng, number, counts):
    route, body = made(rng, number)
    leaves, hurried = rng.random() < LEAVES, rng.random() < DEADLINE
    right, tokens = oracle(route, body)
    if hurried:
        body["settings"]["timeout"] = rng.uniform(0.001, 0.4)
    data = post(f"/v1/{route}", body, X_Request_Id=f"mine-{number}")
    if leaves:
        counts["left"] += 1
        await exchange(port, data, leave=rng.uniform(0.0, 0.5), first=rng.choice([None, 1, 200]))
        return
    reply = await exchange(port, data)
    assert reply.headers["x-request-id"] == f"mine-{number}"
    counts["answered" if judge(reply, route, body, right, tokens, hurried) else "late"] += 1


async def crowd(port, oracle, seed, counts):
    """One round."""
    rng, places = random.Random(seed), asyncio.Semaphore(AT_ONCE)

    async def placed(number):
        async with places:
            await one(port, oracle, rng, number, counts)

    await asyncio.gather(*(placed(seed * REQUESTS + i) for i in range(REQUESTS)))


def assert_empty(server):
    """No row, page or step is taken, and nobody waits."""
    text = server.ask("GET", "/metrics")[1].decode()
    found = dict(re.findall(r"^gapless:(\w+)(?:{[^}]*})? (\S+)$", text, flags=re.M))
    gauges = ("num_requests_running", "num_requests_waiting", "kv_pages_used", "steps_in_flight", "http_requests_held")
    assert {name: float(found[name]) for name in gauges} == dict.fromkeys(gauges, 0.0)


@pytest.mark.slow
@needs_linux
@pytest.mark.parametrize("process", ["off", "on"])
def test_a_crowd_gets_its_own_answers_and_leaves_nothing(folder, oracle, tmp_path, process):
    server = HashServed(folder, tmp_path / "log", "--process", process, "--max-rows", "16")
    held = []
    try:
        server.said("curl http://")
        for seed in range(ROUNDS):
            counts = dict.fromkeys(("answered", "late", "left"), 0)
            asyncio.run(crowd(server.port, oracle, seed, counts))
            server.until_held(0)
            assert_empty(server)
            held.append(resident(server.process.pid))
            assert sum(counts.values()) == REQUESTS
            assert counts["answered"] > REQUESTS * 0.6 and counts["left"] > 60 and counts["late"]
        assert held[4] - held[1] < GROWTH, [f"{one / 2**20:.1f} MiB" for one in held]
    finally:
        assert server.end() == 0
    lines = [line for line in server.log.read_text().splitlines() if not line.startswith("gapless: ")]
    assert len(lines) >= ROUNDS * REQUESTS * 0.9 and all(json.loads(line)["request_id"] for line in lines)
