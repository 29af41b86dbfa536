"""Engines killed, steps that raise, memory that runs out, signals under load: who is told what, and the exit code.

Each server is one with known answers; a crowd of requests is inside when the fault comes. Nothing here may hang: each
wait has its end."""

import asyncio
import collections
import os
import random
import signal
import socket
import time
from pathlib import Path

import pytest
from tests.fakes.micro import write_micro
from tests.serve.hash_answers import Oracle
from tests.serve.hash_server import HashServed, children
from tests.serve.raw_http import exchange, get, post
from tests.serve.serving import PATIENCE, Served
from tests.serve.test_load_served import begun_right, judge, kind_of, made, needs_linux

from gapless.cli.main import main

pytestmark = needs_linux
CROWD = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_micro(tmp_path_factory.mktemp("models") / "hash", max_context=512)


@pytest.fixture(scope="module")
def oracle(folder):
    return Oracle(folder)


@pytest.fixture
def serve(folder, tmp_path):
    """Starts servers, and ends those that a test leaves."""
    servers = []

    def start(manner, *words, ready=True):
        servers.append(HashServed(folder, tmp_path / f"log{len(servers)}", *words, manner=manner))
        if ready:
            servers[-1].said("curl http://")
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()
        server.process.stdout.close()


def verdict(reply, route, body, oracle):
    """How a request of a struck crowd ended: right, or the type of its error. Anything else is a failure here."""
    assert reply.status, "no answer at all"
    if reply.headers["content-type"].startswith("text/event-stream"):
        events = reply.events()
        if "error" in events[-1]:
            assert not reply.whole and sum("error" in event for event in events) == 1
            assert begun_right(route, events, oracle(route, body)[0])
            return told(events[-1])
    elif reply.status != 200:
        assert reply.whole
        return told(reply.json())
    assert judge(reply, route, body, *oracle(route, body), False)
    return "right"


def told(answer):
    assert "secret" not in str(answer)
    return kind_of(answer)


async def crowd(server, oracle, strike, first=0):
    """Forty requests at once; `strike` is awaited when all are inside. Returns how each ended, counted."""
    rng = random.Random(first)
    bodies = [made(rng, first + i) for i in range(CROWD)]
    asking = [asyncio.create_task(exchange(server.port, post(f"/v1/{route}", body))) for route, body in bodies]
    await strike()
    async with asyncio.timeout(PATIENCE):
        replies = await asyncio.gather(*asking)
    return collections.Counter(verdict(reply, *one, oracle) for reply, one in zip(replies, bodies, strict=True))


async def inside(server, at_least):
    async with asyncio.timeout(PATIENCE):
        while (await exchange(server.port, get("/health"))).json()["requests"] < at_least:
            await asyncio.sleep(0.01)


async def no_strike():
    pass


@pytest.mark.slow
def test_an_engine_that_is_killed_under_load(serve, oracle):
    """/health is 503 or nobody is there any more; everybody inside is told; exit code 1."""
    server = serve("slow:20", "--process", "on")
    seen = []

    async def strike():
        await inside(server, CROWD)
        for child in children(server.process.pid):
            os.kill(child, signal.SIGKILL)
        end = time.monotonic() + PATIENCE
        try:
            while time.monotonic() < end:
                seen.append((await exchange(server.port, get("/health"))).status)
                await asyncio.sleep(0.01)
        except (ConnectionError, AssertionError):
            pass  # the process has ended

    ends = asyncio.run(crowd(server, oracle, strike))
    assert ends["engine_dead"] > CROWD / 2 and set(ends) <= {"engine_dead", "right"}, ends
    assert server.process.wait(PATIENCE) == 1
    assert set(seen) <= {200, 503} and seen == sorted(seen), "it was well again after its engine's death"
    assert "gapless: the engine died" in server.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("process", ["off", "on"])
@pytest.mark.parametrize("fault", ["fails", "oom"])
def test_an_exception_in_one_step_fails_those_on_it_and_nobody_else(serve, oracle, fault, process):
    """A bug in a kernel, and a device that has no memory for one step."""
    server = serve(f"slow:3 {fault}:20", "--process", process, "--max-rows", "6")
    ends = asyncio.run(crowd(server, oracle, no_strike))
    assert set(ends) == {"request_failed", "right"} and 1 <= ends["request_failed"] <= 6, ends
    assert asyncio.run(crowd(server, oracle, no_strike, first=1000)) == {"right": CROWD}
    assert server.end() == 0
    assert "secret" in server.log.read_text(), "the log does not have the reason"


@pytest.mark.slow
@pytest.mark.parametrize("process", ["off", "on"])
def test_a_machine_without_memory_ends_the_server_and_everybody_is_told(serve, oracle, process):
    server = serve("slow:3 memory:20", "--process", process, "--max-rows", "6")
    ends = asyncio.run(crowd(server, oracle, no_strike))
    assert set(ends) <= {"engine_dead", "right"} and ends["engine_dead"] > 6, ends
    assert server.process.wait(PATIENCE) == 1
    assert "gapless: the engine died" in server.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("process", ["off", "on"])
def test_s_shu_01_sigterm_under_load_lets_all_inside_finish(serve, oracle, process):
    """Whoever comes later is told 503 and when to ask again; exit code 0."""
    server = serve("slow:20", "--process", process, "--drain-timeout", "60")
    late = []

    async def strike():
        await inside(server, CROWD)
        server.process.send_signal(signal.SIGTERM)
        while not late or late[-1].status == 200:
            late.append(
                await exchange(server.port, post("/v1/query", {"question": "a", "settings": {"max_tokens": 1}}))
            )

    assert asyncio.run(crowd(server, oracle, strike)) == {"right": CROWD}
    assert late[-1].status == 503 and int(late[-1].headers["retry-after"]) >= 1
    assert late[-1].json()["error"]["type"] == "not_serving"
    assert server.process.wait(PATIENCE) == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("process", ["off", "on"])
def test_s_shu_02_a_second_sigterm_ends_the_wait(serve, oracle, process):
    """Cut streams end with an error event and a broken body, the others with 503; exit code 0."""
    server = serve("slow:60", "--process", process, "--drain-timeout", "3600")

    async def strike():
        await inside(server, CROWD)
        server.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            while (await exchange(server.port, get("/health"))).status == 200:
                await asyncio.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)

    ends = asyncio.run(crowd(server, oracle, strike))
    assert set(ends) <= {"engine_closed", "right"} and ends["engine_closed"] > CROWD / 2, ends
    assert server.process.wait(PATIENCE) == 0


@pytest.mark.slow
@pytest.mark.parametrize("process", ["off", "on"])
def test_sigterm_while_loading_ends_at_once(serve, process):
    server = serve("loads:3600", "--process", process, ready=False)
    while (health := server.ask("GET", "/health"))[0] != 503 or b"loading" not in health[1]:
        time.sleep(0.01)
    assert server.ask("POST", "/v1/query", {"question": "a"})[0] == 503
    if process == "on":
        until(lambda: children(server.process.pid), "an engine process")
    started = children(server.process.pid)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 0
    until(lambda: not any(Path(f"/proc/{one}").exists() for one in started), "the end of the engine's process")
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_s_sta_05_and_06_an_engine_that_ends_while_it_loads_ends_the_server_and_says_how(serve):
    """As when the system kills it because the weights do not fit in memory."""
    server = serve("loads:3600", "--process", "on", ready=False)
    until(lambda: children(server.process.pid), "an engine process")
    for child in children(server.process.pid):
        os.kill(child, signal.SIGKILL)
    assert server.process.wait(PATIENCE) == 1
    last = [line for line in server.log.read_text().splitlines() if line.startswith("gapless: ")][-1]
    assert "could not be loaded" in last and "SIGKILL" in last


@pytest.mark.slow
@pytest.mark.parametrize("process", ["off", "on"])
@pytest.mark.parametrize("wrong", ["device", "weights"])
def test_s_sta_06_what_cannot_start_says_why(folder, tmp_path, process, wrong):
    """No GPU, or a file that is not what it should be: one line with the reason, exit code 1."""
    if wrong == "weights":
        folder = write_micro(tmp_path / "damaged")
        (folder / "model.safetensors").write_bytes(b"\x80\x04no weights")
    words = ["--device", "cuda" if wrong == "device" else "cpu", "--process", process]
    server = Served(folder, tmp_path / "log", *words)
    try:
        assert server.process.wait(PATIENCE) == 1
    finally:
        server.end()
    log = server.log.read_text()
    told = [line for line in log.splitlines() if line.startswith("gapless: the model could not be loaded: ")]
    assert len(told) == 1 and ("cuda" if wrong == "device" else "model.safetensors") in told[0], log
    assert "Traceback" not in log


@pytest.mark.slow
def test_s_shu_03_an_engine_does_not_outlive_a_front_process_that_is_killed(serve):
    server = serve("slow:20", "--process", "on")
    running = server.begin({"question": "Go on?", "settings": {"max_tokens": 400}})
    server.until_held(1)
    started = children(server.process.pid)
    assert started
    server.process.kill()
    server.process.wait()
    until(lambda: not any(Path(f"/proc/{one}").exists() for one in started), "the end of the engine's process")
    running.close()


def test_s_sta_01_a_second_server_on_the_port_of_a_first_is_refused_at_once(endpoint, capsys):
    """And the first one still has it."""
    port = endpoint.rpartition(":")[2].partition("/")[0]
    assert main(["serve", "glint", "--port", port]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and f"port {port}" in err
    with socket.create_connection(("127.0.0.1", int(port)), PATIENCE) as open_still:
        open_still.sendall(get("/health"))
        assert open_still.recv(100).startswith(b"HTTP/1.1 200")


def until(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.02)
