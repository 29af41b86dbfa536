"""/openapi.json against the server it describes: no 5xx, no status and no shape that is not in it."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from tests.serve.conftest import Site
from tests.serve.serving import ENVIRONMENT, ROOT, Served

STATUSES = {"400", "401", "404", "405", "408", "413", "415", "429", "431", "500", "501", "503", "504"}


def document(site):
    return site.ask("GET", "/openapi.json").json()


def test_every_route_tells_its_errors_and_their_shape(site):
    found = document(site)
    for path, methods in found["paths"].items():
        for method, route in methods.items():
            told = set(route["responses"])
            assert told >= (STATUSES | {"200"} if method == "post" else {"200"}), (path, told)
            for status in told - {"200"}:
                if path == "/health" and status == "503":
                    continue
                (shape,) = route["responses"][status]["content"].values()
                assert shape["schema"]["$ref"].endswith("ErrorAnswer"), (path, status)


def test_settings_and_messages_have_types_and_looks_are_not_limited(site):
    from gapless.skills.messages import ROLES
    from gapless.skills.settings import Settings

    paths = document(site)["paths"]

    def field(path, name):
        return paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"][name]

    assert set(field("/v1/point", "settings")["anyOf"][0]["properties"]) == set(Settings.__slots__)
    message = field("/v1/chat/completions", "messages")["items"]
    assert message["properties"]["role"]["enum"] == list(ROLES) and message["required"] == ["role", "content"]
    for methods in paths.values():
        assert "get" not in methods or "429" not in methods["get"]["responses"]
        assert all("431" in route["responses"] for route in methods.values())


def test_keys_are_told_where_they_are_asked_for(site, vlm):
    locked = Site(vlm, keys=("one",)).ask("GET", "/openapi.json", headers={"x-moondream-auth": "one"}).json()
    assert locked["components"]["securitySchemes"]["bearer"] == {"type": "http", "scheme": "bearer"}
    assert locked["security"] == [{"bearer": []}, {"moondream": []}]
    assert [path for path, methods in locked["paths"].items() if methods.get("get", {}).get("security") == []] == [
        "/health"
    ]
    assert "security" not in document(site)


@pytest.mark.parametrize(
    ("status", "method", "path", "body"),
    [
        (400, "POST", "/v1/query", {}),
        (404, "POST", "/v1/query", {"question": "a", "model": "other"}),
        (405, "GET", "/v1/caption", None),
        (415, "POST", "/v1/point", None),
    ],
)
def test_what_is_told_has_the_shape_that_is_told(site, status, method, path, body):
    said = site.ask(method, path, json=body)
    assert said.status_code == status
    shapes = document(site)["components"]["schemas"]
    answer = said.json()
    assert set(answer) == set(shapes["ErrorAnswer"]["required"])
    assert set(shapes["Said"]["required"]) <= set(answer["error"]) <= set(shapes["Said"]["properties"])


CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "negative_data_rejection",
)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("schemathesis") is None, reason="schemathesis is not installed: pip install schemathesis")
def test_requests_made_from_the_document(tmp_path):
    """Right and wrong ones; the server must answer an ordinary one afterwards and end well."""
    server = Served("glint", tmp_path / "log", "--process", "on")
    try:
        server.said("curl http://")
        words = [f"http://127.0.0.1:{server.port}/openapi.json", "--phases", "examples,coverage,fuzzing"]
        words += ["--max-examples", "25", "--seed", "1", "--checks", ",".join(CHECKS), "--continue-on-failure"]
        environment = ENVIRONMENT | {"SCHEMATHESIS_HOOKS": "tests.serve.openapi_hooks"}
        environment["PYTHONPATH"] += os.pathsep + str(ROOT)
        command = [sys.executable, "-m", "schemathesis.cli", "run", *words]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=False, timeout=600)
        assert done.returncode == 0, done.stdout.decode()[-6000:]
        assert server.ask("POST", "/v1/query", {"question": "Who are you?"})[0] == 200
        assert json.loads(server.ask("GET", "/health")[1])["requests"] == 0
    finally:
        assert server.end() == 0
