"""Run by itself, without a GPU: a step's kernels compiled by two programs at once into one cache, and then what a step
with weights and rooms of its own would have to compile still."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tests.kernels.test_compile_beforehand import DENSE, SPARSE

from gapless.kernels.stacks import Stack
from gapless.kernels.triton import sparse_lone, sparse_many
from gapless.kernels.triton.beforehand import _run, jobs_of
from gapless.kernels.triton.compiling import Job, compile_here

CAPABILITY, BATCHES, PAGE = (9, 0), (1, 4, 8), 16


def as_on_a_gpu(stack: Stack, like: torch.Tensor) -> tuple[bool, bool]:
    """What `kinds` says there."""
    return stack.scales is not None, True


def compiled(cache: Path) -> set[str]:
    """What lies there: a binary each."""
    return {f"{path.parent.name} {path.name}" for path in cache.glob("*/*.cubin")}


def names(found: set[str]) -> list[str]:
    """The kernels of binaries."""
    return [name.partition(" ")[2].removesuffix(".cubin") for name in found]


def main(cache: Path) -> None:
    """One line a step: the kernels of the binaries that there are, and behind a dash, of those that launches add."""
    sparse_lone.kinds = sparse_many.kinds = as_on_a_gpu
    for step in (DENSE, SPARSE):
        before = compiled(cache)
        jobs = jobs_of(step, BATCHES, PAGE, CAPABILITY, processes=2)
        with ThreadPoolExecutor() as pool:
            list(pool.map(_run, [jobs, jobs], [2, 2]))
        found = compiled(cache) - before

        def own(nowhere: torch.device, step: Any = step) -> Any:
            return step

        for rows in BATCHES:
            compile_here(Job(own, CAPABILITY, rows, PAGE))
        print(*sorted(names(found)), "-", *names(compiled(cache) - found - before), flush=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
