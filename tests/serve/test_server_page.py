"""The examples of docs/server.md work as they stand, but for the port."""

import json
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from gapless.bench.mix import picture_path

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "server.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.S | re.M)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(picture_path("shapes_square"), "photo.png")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("text", [text for text in blocks("sh") if "curl" in text])
def test_curl_lines(text, endpoint):
    line = text.replace("http://127.0.0.1:2020/v1", endpoint)
    done = subprocess.run(
        ["sh", "-c", line.replace("curl", "curl --silent --show-error")], capture_output=True, check=True
    )
    answer = json.loads(done.stdout)
    assert answer.get("answer") or len(answer["points"]) == 2


@pytest.mark.skipif(find_spec("moondream") is None, reason="pip install --no-deps moondream==2.6.1")
def test_the_clients_block(endpoint, capsys):
    (text,) = blocks("py")
    exec(compile(text.replace("http://127.0.0.1:2020/v1", endpoint), "block", "exec"), {})
    first, rest = capsys.readouterr().out.split("\n", 1)
    assert first.isdigit() and len(rest.split()) > 3


def test_the_command_is_one():
    from gapless.cli.main import app

    lines = [shlex.split(text) for text in blocks("sh") if "curl" not in text]
    assert lines == [["gapless", "serve", "glint"]]
    assert "serve" in {command.name for command in app.registered_commands}


def test_what_http_costs_is_as_measured():
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "h200" / "serve-moondream2.json"
    report = json.loads(path.read_text())
    pairs = list(zip(report["rows"][::2], report["rows"][1::2], strict=True))
    assert [library["concurrency"] for library, _ in pairs] == [1, 16, 64, 128]
    for library, http in pairs:
        rates = f"| {library['concurrency']} | {library['requests_per_s']:.1f} | {http['requests_per_s']:.1f} |"
        assert rates in PAGE and f"| {100 * http['overhead']:+.0f} % |" in PAGE
    quiet, busy = (row["step_ms"] for row in report["streams"])
    assert f"({quiet:.2f} → {busy:.2f} ms)" in PAGE and busy / quiet < 1.002
