"""Rules for answers on the command line: options that become settings, and `gapless rule`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.fake_vlm import FakeVLM

from gapless.cli.main import main

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "shape.json"
    path.write_text(json.dumps(SCHEMA))
    return str(path)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["--choice", "red", "--choice", "light blue"], {"choice": ["red", "light blue"]}),
        (["--json-object"], {"json_object": True}),
        (["--regex", "[0-9]+", "--max-tokens", "9"], {"regex": "[0-9]+", "max_tokens": 9}),
    ],
)
def test_options_become_settings(vlm: FakeVLM, pictures: Path, words: list[str], settings: dict[str, object]) -> None:
    assert main(["query", "a.png", "What?", *words]) == 0 and main(["caption", "a.png", *words]) == 0
    assert [call[2]["settings"] for call in vlm.calls] == [settings, settings]
    assert "schema" not in vlm.calls[0][2]


def test_a_schema_is_read_from_its_file(vlm: FakeVLM, pictures: Path, schema: str) -> None:
    assert main(["query", "a.png", "What?", "--schema", schema]) == 0
    assert main(["query", "What?", "--schema", schema, "--stream", "--json"]) == 0
    assert main(["caption", "a.png", "--schema", schema]) == 0
    assert [call[2].get("schema") for call in vlm.calls] == [SCHEMA, SCHEMA, None]
    assert vlm.calls[-1][2]["settings"] == {"json_schema": SCHEMA}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--choice", ""], "not empty"),
        (["--regex", ""], "not empty"),
        (["--choice", "a", "--regex", "b"], "choice and regex both say"),
        (["--regex", "a", "--json-object"], "regex and json_object both say"),
        (["--schema", "none.json"], "none.json cannot be read: No such file"),
        (["--schema", "."], "cannot be read"),
        (["--schema", "a.png"], "is no JSON"),
        (["--schema", "list.json"], "must hold an object"),
        (["--schema", "deep.json"], "is no JSON"),
    ],
)
@pytest.mark.usefixtures("pictures")
def test_a_wrong_rule_is_a_wrong_command_line(
    vlm: FakeVLM, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("list.json").write_text("[1]")
    Path("deep.json").write_text("[" * 100_000)
    assert main(["query", "a.png", "What?", *words]) == 2
    assert told in capsys.readouterr().err and not vlm.calls
    assert main(["rule", *words]) == 2


def test_rule_tells_the_table(schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rule", "--schema", schema, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "json_schema" and told["ids"] == 2048 and 1 < told["classes"] < told["ids"]
    assert told["bytes"] > 2 * told["states"] and told["fewest_tokens"] >= 4 and told["compile_ms"] > 0
    for words in (["--choice", "red", "--choice", "blue"], ["--regex", "a{3}"], ["--json-object"]):
        assert main(["rule", "glint", *words]) == 0
        out = capsys.readouterr().out
        assert "of 2048 ids" in out and "tokens, with the end" in out and "kB" in out


def test_rule_tells_why_there_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.json"
    path.write_text('{"properties": {"a": {"not": {}}}}')
    assert main(["rule", "--schema", str(path)]) == 1
    assert '"not" at #/properties/a/not cannot be honoured' in capsys.readouterr().err
    assert main(["rule", "no-such-model", "--regex", "a"]) == 1
    assert main(["rule"]) == 2
    assert "which rule?" in capsys.readouterr().err


def test_a_rule_without_a_table_is_told_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    tree = str(tmp_path / "tree.json")
    Path(tree).write_text(json.dumps({"type": "object", "properties": {"of": {"$ref": "#"}}}))
    assert main(["rule", "--schema", tree, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["host"] and told["bytes"] > 0 and "states" not in told
    assert main(["rule", "--schema", tree]) == 0
    assert "built on the host" in capsys.readouterr().out
    Path(tree).write_text(json.dumps({"type": "string", "maxLength": 4000}))
    assert main(["rule", "--schema", tree]) == 0
    assert "built on the host" in capsys.readouterr().out


def test_a_rule_that_neither_has_a_table_nor_can_be_led_is_told_both_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "wide.json"
    many = {f"k{i}": {"const": 1} for i in range(300)}
    path.write_text(json.dumps({"properties": many, "additionalProperties": {"$ref": "#"}}))
    for there, reason in (
        (True, "nor can it be led on the host: the rule is too large"),
        (False, "or pip install 'gapless[structured]'"),
    ):
        monkeypatch.setattr("gapless.constrain.guides.installed", lambda there=there: there)
        assert main(["rule", "--schema", str(path)]) == 1
        err = " ".join(capsys.readouterr().err.split())
        assert "the schema is recursive: # leads to itself again" in err and reason in err
