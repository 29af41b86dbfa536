"""What a second GPU brings: `python -m gapless.bench.fleet --gpus 1,2 --seconds 6`.

In: how many engines, each a process with one GPU that it sees alone. Out: a report for `benchmarks/*/fleet-*.json`:
requests per second with the same load on each engine, at one and at two (or more), in turns within one run, and their
ratio. Requests go where `api.affinity` says, as in a fleet through Ray Serve; Ray itself takes no part, since machines
without it are to be measured too. On the CPU (`--device cpu`) it shows that the command works, and nothing about speed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from time import perf_counter
from typing import Any

from gapless.api.affinity import SLACK
from gapless.bench.fleet_engine import CPU, Sizes, run_engine
from gapless.bench.fleet_load import REPEATS, Phase, Routed
from gapless.bench.machine import describe_machine
from gapless.bench.pictures import jpegs
from gapless.bench.report_file import save_to

VISIBLE = "CUDA_VISIBLE_DEVICES"
SIZE = (640, 480)
SIDE = 378
STOPPING = 20.0
"""Seconds that an engine gets to end."""


@dataclass(frozen=True, slots=True)
class Member:
    """An engine's process."""

    name: str
    process: SpawnProcess
    pipe: Connection

    def ready(self) -> float:
        """Seconds that the start took. Raises `ChildProcessError` with the reason where it failed."""
        try:
            word, told = self.pipe.recv()
        except EOFError as error:
            raise ChildProcessError(f"engine {self.name} ended while it started") from error
        if word != "ready":
            raise ChildProcessError(f"engine {self.name} could not start: {told}")
        return float(told)

    def stop(self) -> None:
        """End it, whatever it is at."""
        with suppress(OSError):
            self.pipe.send(None)
        self.process.join(STOPPING)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def start(number: int, sizes: Sizes, compiled: Event) -> Member:
    """Engine `number`, which sees the GPU of that number and no other."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    before = os.environ.get(VISIBLE)
    if sizes.device != CPU:
        os.environ[VISIBLE] = str(number)
    try:
        process = context.Process(
            target=run_engine, args=(there, sizes, compiled), name=f"gapless-engine-{number}", daemon=True
        )
        process.start()
    finally:
        if before is None:
            os.environ.pop(VISIBLE, None)
        else:
            os.environ[VISIBLE] = before
    there.close()
    return Member(str(number), process, here)


def plan(gpus: Sequence[int], waves: int) -> list[tuple[int, ...]]:
    """Which engines take part in each phase. Phases of one engine take turns among engines, so that none stands for
    all; the second wave goes backwards."""
    most = max(gpus)
    found: list[tuple[int, ...]] = []
    for wave in range(waves):
        counts = gpus if wave % 2 == 0 else gpus[::-1]
        found += [tuple((wave + at) % most for at in range(count)) for count in counts]
    return found


def ratios(phases: Sequence[Phase]) -> dict[str, float]:
    """Requests per second of each number of engines over those of the fewest, by that number; each the mean of its
    phases."""
    rates: dict[int, list[float]] = {}
    for phase in phases:
        rates.setdefault(phase.engines, []).append(phase.per_second)
    means = {count: sum(found) / len(found) for count, found in sorted(rates.items())}
    base = means[min(means)] if means else 0.0
    return {str(count): round(mean / base, 4) for count, mean in means.items()} if base else {}


class FleetBench:
    """One run. `close` ends all engines."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self.gpus = sorted({int(part) for part in given.gpus.split(",")})
        self._sizes = Sizes(given.model, given.device, given.rows, given.tokens)
        self._members: list[Member] = []
        self._phases: list[Phase] = []
        self.started: dict[str, float] = {}

    def open(self) -> None:
        """The first engine fills the cache of compiled kernels, while the others make their weights; then they find
        them there."""
        context = multiprocessing.get_context("spawn")
        at_once, compiled = context.Event(), context.Event()
        at_once.set()
        for number in range(max(self.gpus)):
            self._members.append(start(number, self._sizes, compiled if number else at_once))
        self._pictures = jpegs(0, self._given.pictures, SIDE, SIZE)  # while they load
        for member in self._members:
            self.started[member.name] = round(member.ready(), 1)
            compiled.set()

    def run(self) -> None:
        """Warm up, then all phases."""
        everyone = tuple(range(len(self._members)))
        self._phase(everyone, 0, 0.0, self._given.settle)
        self._phases.clear()
        for number, engines in enumerate(plan(self.gpus, self._given.waves)):
            phase = self._phase(engines, number + 1, self._given.settle, self._given.seconds)
            row = phase.row()
            print(f"{row['gpus']} engines: {row['requests_per_s']:.2f} requests/s, {row}", flush=True)
            if phase.pictures > self._share:
                raise ValueError(
                    f"a phase asked about {phase.pictures} pictures and had {self._share} of its own: the next would "
                    f"find some in caches; give more than --pictures {len(self._pictures)}, or fewer --seconds"
                )
            save_to(self._given.out)(self.report())

    def _phase(self, engines: Sequence[int], number: int, settle: float, seconds: float) -> Phase:
        given = self._given
        pipes = {self._members[at].name: self._members[at].pipe for at in engines}
        phase = Routed(pipes, self._pictures, given.callers, number * self._share, given.slack).run(settle, seconds)
        self._phases.append(phase)
        return phase

    @property
    def _share(self) -> int:
        """Pictures of each phase, the first that warms up too."""
        return len(self._pictures) // (1 + len(plan(self.gpus, self._given.waves)))

    def report(self) -> dict[str, Any]:
        """All there is so far, ready for JSON."""
        given = self._given
        return {
            "benchmark": "fleet",
            "machine": {**describe_machine().as_dict(), **(_gpu_facts() if given.device != CPU else {})},
            "versions": {"gapless": _own_version()},
            "command": f"python -m gapless.bench.fleet {' '.join(given.words)}",
            "device": given.device,
            "model": given.model,
            "load": {
                "callers_each": given.callers,
                "tokens": given.tokens,
                "rows": given.rows,
                "picture": "{} x {}".format(*SIZE),
                "questions_a_picture": REPEATS,
                "slack": given.slack,
            },
            "start_seconds": self.started,
            "rows": [phase.row() for phase in self._phases],
            "ratio": ratios(self._phases),
        }

    def close(self) -> None:
        """End all engines."""
        for member in self._members:
            member.stop()


def _gpu_facts() -> dict[str, Any]:
    import torch

    return {"gpu": torch.cuda.get_device_name(0), "gpus_seen": torch.cuda.device_count()}


def _own_version() -> str:
    from gapless import __version__

    return __version__


def options() -> argparse.ArgumentParser:
    """What can be set."""
    parser = argparse.ArgumentParser(prog="python -m gapless.bench.fleet", description="What a second GPU brings.")
    parser.add_argument("--gpus", default="1,2", help="numbers of engines to compare")
    parser.add_argument("--device", default="cuda", choices=("cuda", CPU))
    parser.add_argument("--model", default="moondream-2", help="a size of random weights; on a CPU a model's name")
    parser.add_argument("--rows", type=int, default=64, help="requests that run at once in an engine")
    parser.add_argument(
        "--callers",
        type=int,
        default=96,
        help="requests open at each engine on average: more than rows, so none are free",
    )
    parser.add_argument("--tokens", type=int, default=32, help="of an answer on average")
    parser.add_argument("--pictures", type=int, default=5000, help="different ones, of which no phase shows another's")
    parser.add_argument("--slack", type=int, default=SLACK, help="see api.affinity")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds at most before counting begins")
    parser.add_argument("--seconds", type=float, default=6.0, help="counted in each phase")
    parser.add_argument("--waves", type=int, default=2, help="phases of each number of engines")
    parser.add_argument("--out", type=Path)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    given = options().parse_args(words)
    given.words = words
    began = perf_counter()
    bench = FleetBench(given)
    try:
        bench.open()
        print(f"engines started in {bench.started} s", flush=True)
        bench.run()
    finally:
        bench.close()
    print(f"requests/s over those of {bench.gpus[0]}: {ratios(bench._phases)}; {perf_counter() - began:.0f} s in all")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
