"""The same load for an engine behind HTTP and for one in this process: so many tasks, each asking one question after
the other, and looks at what the engine has done meanwhile.

In: a `Load` and a `Side`. Out: a `Run` of plain numbers, which travels between processes as JSON. All times are seconds
of the machine's clock, which its processes share. Imports no HTTP and no torch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from itertools import chain, pairwise
from time import perf_counter
from typing import Any, Protocol

from gapless.observe.accounting import Accounting
from gapless.records import StepKind


@dataclass(frozen=True, slots=True)
class Load:
    """`requests` questions about pictures number `first` and on, of `callers` tasks; `every`: seconds between two looks
    at the engine, None: only before and after. `limit`: seconds that all of it may take."""

    callers: int
    requests: int
    first: int
    settings: Mapping[str, float | int]
    every: float | None = None
    limit: float = 120.0


@dataclass(frozen=True, slots=True)
class Heard:
    """One request as its caller saw it. `decode_ms`: from the first token to the last by the engine's clock; `events`:
    of a stream."""

    began: float
    ended: float
    tokens: int
    decode_ms: float
    finish: str
    events: int = 0

    @property
    def latency_ms(self) -> float:
        """From the call to the whole answer."""
        return 1e3 * (self.ended - self.began)

    @property
    def ttft_ms(self) -> float:
        """All of it but the decoding: the first token, and the way of the answer back."""
        return self.latency_ms - self.decode_ms


@dataclass(frozen=True, slots=True)
class Look:
    """Totals of an engine: asked for at `asked`, there at `told`. `cpu_s`: processor time of the process that answers
    HTTP, 0 where there is none."""

    asked: float
    told: float
    tokens: float
    decode_steps: float
    prefill_steps: float
    busy_ms: float
    idle_ms: float
    cpu_s: float = 0.0

    @classmethod
    def of(cls, asked: float, totals: Accounting) -> Look:
        """What an engine in this process says now."""
        steps = totals.steps
        return cls(
            asked=asked,
            told=perf_counter(),
            tokens=totals.counters.tokens,
            decode_steps=steps[StepKind.DECODE],
            prefill_steps=steps[StepKind.PREFILL],
            busy_ms=totals.busy_ms,
            idle_ms=totals.idle_ms,
        )

    def __sub__(self, earlier: Look) -> Look:
        """What came in between."""
        return Look(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(Look)))


@dataclass(frozen=True, slots=True)
class Run:
    """All requests of a load, and the looks in order, at least one before and one after. `cpu_s`: processor time of the
    process whose tasks asked."""

    heard: tuple[Heard, ...]
    looks: tuple[Look, ...]
    cpu_s: float

    @property
    def seconds(self) -> float:
        """From the first call to the last answer."""
        return max(h.ended for h in self.heard) - min(h.began for h in self.heard)

    @property
    def spent(self) -> Look:
        """What the engine did in all of it."""
        return self.looks[-1] - self.looks[0]

    def busy(self) -> Look:
        """What the engine did while every request decoded: the longest time with no prefill and a token a step for each
        of them. By the engine's counts alone, since what its callers hear may be late. Raises `ValueError` if there was
        no such time."""
        first, last = max((self._full_from(start) for start in range(len(self.looks))), key=_length)
        if last - first < 3:
            raise ValueError(
                f"{len(self.heard)} streams were seen busy at once in {last - first} times between looks; 3 are needed"
            )
        return self.looks[last - 1] - self.looks[first + 1]  # the times at both edges may be partly full

    def _full_from(self, start: int) -> tuple[int, int]:
        """`start`, and the last look up to which all steps from there on had all rows."""
        end = start
        for earlier, later in pairwise(self.looks[start:]):
            moved = later.decode_steps > earlier.decode_steps
            if not moved or not _is_full(later - self.looks[start], len(self.heard)):
                break
            end += 1
        return start, end

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Run:
        """From JSON."""
        heard = tuple(Heard(**one) for one in found["heard"])
        return cls(heard, tuple(Look(**one) for one in found["looks"]), found["cpu_s"])


def _length(part: tuple[int, int]) -> int:
    return part[1] - part[0]


def _is_full(part: Look, rows: int) -> bool:
    """Whether all rows got a token in each step of a part. A look at a running engine may come between the counts: each
    of the two may lack a step's tokens."""
    return part.prefill_steps == 0 and abs(part.tokens - rows * part.decode_steps) <= 2 * rows


class Side(Protocol):
    """Whoever is asked."""

    async def ask(self, caller: int, number: int) -> Heard:
        """Question `number` of the load, from 0, of task `caller`."""
        ...

    async def look(self) -> Look:
        """What the engine has done so far."""
        ...


async def run_load(load: Load, side: Side) -> Run:
    """Ask everything. Raises what a request raises, and `TimeoutError` after `limit` seconds."""
    looks: list[Look] = []
    numbers = iter(range(load.requests))

    async def caller(index: int) -> list[Heard]:
        return [await side.ask(index, number) for number in numbers]

    async with asyncio.timeout(load.limit):
        looks.append(await side.look())
        before = time.process_time()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(_watch(side, load.every, looks))
            asking = [tasks.create_task(caller(index)) for index in range(load.callers)]
            heard = [await one for one in asking]
            spent = time.process_time() - before
            watching.cancel()
        looks.append(await side.look())
    return Run(tuple(chain.from_iterable(heard)), tuple(looks), spent)


async def _watch(side: Side, every: float | None, looks: list[Look]) -> None:
    with suppress(asyncio.CancelledError):
        while every is not None:
            looks.append(await side.look())
            await asyncio.sleep(every)
