"""Where settings come from, which source wins, and what a wrong one is told."""

import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import gapless
from gapless.cli.main import main
from gapless.cli.serve import serve
from gapless.config import ImageLimits, Opening
from gapless.errors import InvalidRequest
from gapless.serve.limits import RequestLimits
from gapless.serve.process import is_local, load_model, reached_here
from gapless.serve.settings import ServerSettings, read_settings, unknown_variables

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith("GAPLESS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "server.yaml"
    path.write_text("port: 1\nhost: 0.0.0.0\nmodel: mine\nmax_rows: 8\n")
    return path


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(file, monkeypatch):
    monkeypatch.setenv("GAPLESS_PORT", "2")
    monkeypatch.setenv("GAPLESS_HOST", "::1")
    monkeypatch.setenv("GAPLESS_CACHE", "/not/a/setting/of/the/server")
    found = read_settings({"port": 3}, file)
    assert (found.port, found.host, found.model, found.max_rows, found.depth) == (3, "::1", "mine", 8, 2)


def test_a_variable_may_name_the_file(file, monkeypatch):
    monkeypatch.setenv("GAPLESS_CONFIG", str(file))
    assert read_settings({}).model == "mine"


def test_settings_yield_the_dataclasses_of_the_rooms():
    found = read_settings({"max_pixels": 5, "max_body_bytes": 6, "body_timeout": 7, "request_timeout": 8})
    assert found.image_limits() == ImageLimits(max_pixels=5, max_bytes=6)
    assert found.request_limits() == RequestLimits(6, 7.0, 8.0, 30.0)


def test_what_concerns_the_model_has_the_names_and_defaults_of_load():
    """So one dataclass carries all of it: every field of it is a setting, and every argument of `load` is in it."""
    assert read_settings({}).opening() == Opening()
    given = {"model": "m", "device": "cpu", "dtype": "float16", "depth": 3, "max_rows": 4, "page_size": 5, "pages": 6}
    given |= {"constraints": "host", "threads": 7, "revision": "r", "graphs": False}
    given |= {"adapters": {"a": "/b"}, "max_adapters": 8, "max_adapter_rank": 9, "max_context": 99}
    given |= {"kv_memory": 10**9, "prefix_cache": False, "picture_cache_host": 10**8, "max_step_ms": 5.0}
    given |= {"kv_dtype": "fp8", "grammars": 7, "grammar_memory": 2**20}
    assert set(given) == {field.name for field in fields(Opening)}
    assert read_settings(given).opening() == Opening(**given | {"adapters": (("a", "/b"),)})
    assert read_settings({"adapters": "a=/b, c=/d"}).opening().adapters == (("a", "/b"), ("c", "/d"))
    arguments = inspect.signature(gapless.load).parameters
    assert set(arguments) == set(given) | {"image_limits", "progress", "process", "picture_cache"}
    same = [field for field in fields(Opening) if field.name != "adapters"]
    assert all(arguments[field.name].default == field.default for field in same)


def test_memory_may_be_told_in_words(tmp_path, monkeypatch):
    file = tmp_path / "server.yaml"
    file.write_text("kv_memory: 2 GiB\nprefix_cache: false\npicture_cache: 0\npicture_cache_host: 1GB\n")
    assert read_settings({}, file).picture_cache == 0 and read_settings({"picture_cache": "1kb"}).picture_cache == 1000
    assert read_settings({}, file).opening() == Opening(kv_memory=2**31, prefix_cache=False, picture_cache_host=10**9)
    monkeypatch.setenv("GAPLESS_KV_MEMORY", "1.5GB")
    assert read_settings({}, file).kv_memory == 1_500_000_000
    assert read_settings({"grammar_memory": "128MiB"}).grammar_memory == 2**27


def test_settings_of_the_door():
    found = read_settings({"rate_limit": 2.5, "decode_threads": 3})
    assert (found.rate()._rate, found.rate()._burst, found.threads_for_pictures()) == (2.5, 3, 3)
    assert read_settings({}).rate() is None and 1 <= read_settings({}).threads_for_pictures() <= 8
    assert read_settings({"rate_limit": 0.1, "rate_burst": 9}).rate()._burst == 9


def test_all_settings_of_the_model_reach_it(micro_folder):
    class Seen:
        def show(self, doing, done, total):
            assert doing == "MB of weights", "a CPU captures nothing"

    given = {"model": str(micro_folder), "device": "cpu", "max_rows": 3, "pages": 40, "depth": 1, "page_size": 8}
    given["process"] = False
    with load_model(read_settings(given), Seen()) as vlm:
        pages = vlm.desk.runner._engine.ledgers.pages
        assert vlm.desk.rows == 3 and pages.page_size == 8
        assert vlm.desk._limits == ImageLimits(max_bytes=32 * 2**20)


def test_keys_come_from_the_environment_and_a_file(tmp_path, monkeypatch):
    keys = tmp_path / "keys"
    keys.write_text("# ours\n\none\n two \n")
    monkeypatch.setenv("GAPLESS_API_KEYS", "three, four,")
    found = read_settings({"api_keys_file": keys})
    assert found.keys() == ("three", "four", "one", "two")
    assert "three" not in repr(found)
    keys.write_text("# none\n")
    with pytest.raises(InvalidRequest, match="holds no key"):
        read_settings({"api_keys_file": keys}).keys()
    with pytest.raises(InvalidRequest, match="api_keys_file"):
        read_settings({"api_keys_file": tmp_path / "missing"}).keys()


@pytest.mark.parametrize("given", ["", " , "])
def test_keys_that_are_set_but_empty_open_no_server(given, tmp_path, monkeypatch):
    """N-A2: an empty variable is a mistake, not a wish to serve everybody."""
    monkeypatch.setenv("GAPLESS_API_KEYS", given)
    with pytest.raises(InvalidRequest, match=r"^GAPLESS_API_KEYS: holds no key; .* leave the setting out"):
        read_settings({})
    monkeypatch.delenv("GAPLESS_API_KEYS")
    file = tmp_path / "server.yaml"
    for text in ("api_keys: []", "api_keys:", "api_keys: ['']", "api_keys: ''"):
        file.write_text(text)
        with pytest.raises(InvalidRequest, match=r"^api_keys in .*server.yaml: holds no key"):
            read_settings({}, file)


def test_a_relative_file_of_keys_lies_beside_the_file_that_names_it(tmp_path, monkeypatch):
    (tmp_path / "keys").write_text("one\n")
    file = tmp_path / "server.yaml"
    monkeypatch.chdir("/")
    for named in ("keys", tmp_path / "keys"):
        file.write_text(f"api_keys_file: {named}\n")
        assert read_settings({}, file).keys() == ("one",)
    with pytest.raises(InvalidRequest, match="cannot read keys"):
        read_settings({"api_keys_file": "keys"}, file).keys()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("port", 70000, ["65535", "got 70000"]),
        ("max_requests", 0, ["greater than or equal to 1", "got 0"]),
        ("request_timeout", "soon", ["'soon'"]),
        ("constraints", "x", ["'device'"]),
        ("adapters", "moon", ["write NAME=PATH", "got 'moon'"]),
        ("kv_memory", "much", ["8GB or 8GiB", "got 'much'"]),
    ],
)
def test_a_wrong_setting_is_told_by_the_name_that_was_used(name, value, words, tmp_path, monkeypatch):
    file = tmp_path / "server.yaml"
    file.write_text(f"{name}: {value}\n")

    def told(flags):
        with pytest.raises(InvalidRequest) as raised:
            read_settings(flags, file)
        assert all(word.replace("got ", "") in str(raised.value) for word in words) and raised.value.param == name
        return str(raised.value).partition(": ")[0]

    assert told({}) == f"{name} in {file}"
    monkeypatch.setenv(f"GAPLESS_{name.upper()}", str(value))
    assert told({}) == f"GAPLESS_{name.upper()}"
    assert told({name: value}) == ("--adapter" if name == "adapters" else f"--{name.replace('_', '-')}")


def test_a_variable_that_is_no_setting_is_told_with_the_nearest_name(monkeypatch):
    assert unknown_variables() == []
    monkeypatch.setenv("GAPLESS_CACHE", "/somewhere")
    monkeypatch.setenv("GAPLESS_CONFIG", "/somewhere")
    monkeypatch.setenv("gapless_port", "1")
    assert unknown_variables() == []
    monkeypatch.setenv("GAPLESS_API_KEY", "secret")
    monkeypatch.setenv("GAPLESS_XYZZY", "1")
    first, second = unknown_variables()
    assert first.endswith("GAPLESS_API_KEY is no setting and is passed over; did you mean GAPLESS_API_KEYS?")
    assert second.endswith("GAPLESS_XYZZY is no setting and is passed over") and "secret" not in first


@pytest.mark.parametrize(
    ("host", "here", "local"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("localhost", "localhost", True),
        ("::1", "::1", True),
        ("0.0.0.0", "127.0.0.1", False),
        ("::", "::1", False),
        ("", "127.0.0.1", False),
        ("192.0.2.7", "192.0.2.7", False),
        ("example.org", "example.org", False),
    ],
)
def test_where_a_server_is_reached_from_here_and_from_elsewhere(host, here, local):
    assert (reached_here(host), is_local(host)) == (here, local)


def test_a_wrong_key_is_not_shown(tmp_path):
    file = tmp_path / "server.yaml"
    file.write_text("api_keys: {secret: 1}\n")
    with pytest.raises(InvalidRequest, match="api_keys") as told:
        read_settings({}, file)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot: 1", r"server.yaml: there is no setting 'prot'; did you mean port\?"),
        ("- a", "must hold settings"),
        ("a: [", "not YAML"),
        ("1: 2", "must hold"),
    ],
)
def test_a_wrong_file_is_told(tmp_path, text, words):
    file = tmp_path / "server.yaml"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=words):
        read_settings({}, file)
    with pytest.raises(InvalidRequest, match=r"cannot read .*missing.yaml: .*; --config or GAPLESS_CONFIG must name"):
        read_settings({}, tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--port", "70000"),
        ("--max-requests", "0"),
        ("--rate-limit", "-1"),
        ("--depth", "100"),
        ("--kv-memory", "0"),
        ("--picture-cache", "much"),
    ],
)
def test_a_wrong_flag_is_a_wrong_command_line_and_a_wrong_variable_is_not(flag, value, capsys, monkeypatch):
    assert main(["serve", flag, value]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and flag in err and err.endswith("(see gapless serve --help)\n")
    if flag != "--depth":  # which the library checks
        monkeypatch.setenv(f"GAPLESS_{flag[2:].replace('-', '_').upper()}", value)
        assert main(["serve"]) == 1
        assert capsys.readouterr().err.startswith("gapless: GAPLESS_")


def test_settings_without_a_flag_are_those_that_the_page_names():
    page = (ROOT / "docs" / "server.md").read_text()
    (told,) = re.findall(r"Without\sa\sflag: (.*?)\.\s", page, flags=re.S)
    flags = set(inspect.signature(serve).parameters) | {"adapters"}
    assert set(re.findall(r"`(\w+)`", told)) == set(ServerSettings.model_fields) - flags


def test_the_extra_is_named_where_it_is_missing():
    code = "import sys, importlib.util as u; real = u.find_spec\n"
    code += "u.find_spec = lambda name, *more: None if name == 'fastapi' else real(name, *more)\n"
    code += "from gapless.cli.main import main; sys.exit(main(['serve']))"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1
    assert b"pip install '.[serve]'" in done.stderr and b"fastapi" in done.stderr


def test_the_page_has_every_setting_with_its_default():
    page = (ROOT / "docs" / "server.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page, flags=re.M))
    assert set(told) == set(ServerSettings.model_fields)
    for name, field in ServerSettings.model_fields.items():
        shown = told[name].strip().strip("`")
        assert shown == ("-" if field.default in (None, (), {}) else str(field.default)), name
