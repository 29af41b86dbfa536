"""The command as a process of its own: what only a process shows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.fakes.micro import write_micro

from gapless import __version__
from gapless.cli.examples import EXAMPLES

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "src" / "gapless" / "assets" / "samples" / "small_0.png"
COMMAND = (sys.executable, "-m", "gapless")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100", "OMP_NUM_THREADS": "1"}


def gapless(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    words = (*COMMAND, *words)
    return subprocess.run(words, check=False, input=given, capture_output=True, env=ENVIRONMENT, timeout=120)


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_micro(tmp_path_factory.mktemp("micro")))


def test_version() -> None:
    done = gapless("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"gapless {__version__}\n".encode(), b"")


def test_words_need_no_torch() -> None:
    lines = [["--version"], ["--help"], [], *([*name.split(), "--help"] for name in EXAMPLES if name)]
    code = f"import sys; from gapless.cli.main import main; codes = [main(words) for words in {lines!r}]\n"
    code += "heavy = {name.split('.')[0] for name in sys.modules} & {'torch', 'safetensors', 'huggingface_hub'}\n"
    code += "assert not heavy, heavy\nassert not any(codes), codes"
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_a_picture_through_a_real_model(micro: str) -> None:
    done = gapless("point", "-", "star", "--model", micro, "--json", given=PICTURE.read_bytes())
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    answer = json.loads(done.stdout)
    assert answer["image"] == "-" and isinstance(answer["points"], list)
    assert answer["finish_reason"] in ("stop", "length") and answer["metrics"]["input_tokens"] > 17


def test_an_error_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    done = gapless("caption", str(tmp_path / "missing.png"))
    assert done.returncode == 1
    assert done.stdout == b"" and done.stderr.count(b"\n") == 1 and done.stderr.startswith(b"gapless: ")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_told_in_one_line(micro: str) -> None:
    for words in (["models"], ["caption", str(PICTURE), str(PICTURE), "--model", micro, "--max-tokens", "2"]):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [*COMMAND, *words], check=False, stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=120
            )
        assert done.returncode == 1
        assert done.stderr.count(b"\n") == 1 and b"No space left" in done.stderr


def test_closed_standard_streams() -> None:
    """`>&-`: Python has no stream then. Nothing of one goes into another."""
    shell = f"{' '.join(COMMAND)} models >&-; echo $?; {' '.join(COMMAND)} caption - <&-; echo $?; "
    shell += f"{' '.join(COMMAND)} caption missing.png 2>&-; echo $?"
    done = subprocess.run(["sh", "-c", shell], check=False, capture_output=True, env=ENVIRONMENT, timeout=120)
    assert done.stdout == b"0\n1\n1\n"
    assert b"Traceback" not in done.stderr and b"empty (0 bytes)" in done.stderr


def test_a_closed_pipe_is_no_drama(micro: str) -> None:
    words = [*COMMAND, "caption", *[str(PICTURE)] * 40, "--model", micro, "--max-tokens", "100", "--seed", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stdout and process.stderr
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(60) == 1
    assert said == b""


def test_ctrl_c(micro: str) -> None:
    words = [*COMMAND, "caption", *[str(PICTURE)] * 400, "--model", micro, "--max-tokens", "100", "--seed", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stdout and process.stderr
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130
    assert len(out.splitlines()) < 399 and err == b""


def test_ctrl_c_while_the_command_line_is_still_being_imported(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n")
    environment = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([str(tmp_path), ENVIRONMENT["PYTHONPATH"]])}
    for words in (COMMAND, (sys.executable, "-c", "import sys; from gapless.__main__ import run; sys.exit(run())")):
        done = subprocess.run([*words, "--help"], check=False, capture_output=True, env=environment, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_the_installed_command_goes_through_the_same_door() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"gapless": "gapless.__main__:run"}
