"""Help texts teach with examples, and the examples work."""

from __future__ import annotations

import io
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from gapless.bench.mix import picture_path
from gapless.cli.examples import EXAMPLES
from gapless.cli.main import main

REPORT = Path(__file__).resolve().parents[2] / "benchmarks" / "h200" / "decode-moondream2.json"
SLOW = {
    "gapless pull vikhyatk/moondream2",
    "gapless pull vikhyatk/moondream2@2025-04-14",
    "gapless serve",
    "gapless serve glint --port 8000 --api-keys-file keys.txt",
    "gapless serve --config server.yaml",
    "gapless serve vikhyatk/moondream2 --ray --replicas 1:4",
    "gapless demo",
    "gapless demo --out /tmp/look",
    "gapless bench mix --depth 1 --depth 3 --json",
    "gapless bench decode --out decode.json --png gains.png",
    "gapless bench prefill --out prefill.json --png prefill.png",
    "gapless bench prefill --text 16 --batch 1 --json",
    "gapless bench vision --out vision.json --png vision.png",
    "gapless bench gaps --out gaps.json --png gaps.png",
    "gapless bench gaps --max-step-ms 4 --streams 8 --json",
    "gapless bench rules --out rules.json --png rules.png",
    "gapless bench rules --streams 8 --host --json",
    "gapless bench query --out query.json --png query.png",
    "gapless bench query --concurrency 1 --waves 1 --json",
    "gapless bench serve --out serve.json --png serve.png",
    "gapless bench serve --concurrency 1 --streams 2 --waves 1 --json",
    "gapless bench decode --streams 1 --streams 8 --sampler greedy --json",
    *(example.line for example in EXAMPLES["tune"]),
    *(example.line for examples in EXAMPLES.values() for example in examples if "glint/moon" in example.line),
}
"""Run by their own tests, alike to one that is run, or in need of a GPU."""
LATER = {
    "gapless bench mix",
    "gapless bench vision --crops 2 --json",
    "gapless trace trace.json --png bubble.png -- bench mix",
}
"""The longest. Their commands are quickly run by tests of their own, and one of them by the docs'."""
EACH = sorted({example.line for examples in EXAMPLES.values() for example in examples} - SLOW)


@pytest.mark.parametrize("command", EXAMPLES)
def test_help_shows_its_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert EXAMPLES[command]
    assert main([*command.split(), "-h"]) == 0
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == said
    for example in EXAMPLES[command]:
        assert f"$ {example.line}" in said and f"# {example.meaning}" in said


def run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run one shell line of the shapes that examples have: `gapless ...`, `cat FILE | gapless ...`, `... > FILE`."""
    words = shlex.split(line)
    if words[0] == "cat":
        piped = SimpleNamespace(buffer=io.BytesIO(Path(words[1]).read_bytes()), isatty=lambda: False)
        monkeypatch.setattr("sys.stdin", piped)
        words = words[3:]
    if ">" in words:
        words = words[: words.index(">")]
    assert words[0] == "gapless"
    return main(words[1:])


@pytest.mark.usefixtures("bundled")
@pytest.mark.parametrize("line", [pytest.param(n, marks=pytest.mark.slow if n in LATER else ()) for n in EACH])
def test_examples_run(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, picture in (("photo", "small_0"), ("a", "small_1"), ("b", "small_2"), ("moon", "moon")):
        shutil.copy(picture_path(picture), f"{name}.png")
    for name in ("decode", "old", "new"):
        shutil.copy(REPORT, f"{name}.json")
    Path("shapes.json").write_text('{"type": "array", "items": {"enum": ["star", "ring"]}, "maxItems": 3}')
    assert run_line(line, monkeypatch) == 0
    out, err = capsys.readouterr()
    assert out or "found" in err
    if "--draw" in line:
        assert len(list(tmp_path.rglob("*.png"))) > 3
