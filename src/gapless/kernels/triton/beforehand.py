"""Kernels of decode steps, compiled side by side before a start captures its graphs: the first one on a machine would
wait for them one after the other, for half a minute and more.

In: a fused step, batch sizes, a page size. Out: nothing; kernels lie in Triton's cache on disk, and beside them a mark
that says so, so that later starts do not ask again. What goes wrong here goes unnoticed but for the log: whoever
launches a kernel compiles what is missing. The processes are started as programs of their own, not as copies of the
caller: that one has a GPU, and may be a script that must not be run twice.
"""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from gapless.config import usable_cores
from gapless.kernels.fused import Decoder
from gapless.kernels.sparse import Dense, SparseDecoder
from gapless.kernels.triton import compile_process, tuned
from gapless.kernels.triton.choices import MOST_ROWS, padded
from gapless.kernels.triton.compiling import Bare, Job, given_step, mapped
from gapless.kernels.triton.decode import TritonStep
from gapless.kernels.triton.sparse import TritonSparseStep
from gapless.own_process import main_of

FEWEST_CORES = 4
"""Below that nothing is gained."""
MOST_PROCESSES = 16
LONGEST = 300.0
"""Seconds, after which a start goes on without."""
_log = logging.getLogger("gapless.kernels")


def compile_steps(step: TritonStep | TritonSparseStep, batches: Sequence[int], page: int) -> None:
    """Compile what steps of these batch sizes launch, unless that was done already or there are few cores."""
    processes = min(usable_cores(), MOST_PROCESSES)
    if processes < FEWEST_CORES or not sys.executable:
        return
    capability = torch.cuda.get_device_capability(step.weights.ln.weight.device)
    mark = Path(triton.knobs.cache.dir) / f"gapless-steps-{_key(step, batches, page, capability)}"
    if mark.exists():
        return
    jobs = jobs_of(step, batches, page, capability, processes)
    try:
        _run(jobs, min(processes, len(jobs)))
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except (OSError, subprocess.SubprocessError) as error:
        _log.info("kernels are not compiled beforehand: %s", str(error)[:300])


def jobs_of(
    step: TritonStep | TritonSparseStep, batches: Sequence[int], page: int, capability: tuple[int, int], processes: int
) -> list[Job]:
    """One for each way that steps are launched, or, if there are processes for it, several that share its kernels."""
    kinds = {(step.choice(rows), padded(rows)): rows for rows in batches if rows <= MOST_ROWS}
    known = [rows for (found, _), rows in kinds.items() if found is not None]
    parts = max(1, processes // max(1, len(known)))
    make = partial(given_step, type(step), _bare(_short(step.weights)), step.gpu)
    made = [(rows, partial(make, {rows: step.choice(rows)})) for rows in known]
    return [Job(of, capability, rows, page, part, parts) for rows, of in made for part in range(parts)]


def _short(decoder: Decoder | SparseDecoder) -> Decoder | SparseDecoder:
    """The first block, and one of each kind behind it: with experts a single row's first kernel reads what was given,
    the others the residual in float32."""
    if isinstance(decoder, Decoder):
        return replace(decoder, blocks=decoder.blocks[:1])
    later = {isinstance(block.mlp, Dense): block for block in decoder.blocks[:0:-1]}
    return replace(decoder, blocks=[decoder.blocks[0], *(later[dense] for dense in (True, False) if dense in later)])


def _bare(value: Any) -> Any:
    """The same with `Bare` in place of tensors."""
    if isinstance(value, Tensor):
        return Bare(tuple(value.shape), value.dtype)
    return mapped(_bare, value)


def _key(step: TritonStep | TritonSparseStep, batches: Sequence[int], page: int, capability: tuple[int, int]) -> str:
    """Of all that the kernels depend on."""
    ways = [(padded(rows), step.choice(rows)) for rows in batches if rows <= MOST_ROWS]
    told = repr((triton.__version__, tuned.digest("sparse"), step.dims, step.dtype, page, capability, ways))
    return sha256(told.encode()).hexdigest()[:16]


def _run(jobs: Sequence[Job], processes: int) -> None:
    command = main_of(compile_process.__name__, str(processes))
    subprocess.run(command, input=pickle.dumps(jobs), timeout=LONGEST, check=True, capture_output=True)
