"""What the pages show is run: Python blocks as they stand, console blocks line by line."""

from __future__ import annotations

import inspect
import io
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.fakes.micro import write_micro

import gapless
from gapless.cli.main import main
from gapless.weights import hub

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SAMPLES = ROOT / "src" / "gapless" / "assets" / "samples"
NOT_RUN = {"source"}
PROGRAM = ROOT / "docs" / "skills.md"
"""Its blocks are one program, and the comments behind `print` are what it prints."""


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        if page == PROGRAM:
            continue
        texts = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.S | re.M)
        found += [(f"{page.name}-{i}", text) for i, text in enumerate(texts)]
    return found


def console_lines() -> dict[str, str]:
    """Command lines, each with the output that the page shows for it ("" where it shows none)."""
    shown: dict[str, str] = {}
    for _, text in blocks("console"):
        for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
            line, _, output = part.partition("\n")
            shown[line] = shown.get(line, "") or output
    return shown


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader stands: a folder with photo.png and the sources below it."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(SAMPLES / "shapes_square.png", "photo.png")
    shutil.copy(SAMPLES / "moon.png", "moon.png")
    (tmp_path / "src" / "gapless").mkdir(parents=True)
    (tmp_path / "src" / "gapless" / "assets").symlink_to(ROOT / "src" / "gapless" / "assets")
    return tmp_path


@pytest.fixture
def quick(newcomer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A micro model in the bundled one's place, where the answer does not matter."""
    monkeypatch.setattr(hub, "ASSETS", newcomer / "models")
    write_micro(newcomer / "models" / "glint")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("code", [pytest.param(text, id=name) for name, text in blocks("python")])
def test_python_blocks_run(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "block", "exec", dont_inherit=True), {"__name__": "__main__"})
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("line", [line for line, output in console_lines().items() if not output])
def test_console_lines_run(
    line: str, newcomer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line)
    if words[:4] == ["PYTHONPATH=src", "python3", "-m", "gapless"]:
        words = words[3:]
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), flags=re.M)
    elif words[0] == "cp":
        assert (newcomer / words[1]).read_bytes() == (newcomer / words[2]).read_bytes()
    elif words[0] == "cat":
        piped = SimpleNamespace(buffer=io.BytesIO(Path(words[1]).read_bytes()), isatty=lambda: False)
        monkeypatch.setattr("sys.stdin", piped)
        assert words[2:4] == ["|", "gapless"] and main(words[4:]) == 0
    elif words[0] == "gapless":
        assert main(words[1:]) == 0
        assert capsys.readouterr() != ("", "")
    else:
        assert words[0] in NOT_RUN


@pytest.mark.usefixtures("newcomer")
@pytest.mark.parametrize(("line", "output"), [(line, output) for line, output in console_lines().items() if output])
def test_shown_output_is_what_the_bundled_model_says(
    line: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *words = shlex.split(line)
    assert name == "gapless" and main(words) == 0
    assert capsys.readouterr().out == output


@pytest.mark.usefixtures("newcomer")
def test_a_page_that_is_one_program_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PROGRAM.read_text(), flags=re.S | re.M))
    exec(compile(code, PROGRAM.name, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    told = re.findall(r"print\(.*\)  # (.*)$", code, flags=re.M)
    places = [printed.find(line) for line in told]
    assert len(told) >= 7 and -1 not in places and places == sorted(places), printed


def test_there_is_something_to_run() -> None:
    assert len(blocks("python")) >= 4 and len(console_lines()) >= 10


def test_the_tables_of_settings_and_of_load_are_complete() -> None:
    from gapless.skills.settings import Settings

    told = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), flags=re.M))
    assert set(Settings.__slots__) <= told
    assert set(inspect.signature(gapless.load).parameters) - {"model", "device", "dtype"} <= told
