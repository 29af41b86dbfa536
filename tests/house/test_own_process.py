"""Processes of the package's own: the same Python, the same modules, words as they were given."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.constrain.walks import glint

from gapless.constrain.compiler import Compiler
from gapless.constrain.grammar import Grammar
from gapless.own_process import command, main_of

OWN = """
import json, sys
def main():
    print(json.dumps([sys.argv[1:], sys.path]))
"""


@pytest.fixture
def strange(tmp_path, monkeypatch):
    """A folder whose files have the names of modules; the import path is whole, wherever one stands."""
    for name in ("json.py", "os.py", "told.py"):
        (tmp_path / name).write_text("raise SystemExit(3)")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "path", [str(Path(path).resolve()) for path in sys.path])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(words):
    return json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)


def test_a_process_finds_what_its_parent_finds_and_nothing_of_the_folder(strange, monkeypatch):
    inner = strange / "gr\u00fcn"
    inner.mkdir()
    (inner / "told.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(inner))
    words = ["a b", "'\"", "--port"]
    assert ran(main_of("told", *words)) == [words, sys.path]
    assert ran(command("import json\nprint(json.dumps(sys.argv[1:]))", *words)) == words


def test_rules_are_compiled_in_any_folder(strange):
    compiler = Compiler(glint(), timeout=60)
    assert compiler.submit(Grammar.choice(["yes", "no"])).result(60).states > 1
    compiler.close()
