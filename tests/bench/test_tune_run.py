"""A whole run of `gapless tune` with a GPU and times that a test makes up: the report, and the file found again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from gapless.bench import tune_experts, tune_run, tune_sparse
from gapless.errors import NotEnoughMemory
from gapless.kernels.triton import tuned
from gapless.kernels.triton.choices import Choice, Gpu, Scan
from gapless.kernels.triton.sparse_choices import Many, Own, SparseDims, choice
from gapless.kernels.triton.table import Table, built_in
from gapless.kernels.triton.tiles import ROWS, Tiles
from gapless.kernels.triton.tuned import Card
from gapless.models.moondream.config import TextConfig
from gapless.models.moondream.random_weights import random_config

ROOT = Path(__file__).resolve().parents[2]
BEST = Scan(8, 32, 3, 1)
GPU = Gpu(227 * 1024, True, {})


class Timer:
    """Scans like `BEST`, and experts' tiles of few stages, are fast."""

    def __init__(self, *_: object) -> None:
        pass

    def prepare(self, rows: int, choices: Sequence[Any]) -> None:
        pass

    def right(self, rows: int, choice: Any) -> bool:
        return True

    def times(self, rows: int, choices: Sequence[Any], turns: int) -> list[float | None]:
        return [self.took(choice) for choice in choices]

    def took(self, choice: Choice | Many | Tiles) -> float:
        if isinstance(choice, Tiles):
            return 100.0 + choice.up.stages + choice.down.stages
        return 100.0 - 30.0 * (choice.scan == BEST)


class Nobody:
    """Compiles nothing."""

    def __init__(self, processes: int) -> None:
        assert processes >= 1

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Card, "of", classmethod(lambda cls, device: CARDS[device.index]))
    monkeypatch.setattr(tune_run, "gpu_of", lambda device, table: Gpu(227 * 1024, True, table.decode))
    monkeypatch.setattr(tune_run.experts, "shared_memory", lambda device: 227 * 1024)
    monkeypatch.setattr(tune_run, "sparse_gpu", lambda device: Gpu(227 * 1024, True, {}))
    monkeypatch.setattr(tune_run, "DenseTrial", Timer)
    monkeypatch.setattr(tune_sparse, "SparseTrial", Timer)
    monkeypatch.setattr(tune_experts, "ExpertsTrial", Timer)
    monkeypatch.setattr(tune_run, "Compilers", Nobody)
    tuned.forget()
    yield
    tuned.forget()


CARDS = [Card("NVIDIA H200", (9, 0)), Card("NVIDIA B300", (10, 3))]


def run(rows: Sequence[int], size: str = "moondream-2", card: int = 0, seconds: float = 60.0) -> dict[str, Any]:
    device = torch.device("cuda", card)
    text = random_config(size).text
    return tune_run.Tuning(text, torch.bfloat16, device, rows, seconds).run(lambda *_: None)


def found(text: TextConfig, card: int = 0) -> Table | None:
    return tuned.table_for(CARDS[card], tuned.Sizes.decode(tune_run.dims_of(text), torch.bfloat16))


def test_what_is_found_is_kept_and_found_again() -> None:
    text, usual = random_config("moondream-2").text, built_in((9, 0))
    assert usual is not None
    report = run([8, 16])
    (part,) = report["parts"]
    assert [(row["rows"], row["before_us"], row["after_us"], row["gain"]) for row in part["rows"]] == [
        (8, 100.0, 70.0, 0.3),
        (16, 100.0, 70.0, 0.3),
    ]
    assert part["began_from"] == usual.source and part["left_out"] == [] and report["gpu"] == "NVIDIA H200"
    table = found(text)
    assert table is not None and part["file"] in table.source
    assert table.decode[8] == replace(usual.decode[8], scan=BEST) and table.decode[32] == usual.decode[32]
    again = run([8, 32])["parts"][0]
    assert [(row["before_us"], row["after_us"]) for row in again["rows"]] == [(70.0, 70.0), (100.0, 100.0)]
    table = found(text)
    assert table is not None and table.decode[16].scan == BEST, "a later run lost what an earlier one found"


def test_a_card_without_a_table_begins_from_an_older_one() -> None:
    part = run([1, 8], card=1)["parts"][0]
    assert part["began_from"].endswith("10.0")
    table = found(random_config("moondream-2").text, card=1)
    assert table is not None and table.decode.keys() == {1, 8}


def test_steps_and_experts_are_tuned_in_both_kinds() -> None:
    report = run([8], size="moondream-3")
    steps = "sparse-2048x8192x32x32x51200x64x8x1024"
    assert [part["sizes"] for part in report["parts"]] == [
        *(f"{steps}-{kind}-bfloat16" for kind in ("half", "float8")),
        *(f"experts-64x2048x1024-{kind}" for kind in ("bfloat16", "float8")),
    ]
    for part, size in zip(report["parts"], (2, 1), strict=False):
        (row,) = part["rows"]
        assert (row["rows"], row["gain"], part["began_from"]) == (8, 0.3, "built in for experts")
        dims = SparseDims(2048, 8192, 32, 32, 51200, 64, 8, 1024, size)
        table = tuned.table_for(CARDS[0], tuned.Sizes.sparse(dims, torch.bfloat16))
        assert table is not None and part["file"] in table.source
        usual = choice(dims, 8, 2, GPU)
        assert choice(dims, 8, 2, GPU, Own(table.sparse)) == table.sparse[8] == replace(usual, scan=BEST)
        assert choice(dims, 16, 2, GPU, Own(table.sparse)) == choice(dims, 16, 2, GPU)
    for part, size in zip(report["parts"][2:], (2, 1), strict=True):
        assert [row["rows"] for row in part["rows"]] == list(ROWS) and all(row["gain"] > 0 for row in part["rows"])
        kind = ("float8", "bfloat16")[size - 1]
        table = tuned.table_for(CARDS[0], tuned.Sizes.experts(64, 2048, 1024, kind))
        assert table is not None
        assert all(tiles.up.stages == tiles.down.stages == 2 for tiles in table.experts[size].values())


def test_without_time_nothing_is_kept() -> None:
    (part,) = run([8], seconds=0.0)["parts"]
    assert part["rows"] == [] and part["left_out"] == [8] and part["file"] is None


def test_what_was_found_before_the_gpu_failed_is_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Timer):
        def prepare(self, rows: int, choices: Sequence[Any]) -> None:
            if rows == 16:
                raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(tune_run, "DenseTrial", Failing)
    (part,) = run([8, 16])["parts"]
    assert [row["rows"] for row in part["rows"]] == [8] and part["left_out"] == [16] and part["file"]
    assert "ended early: CUDA out of memory" in caplog.text
    with pytest.raises(NotEnoughMemory, match="free some, or give fewer"):
        run([16])


def test_sizes_that_the_kernels_do_not_take_are_refused() -> None:
    text = replace(random_config("moondream-2").text, dim=2016, n_heads=63)
    with pytest.raises(ValueError, match="do not take the sizes"):
        tune_run.Tuning(text, torch.bfloat16, torch.device("cuda", 0), [8], 60.0).run(lambda *_: None)


PROGRAM = """
from functools import partial
import torch
from gapless.bench.tune_scene import decoder_of
from gapless.kernels.triton.choices import Dims, Gpu, choice
from gapless.kernels.triton.compiling import Compilers, Job, dense_step
from gapless.kernels.triton.table import built_in

def main():
    dims, decode = Dims(256, 512, 4, 32, 2048), built_in((9, 0)).decode
    gpu = Gpu(227 * 1024, True, decode)
    make = partial(decoder_of, dims, 1, 64, torch.bfloat16)
    compilers = Compilers(1)
    steps = [(rows, partial(dense_step, make, gpu, rows, choice(dims, rows, 2, gpu))) for rows in (1, 8)]
    compilers.compile([Job(step, (9, 0), rows, 16) for rows, step in steps])
    compilers.close()

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_kernels_are_compiled_in_a_process_without_a_gpu(tmp_path: Path) -> None:
    """All of a step's, with an early start among them; what is left is what a launch would look for."""
    script, cache = tmp_path / "program.py", tmp_path / "cache"
    script.write_text(PROGRAM)
    paths = {"PYTHONPATH": os.pathsep.join(("src", *sys.path)), "TRITON_CACHE_DIR": str(cache), "TRITON_INTERPRET": "0"}
    command, environment = [sys.executable, script], {**os.environ, **paths}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    made = sorted(path.stem for path in cache.glob("*/*.cubin"))
    assert set(made) == {"entry", "up", "scan", "down", "head"}
    assert all(made.count(name) == 2 for name in ("up", "scan", "down", "head"))
