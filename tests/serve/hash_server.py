"""A server whose answers are known beforehand, as a process of its own, and how much memory it holds."""

import os
import subprocess
import sys
from pathlib import Path

from tests.fakes.hash_served import MANNER
from tests.serve.serving import ENVIRONMENT, ROOT, Served


class HashServed(Served):
    """`Served` with a hash model. `manner`: see `tests.fakes.hash_served`."""

    def __init__(self, folder: Path, log: Path, *words: str, manner: str = "") -> None:
        self.log = log
        path = os.pathsep.join([ENVIRONMENT["PYTHONPATH"], str(ROOT)])
        environment = ENVIRONMENT | {"PYTHONPATH": path, MANNER: manner}
        command = [sys.executable, "-m", "tests.fakes.hash_served", "serve", str(folder), "--port", "0", *words]
        with log.open("wb") as err:
            self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=err)
        self.port = int(self.said("http://127.0.0.1:").partition("/")[0])


def children(pid: int) -> list[int]:
    """The processes that this one has started and that still run."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(one) for task in tasks for one in (task / "children").read_text().split()]


def resident(pid: int) -> int:
    """Bytes of memory that a process and its children hold, pages that they share counted once each."""
    return sum(_proportional(one) for one in (pid, *children(pid)))


def _proportional(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
