"""Sampling in Triton where there is no GPU: interpreted, in a process of its own, as that is settled at its import; and
compiled for every kind of GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernels", "which", "count"),
    [("sampler", "not slow", 10), ("sampler", "slow", 19), ("adjust", "slow or not slow", 8)],
    ids=["quick", "slow", "adjusted"],
)
def test_sampling_is_right_when_interpreted(kernels: str, which: str, count: int) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-m",
        which,
        f"tests/kernels/interpreted_{kernels}.py",
    ]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert passed is not None and int(passed[1]) == count, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
def test_every_kernel_compiles_for_every_card(capability: int) -> None:
    """A process of its own, which must not interpret, and no GPU."""
    command = [sys.executable, "tests/kernels/compiled_sampler.py", str(capability)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(("src", *sys.path)), "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("\n") == 2 * (4 + 3 + 5 + 4)
