"""A server as a process of its own, for tests that need a socket or a signal."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
PATIENCE = 60.0
HEADERS = {"Content-Type": "application/json"}


class Served:
    """A running server; its standard error goes to a file. One process, unless `words` say otherwise: it is quicker."""

    def __init__(self, folder: Path | str, log: Path, *words: str, port: int = 0) -> None:
        """`port`: one that is free, for a log that cannot be read."""
        self.log = log
        words = words if "--process" in words else ("--process", "off", *words)
        command = [sys.executable, "-m", "gapless", "serve", str(folder), "--port", str(port), *words]
        with log.open("wb") as err:
            self.process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=err)
        self.port = port or int(self.said("http://127.0.0.1:").partition("/")[0])

    def said(self, words: str) -> str:
        """What follows these words in the log, as soon as they are there."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            ended = self.process.poll() is not None  # before the look: what it said at its end counts
            _, found, rest = self.log.read_text().partition(words)
            if found and "\n" in rest:
                return rest
            if ended:
                code = self.process.returncode
                raise AssertionError(f"the server ended with {code} and did not say {words!r}: {self.log.read_text()}")
            time.sleep(0.02)
        raise AssertionError(f"{words!r} was not said: {self.log.read_text()}")

    def until_ready(self) -> None:
        """Wait until /health says so."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                if self.ask("GET", "/health")[0] == 200:
                    return
            except ConnectionRefusedError:
                pass
            assert time.monotonic() < end and self.process.poll() is None, "the server did not begin"
            time.sleep(0.02)

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Samples of /metrics by name and labels but the model's."""
        status, text = self.ask("GET", "/metrics")
        assert status == 200
        return {
            (sample.name, *(value for name, value in sample.labels.items() if name != "model_name")): sample.value
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
        }

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), HEADERS)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def begin(self, body: object) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("POST", "/v1/query", json.dumps(body), HEADERS)
        return connection

    def begin_half(self, body: object) -> http.client.HTTPConnection:
        """A request whose body stops in its middle."""
        data = json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("POST", "/v1/query", data[:-5], HEADERS | {"Content-Length": str(len(data))})
        return connection

    def until_held(self, requests: int) -> None:
        end = time.monotonic() + PATIENCE
        while (held := json.loads(self.ask("GET", "/health")[1])["requests"]) != requests:
            assert time.monotonic() < end, f"{held} requests are held, not {requests}"
            time.sleep(0.02)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.stdout.close()
