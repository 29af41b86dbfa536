"""What a measurement was made on, so that its numbers can be read later."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from gapless.config import cpu_threads


@dataclass(frozen=True, slots=True)
class Machine:
    """`cores`: those this process may use; `threads`: with which the CPU device computes."""

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
    """Look at this machine. torch itself is no witness of the threads: each thread of Python has its own setting."""
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        threads=cpu_threads() or torch.get_num_threads(),
    )


def _cpu_name() -> str:
    """The processor's name; Linux tells it in /proc alone."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
