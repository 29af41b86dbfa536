"""`gapless serve --ray` as a person starts it: it begins on a small machine, says what is wrong, and ends whole."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (the extra `ray`)"),
]
ROOT = Path(__file__).resolve().parents[2]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(tmp_path, port, *words):
    """In a session of its own, where Ctrl-C reaches all of it."""
    own = {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT / "src"), "RAY_USAGE_STATS_ENABLED": "0"}
    said = (tmp_path / "said").open("w")
    return subprocess.Popen(
        [sys.executable, "-m", "gapless", "serve", "--ray", "--port", str(port), *words],
        stdout=said,
        stderr=said,
        cwd=tmp_path,
        env=os.environ | own,
        start_new_session=True,
    )


def said(tmp_path):
    return (tmp_path / "said").read_text()


def until(tmp_path, words, serving, patience=120):
    end = time.monotonic() + patience
    while words not in said(tmp_path):
        assert time.monotonic() < end and serving.poll() is None, said(tmp_path)
        time.sleep(0.1)


def of_session(leader):
    """Process ids of its session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


def ask(port, found, **fields):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"question": "Who are you?", **fields}
    connection.request("POST", "/v1/query", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found.append((answer.status, answer.read().decode()))


def test_more_engines_than_cores_begin_and_ctrl_c_lets_requests_end_and_leaves_nothing(tmp_path):
    port = free_port()
    serving = start(tmp_path, port, "--replicas", str((os.cpu_count() or 1) + 1), "--process", "off")
    try:
        until(tmp_path, "ready at", serving)
        found, late = [], []
        long = {"stream": True, "settings": {"min_tokens": 300, "max_tokens": 300, "temperature": 1.0, "seed": 1}}
        asking = [threading.Thread(target=ask, args=(port, found), kwargs=long) for _ in range(3)]
        for thread in asking:
            thread.start()
        time.sleep(1.5)
        os.killpg(serving.pid, signal.SIGINT)
        until(tmp_path, "stopping", serving)
        time.sleep(0.5)
        ask(port, late)
        for thread in asking:
            thread.join(60)
        assert [status for status, _ in found] == [200, 200, 200]
        assert all('"completed":true' in text for _, text in found)
        assert late[0][0] == 503 and "is stopping" in late[0][1]
        assert serving.wait(60) == 0
        assert said(tmp_path).rstrip().endswith("stopped")
        end = time.monotonic() + 20
        while left := of_session(serving.pid):
            assert time.monotonic() < end, left
            time.sleep(0.2)
    finally:
        serving.kill()


def test_a_fleet_that_cannot_start_says_why_and_one_that_starts_can_be_ended(tmp_path):
    serving = start(tmp_path, free_port(), "--adapter", "cats=nowhere")
    try:
        assert serving.wait(120) == 1
        assert "could not be started: the adapter" in said(tmp_path) and "nowhere does not exist" in said(tmp_path)
    finally:
        serving.kill()
    serving = start(tmp_path, free_port())
    try:
        until(tmp_path, "logs are in", serving)
        serving.send_signal(signal.SIGTERM)  # long before it is ready
        assert serving.wait(60) == 0 and "ready at" not in said(tmp_path)
    finally:
        serving.kill()
