"""What only a GPU can say: its description, how fast it reads, what a graph takes alone, what a trace holds.

In: a CUDA device of torch. Out: plain numbers. Nothing here changes a setting: `nvidia-smi` is only asked.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from gapless.bench.timed import Session, no_range
from gapless.bench.trace import StepWork, read_spans, steps_of
from gapless.bench.wave import advance

CLOCKS = (
    "name",
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "clocks_event_reasons.active",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "memory.total",
)
READ_BYTES = 4 * 2**30
EDGE = 2
"""Steps at each end of a trace that are left out: the profiler starts and stops there."""


def clocks(index: int = 0) -> dict[str, str]:
    """What `nvidia-smi` says of clocks, power and temperature right now; an "error" if it says nothing."""
    command = ["nvidia-smi", f"--id={index}", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return {"error": str(error)}
    values = [part.strip() for part in done.stdout.strip().splitlines()[0].split(",")]
    return dict(zip(CLOCKS, values, strict=False))


def versions() -> dict[str, str]:
    """Of what computed the numbers."""
    from gapless import __version__

    return {
        "gapless": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
    }


def describe_gpu(device: torch.device) -> dict[str, Any]:
    """The card as torch sees it."""
    found = torch.cuda.get_device_properties(device)
    return {
        "gpu": found.name,
        "gpu_memory_gb": round(found.total_memory / 1e9, 1),
        "multiprocessors": found.multi_processor_count,
        "capability": f"{found.major}.{found.minor}",
        "gpus_seen": torch.cuda.device_count(),
    }


def time_ms(work: Callable[[], object], repeats: int) -> float:
    """Median milliseconds of `work` on the current stream, by events around each run."""
    work()
    torch.cuda.synchronize()
    events = [(_timer(), _timer()) for _ in range(repeats)]
    for before, after in events:
        before.record()
        work()
        after.record()
    torch.cuda.synchronize()
    return float(statistics.median(before.elapsed_time(after) for before, after in events))


def _timer() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def read_bandwidth(device: torch.device, size: int = READ_BYTES) -> dict[str, float]:
    """Bytes per second by what read them: the best of a few reductions over a buffer far larger than the caches, and
    a copy (bytes read plus bytes written) beside it."""
    room = torch.empty(size // 4, dtype=torch.float32, device=device).normal_()
    rows = room.view(-1, 16384)
    halves = room.view(torch.bfloat16).view(-1, 16384)
    target = torch.empty_like(room[: room.numel() // 2])
    reads: dict[str, Callable[[], object]] = {
        "sum of float32": room.sum,
        "row sums of float32": lambda: rows.sum(dim=1),
        "row maxima of float32": lambda: rows.amax(dim=1),
        "row maxima of bfloat16": lambda: halves.amax(dim=1),
    }
    found = {name: 1e3 * size / time_ms(work, 10) for name, work in reads.items()}
    copied = room[: target.numel()]
    found["copy"] = 1e3 * 2 * copied.numel() * 4 / time_ms(lambda: target.copy_(copied), 10)
    return found


def best_read(found: dict[str, float]) -> float:
    """The fastest read, in bytes per second."""
    return max(rate for name, rate in found.items() if name != "copy")


def warm_profiler() -> None:
    """The first trace of a process takes seconds to begin; take a small one before it matters."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):
        torch.ones(8, device="cuda").sum()
        torch.cuda.synchronize()


def traced(session: Session, rows: int, steps: int) -> list[StepWork]:
    """Run `steps` full steps of what rides already under the profiler; the steps it saw, without those at its edges."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        session.watch.range_of = record_function
        try:
            advance(session, rows, steps)
        finally:
            session.watch.range_of = no_range
        torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    return steps_of(read_spans(trace))[EDGE:-EDGE]
