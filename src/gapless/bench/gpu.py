"""What only a GPU can say: its description, its clocks, what a trace holds.

In: a CUDA device of torch. Out: plain numbers. Nothing here changes a setting: `nvidia-smi` is only asked.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from gapless.bench.timed import Session
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
            session.watch.range_of = None
        torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    return steps_of(read_spans(trace))[EDGE:-EDGE]
