"""Kernels of steps that are compiled in other processes before a start: which, once, and quietly where that fails."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton
from triton.runtime.jit import JITFunction

from gapless.bench.tune_scene import decoder_of
from gapless.bench.tune_sparse_scene import sparse_decoder_of
from gapless.kernels.triton import (
    adapters,
    beforehand,
    decode,
    keys,
    sparse_lone,
    sparse_many,
    sparse_scan,
    tuned,
)
from gapless.kernels.triton.choices import Dims, Gpu, padded
from gapless.kernels.triton.decode import TritonStep
from gapless.kernels.triton.sparse import TritonSparseStep
from gapless.kernels.triton.sparse_choices import SparseDims
from gapless.kernels.triton.table import built_in
from gapless.own_process import main_of

ROOT = Path(__file__).resolve().parents[2]
USUAL = built_in((9, 0))
assert USUAL is not None
CPU = torch.device("cpu")
DENSE = TritonStep(decoder_of(Dims(64, 128, 4, 8, 64), 3, 32, torch.bfloat16, CPU), Gpu(2**17, True, USUAL.decode))
OF_EXPERTS = SparseDims(64, 128, 4, 8, 64, experts=4, share=2, expert_inner=64, expert_itemsize=1)
NARROW = Gpu(2**17, True, {}, narrow=True)
SPARSE = TritonSparseStep(sparse_decoder_of(OF_EXPERTS, 2, 2, 32, torch.bfloat16, CPU), NARROW)
BATCHES = (1, 2, 4, 8, 16, 24, 32, 160)


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was given to processes, on a machine of eight cores with a GPU and an empty cache."""
    given: list[Any] = []

    def run(command: list[str], input: bytes, check: bool, **_: object) -> None:
        given.append((command[1:], pickle.loads(input)))
        assert check

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(beforehand, "usable_cores", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path / "cache")
        yield given


@pytest.mark.parametrize("step", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_every_way_that_steps_are_launched_is_compiled_once(step: Any, ran: list[Any]) -> None:
    beforehand.compile_steps(step, BATCHES, 16)
    beforehand.compile_steps(step, BATCHES, 16)
    ((command, jobs),) = ran
    assert [sys.executable, *command] == main_of("gapless.kernels.triton.compile_process", str(min(8, len(jobs))))
    ways = {(step.choice(rows), padded(rows)) for rows in BATCHES[:-1]}
    assert {(step.choice(job.rows), padded(job.rows)) for job in jobs} == ways and len(jobs) >= len(ways)
    made = jobs[-1].make(CPU)
    assert made.choice(jobs[-1].rows) == step.choice(jobs[-1].rows) and made.dims == step.dims
    assert len(made.weights.blocks) == (1 if step is DENSE else 3)
    beforehand.compile_steps(step, BATCHES, 32)
    assert len(ran) == 2, "pages of another size are other kernels"


@pytest.mark.slow
def test_what_is_compiled_beforehand_is_what_launches_look_for(tmp_path: Path) -> None:
    """Truly compiled, by two programs into one cache; a launch that found another key would compile again."""
    command = [sys.executable, "-m", "tests.kernels.compiled_beforehand", str(tmp_path)]
    told = {"PYTHONPATH": os.pathsep.join(("src", ".", *sys.path)), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **told, "TRITON_INTERPRET": "0"}, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    dense, sparse = (line.split() for line in done.stdout.splitlines())
    assert dense[-1] == sparse[-1] == "-", "what stands behind it was not compiled beforehand"
    assert {"entry", "up", "scan", "down", "head"} <= set(dense)
    assert {"scan", "middle", "experts", "experts_down", "close", "head"} <= set(sparse)


def test_kernels_have_the_same_names_whatever_ran_first() -> None:
    """Each is hashed behind all that it calls: hashed again, when all are, it is called the same."""
    functions = [function for module in keys.MODULES for function in keys.functions_of(module)]

    def named(function: Any) -> str:
        function.hash, function.used_global_vals = None, {}
        return function.cache_key

    for function in functions:
        function.hash, function.used_global_vals = None, {}
    keys.settle.__wrapped__()
    names = [function.cache_key for function in functions]
    assert [named(function) for function in functions] == names and len(set(names)) == len(names) > 50


def test_all_that_steps_launch_is_known_by_name_and_counts_as_what_tiles_were_measured_with() -> None:
    """Modules of kernels that launchers import, and what these import, in that order."""
    launchers = (decode, adapters, sparse_many, sparse_lone, sparse_scan)
    launched = {of for launcher in launchers for of in vars(launcher).values() if isinstance(of, ModuleType)}
    assert {of for of in launched if of.__name__.endswith("_jit")} <= set(keys.MODULES)
    known: list[str] = []
    for module in keys.MODULES:
        known.append(module.__name__)
        assert {of.fn.__module__ for of in vars(module).values() if isinstance(of, JITFunction)} <= set(known)
    for part, text in tuned.SOURCES.items():
        modules = [module for module in keys.MODULES if f"{module.__name__.rpartition('.')[2]}.py" in text]
        used = {of.fn.__module__ for module in modules for of in vars(module).values() if isinstance(of, JITFunction)}
        assert used <= {module.__name__ for module in modules} and len(modules) == len(text), part
    assert len(tuned.SOURCES["sparse"]) == len(keys.MODULES), "its digest stands for all that is compiled beforehand"


OTHERS = {
    "dtype": TritonStep(decoder_of(Dims(64, 128, 4, 8, 64), 3, 32, torch.float16, CPU), DENSE.gpu),
    "sizes": TritonStep(decoder_of(Dims(64, 128, 4, 8, 128), 3, 32, torch.bfloat16, CPU), DENSE.gpu),
    "tiles": DENSE.with_choices({rows: replace(of, ahead=0) for rows, of in USUAL.decode.items()}),
    "batches": DENSE,
    "card": DENSE,
}


@pytest.mark.parametrize("what", OTHERS)
def test_whatever_makes_other_kernels_is_compiled_too(
    what: str, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    beforehand.compile_steps(DENSE, (1, 8), 16)
    if what == "card":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    beforehand.compile_steps(OTHERS[what], (1, 32) if what == "batches" else (1, 8), 16)
    assert len(ran) == 2, f"another {what} has other kernels"


def test_few_cores_gain_nothing(ran: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beforehand, "usable_cores", lambda: 2)
    beforehand.compile_steps(DENSE, BATCHES, 16)
    assert not ran


def test_many_cores_share_a_step(ran: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beforehand, "usable_cores", lambda: 64)
    beforehand.compile_steps(DENSE, (1, 8), 16)
    ((command, jobs),) = ran
    assert command[-1] == "16" and [(job.rows, job.part) for job in jobs] == [(r, p) for r in (1, 8) for p in range(8)]


@pytest.mark.parametrize("error", [OSError("no room"), subprocess.TimeoutExpired("python", 300)])
def test_what_fails_is_left_to_the_launches(
    error: Exception, ran: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run(*_: object, **__: object) -> None:
        ran.append(None)
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    with caplog.at_level("INFO", "gapless.kernels"):
        for _ in range(2):
            beforehand.compile_steps(DENSE, BATCHES, 16)
    assert len(ran) == 2 and "not compiled beforehand" in caplog.text
