"""The packages of the server for a machine that has none and no network, as wheels.

    python3 tests/gpu/wheels.py                      # into .wheels/, for Python 3.12 on Linux x86_64
    python3 tests/gpu/wheels.py --into DIR --python 3.11

The folder goes along with the checkout; `drive.py` unpacks it and puts it on the import path of what it starts. It
holds what the extras `serve` and `process` and the command line need, without what whoever has torch has anyway. Every
package is there in one version, so a folder that was there before is replaced. Ends with 1 if a wheel is for another
Python or another processor.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / ".wheels"
EXTRAS = ("serve", "process")
BESIDE = ("typer", "rich")
"""Of the package itself, what a machine with torch may lack."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_OURS = re.compile(r"gapless\[(.+)\]")


def requirements(project: Path = ROOT / "pyproject.toml") -> list[str]:
    """What to fetch, as pip writes it: the packages of the extras and of the extras they name, and `BESIDE`."""
    described = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    found: dict[str, None] = {}
    waiting = list(EXTRAS)
    seen: set[str] = set()
    while waiting:
        extra = waiting.pop(0)
        if extra in seen:
            continue
        seen.add(extra)
        for wanted in described["optional-dependencies"][extra]:
            ours = _OURS.fullmatch(wanted)
            if ours is None:
                found[wanted.partition(";")[0].strip()] = None
            else:
                waiting += [name.strip() for name in ours[1].split(",")]
    return [*found, *(w for w in described["dependencies"] if _name(w) in BESIDE)]


def _name(requirement: str) -> str:
    found = _NAME.match(requirement)
    return found[0].lower() if found else ""


def fetch(wanted: Sequence[str], python: str, into: Path) -> None:
    """Have pip fetch wheels, and what they need. Raises `CalledProcessError`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, "--dest", str(into)]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    subprocess.run([*command, *wanted], check=True)


def strangers(folder: Path, python: str) -> list[Path]:
    """Wheels with compiled files for another Python than `python` ("3.12"), or another processor than x86_64."""
    version = f"cp{python.replace('.', '')}"
    fits = re.compile(rf"none-any|({version}-{version}|cp3\d+-abi3)-[\w.]*manylinux[\w.]*x86_64")
    return [path for path in sorted(folder.glob("*.whl")) if not fits.search(path.stem)]


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="Fetch the server's packages for another machine.")
    parser.add_argument("--into", type=Path, default=WHEELS)
    parser.add_argument("--python", default="3.12", help="the other machine's Python")
    options = parser.parse_args(arguments)
    shutil.rmtree(options.into, ignore_errors=True)
    fetch(requirements(), options.python, options.into)
    wheels = sorted(options.into.glob("*.whl"))
    size = sum(path.stat().st_size for path in wheels)
    print("\n".join(path.name for path in wheels))
    print(f"{len(wheels)} wheels, {size / 1e6:.1f} MB, in {options.into}")
    wrong = strangers(options.into, options.python)
    for path in wrong:
        print(f"{path.name} is not for Python {options.python} on Linux x86_64")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
