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
from tests.serve.hash_answers import CHAT, Oracle
from tests.serve.hash_server import HashServed, resident
from tests.serve.raw_http import DONE, exchange, post

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
    route = rng.choice(["query", "query", "text", "caption", "point", "detect", "segment", CHAT, CHAT])
    settings = {"max_tokens": rng.choice([1, 3, 8, 20, 40]), "seed": number, "temperature": rng.choice([0, 0.7, 1.4])}
    if route == CHAT:
        return route, conversation(rng, number) | settings
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


def conversation(rng, number):
    """One turn or two, each with up to two pictures; some streamed, some with a reasoning."""
    turns = []
    for turn in range(rng.choice([1, 1, 2])):
        shown = rng.sample(PICTURES, rng.choice([0, 1, 2]))
        parts = [{"type": "image_url", "image_url": {"url": one}} for one in shown]
        text = {"type": "text", "text": f"What is number {number}?"}
        turns += [{"role": "assistant", "content": "That."}] * turn + [{"role": "user", "content": [*parts, text]}]
    wishes = {"stream": True, "stream_options": {"include_usage": True}} if rng.random() < 0.5 else {}
    return {"messages": turns, "reasoning": rng.random() < 0.2} | wishes


def hurry(route, body, seconds):
    """Set a deadline."""
    (body if route == CHAT else body["settings"])["timeout"] = seconds


def is_hurried(body):
    return "timeout" in body or "timeout" in body.get("settings", ())


def judge(reply, route, body, right, tokens, hurried):
    """The whole right answer; or, where there was a deadline, a beginning of it and the error that says so."""
    if reply.headers["content-type"].startswith("text/event-stream"):
        events = reply.events()
        if "error" in events[-1]:
            assert hurried and kind_of(events[-1]) == "request_timeout" and not reply.whole
            assert begun_right(route, events, right)
            return False
        assert reply.whole
        (judge_chunks if route == CHAT else judge_events)(events, route, right, tokens)
        return True
    told = reply.json()
    assert reply.whole
    if reply.status == 504:
        assert hurried and kind_of(told) == "request_timeout"
        return False
    assert reply.status == 200, told
    if route == CHAT:
        (choice,) = told["choices"]
        assert choice["message"] == right["message"] | {"refusal": None}, body
        assert choice["finish_reason"] == right["finish_reason"]
        assert told["usage"]["completion_tokens"] == tokens
    else:
        assert {key: told[key] for key in right} == right, body
        assert told["metrics"]["output_tokens"] == tokens
    return True


def kind_of(told):
    """The exact kind of an error, in either shape."""
    return told["error"].get("code") or told["error"]["type"]


def said(route, events):
    """What a stream has said of an answer."""
    if route != CHAT:
        return "".join(event.get("chunk", "") for event in events)
    deltas = [choice["delta"] for event in events if "choices" in event for choice in event["choices"]]
    return "".join(delta.get("content", "") for delta in deltas)


def begun_right(route, events, right):
    """Whether a stream that broke off had said a beginning of the right answer."""
    whole = right["message"]["content"] if route == CHAT else right[TEXT[route]]
    return whole.startswith(said(route, events))


def judge_events(events, route, right, tokens):
    """S-CON-17: pieces in order, and one end behind them."""
    assert [event["completed"] for event in events].count(True) == 1 and events[-1]["completed"]
    if route != "segment":
        assert said(route, events) == right[TEXT[route]]
    else:
        assert (events[-1]["path"], events[-1]["bbox"]) == (right["path"], right["bbox"])
    assert events[-1]["finish_reason"] == right["finish_reason"]
    assert events[-1]["metrics"]["output_tokens"] == tokens


def judge_chunks(events, route, right, tokens):
    """S-CON-17, in OpenAI's shape."""
    *chunks, end, usage, done = events
    assert done == DONE and usage["usage"]["completion_tokens"] == tokens
    assert end["choices"][0]["finish_reason"] == right["finish_reason"]
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    message = right["message"]
    assert said(route, chunks) == message["content"]
    if "reasoning" in message:
        assert chunks[1]["choices"][0]["delta"]["reasoning"] == message["reasoning"]


async def one(port, oracle, rng, number, counts):
    route, body = made(rng, number)
    leaves, hurried = rng.random() < LEAVES, rng.random() < DEADLINE
    right, tokens = oracle(route, body)
    if hurried:
        hurry(route, body, rng.uniform(0.001, 0.4))
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
