"""What a measurement was made on, so that its numbers can be read later."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Machine:
    """`cores`: those this process may use; `threads`: what torch computes one operation with."""

    cpu: str
    cores: int
    system: str
    python: str
    torch: str
    threads: int

    def as_dict(self) -> dict[str, str | int]:
        """The fields, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores, {self.system}, Python {self.python}, torch {self.torch}, "
            f"{self.threads} torch threads"
        )


def describe_machine() -> Machine:
    """Look at this machine. Call it after a model was loaded: that sets torch's threads."""
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        threads=torch.get_num_threads(),
    )


def _cpu_name() -> str:
    """The processor's name; Linux tells it in /proc alone."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
