"""`gapless serve` as a process: it loads, answers over a socket, and ends as it should. Each server is used by many."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.api.engine_room import until
from tests.serve.conftest import events, png, url
from tests.serve.serving import ENVIRONMENT, PATIENCE, Served

from gapless.cli.main import main

MAPS = Path("/proc/self/maps")
LONG = {"question": "Go on?", "settings": {"max_tokens": 6000, "temperature": 0}}


@pytest.mark.parametrize("process", ["on", pytest.param("off", marks=pytest.mark.slow)])
def test_from_start_to_end(endless_folder, tmp_path, process):
    words = ["--drain-timeout", "30", "--max-rows", "4", "--process", process]
    server = Served(endless_folder, tmp_path / "log", *words)
    try:
        server.said("curl http://")
        assert server.ask("GET", "/health")[0] == 200
        body = {"image_url": url(png(1)), "question": "What?", "settings": {"max_tokens": 5, "temperature": 0}}
        status, whole = server.ask("POST", "/v1/query", body)
        assert status == 200 and json.loads(whole)["metrics"]["output_tokens"] == 5
        status, streamed = server.ask("POST", "/v1/query", body | {"stream": True})
        found = events(streamed.decode())
        assert status == 200 and "".join(e.get("chunk", "") for e in found) == json.loads(whole)["answer"]

        if process == "on" and MAPS.exists():  # no torch beside the server, so no GPU either
            maps = Path(f"/proc/{server.process.pid}/maps").read_text()
            assert "libtorch" not in maps and "libcuda" not in maps
            assert all("libtorch" in Path(f"/proc/{one}/maps").read_text() for one in children(server.process.pid))

        # S-CON-04: resets in a burst, whole and streamed: nothing is left
        for stream in (False, True):
            burst = [server.begin(LONG | {"stream": stream}) for _ in range(12)]
            for connection in burst:
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.close()
        server.until_held(0)

        # S-MET-01, S-MET-02 across the boundary
        found = server.metrics()
        assert found["gapless:request_success_total", "length"] == 2
        assert found["gapless:generation_tokens_total",] >= 10 and found["gapless:engine_up",] == 1
        held = ("num_requests_running", "num_requests_waiting", "kv_pages_used", "steps_in_flight")
        until(lambda: not any(server.metrics()[f"gapless:{name}",] for name in held), "gauges at 0")
        assert server.metrics()["gapless:request_success_total", "abort"] <= 24
        assert server.metrics()["gapless:request_success_total", "error"] == 0

        # S-SHU-01: what runs may end, what comes is told to go elsewhere, and the process ends well
        holding = server.begin(LONG)
        server.until_held(1)
        running = server.begin(LONG | {"stream": True, "settings": {"max_tokens": 400, "temperature": 0}})
        response = running.getresponse()  # its first piece is there
        server.process.send_signal(signal.SIGTERM)
        refused = None
        while refused is None or refused[0] == 200:
            refused = server.ask("GET", "/health")
        assert refused[0] == 503 and server.ask("POST", "/v1/query", body)[0] == 503
        drained = events(response.read().decode())
        assert drained[-1]["completed"] and drained[-1]["metrics"]["output_tokens"] == 400
        assert server.process.poll() is None
        holding.close()
        assert server.process.wait(PATIENCE) == 0
        assert server.process.stdout.read() == b""
        lines = server.log.read_text().splitlines()
        assert "gapless: stopping: 2 requests running, for 30 seconds at most; again to end now" in lines
        told = re.fullmatch(
            r"gapless: answered 3 requests; \d+% of [\d,]+ prompt tokens were .* (\d+) had .*", lines[-2]
        )
        assert told and int(told[1]) < 30 and lines[-1] == "gapless: stopped"
        lines = [line for line in lines if not line.startswith("gapless: ")]
        assert len(lines) > 25 and all(json.loads(line)["request_id"] for line in lines)
    finally:
        server.process.kill()
        server.process.stdout.close()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for a process's children")
def test_an_engine_process_answers_and_its_death_ends_the_server(endless_folder, tmp_path):
    server = Served(endless_folder, tmp_path / "log", "--process", "on")
    try:
        server.said("curl http://")
        body = {"image_url": url(png(1)), "question": "What?", "settings": {"max_tokens": 5, "temperature": 0}}
        status, whole = server.ask("POST", "/v1/query", body)
        assert status == 200 and json.loads(whole)["metrics"]["output_tokens"] == 5
        running = server.begin(LONG)
        server.until_held(1)
        for child in children(server.process.pid):
            os.kill(child, signal.SIGKILL)
        response = running.getresponse()
        assert response.status == 503 and json.loads(response.read())["error"]["type"] == "engine_dead"
        assert server.process.wait(PATIENCE) == 1
        assert "gapless: the engine died" in server.log.read_text()
    finally:
        server.process.kill()
        server.process.stdout.close()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="asks Linux for a disk that is full")
def test_a_full_disk_where_the_log_goes_breaks_nothing(micro_folder, free_port):
    server = Served(micro_folder, Path("/dev/full"), "--process", "off", port=free_port)
    try:
        server.until_ready()
        for _ in range(3):
            assert server.ask("POST", "/v1/query", {"question": "Who?", "settings": {"max_tokens": 3}})[0] == 200
        assert server.ask("POST", "/v1/query", {"question": "Who?", "image_url": "x"})[0] == 400
        server.ask("GET", "/nothing")
    finally:
        assert server.end() == 0


def children(pid):
    """The processes that this one has started and that still run."""
    found = [
        int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()
    ]
    assert found
    return found


@pytest.mark.slow
def test_s_shu_02_what_outlasts_the_drain_is_ended_and_told(endless_folder, tmp_path, free_port):
    server = Served(endless_folder, tmp_path / "log", "--drain-timeout", "0.3", "--host", "0.0.0.0", port=free_port)
    try:
        server.said("asks for no key: set GAPLESS_API_KEYS_FILE")
        here = f"http://127.0.0.1:{free_port}"
        server.said(f"ready at http://0.0.0.0:{free_port}/v1; open {here} in a browser; try: curl {here}/v1/query")
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as silent:
            silent.sendall(b"POST /v1/query HTTP/1.1\r\nHost: a\r\n")  # never finishes its headers
            half = server.begin_half(LONG)
            running = server.begin(LONG)
            server.until_held(2)
            assert server.end() == 0
            for one in (running, half):
                response = one.getresponse()
                said = json.loads(response.read())
                assert response.status == 503 and "stopped before" in said["error"]["message"] and said["request_id"]
        assert "Traceback" not in server.log.read_text()
    finally:
        server.process.kill()


def test_s_sta_02_a_port_that_is_taken_is_told_before_anything_is_loaded(endless_folder, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", str(endless_folder), "--port", str(taken.getsockname()[1])]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "choose another --port" in err


@pytest.mark.slow
def test_a_model_that_does_not_exist_ends_the_process(tmp_path):
    command = [sys.executable, "-m", "gapless", "serve", str(tmp_path / "none"), "--port", "0"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1 and b"could not be loaded" in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--help"]])
def test_help_needs_no_server_packages(words):
    code = "import sys; sys.modules.update(dict.fromkeys(['fastapi', 'uvicorn', 'pydantic_settings', 'yaml']))\n"
    code += f"from gapless.cli.main import main; sys.exit(main(['serve', *{words!r}]))"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0 and b"GAPLESS_NAME" in done.stdout
