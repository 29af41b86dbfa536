"""A closed load on one engine or several, routed as a fleet routes: by picture, with the least busy one as a fallback.

In: pipes to engines, pictures, and how many requests are to be open. Out: a `Phase`: what was answered in a stretch of
time that begins when the load has settled. Each picture is asked about `REPEATS` times, a while apart; at any time as
many requests are about new pictures as in any other turn, so that a stretch of any length has the same mix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from multiprocessing.connection import Connection, wait
from statistics import median
from time import perf_counter
from typing import Any

from gapless.api.affinity import order
from gapless.bench.fleet_engine import Ask, Done
from gapless.bench.latency import percentile

REPEATS = 4
LONGEST_SILENCE = 60.0
"""Seconds after which engines that say nothing are given up."""


def picture_of(number: int, apart: int) -> int:
    """Which picture request `number` is about: a new one in every `REPEATS`th request, and those of `apart`, twice and
    thrice as many pictures ago in the others. Never below 0."""
    turn, again = divmod(number, REPEATS)
    return (REPEATS - 1 - again) * apart + turn


@dataclass(frozen=True, slots=True)
class Phase:
    """What was answered in `seconds`. `latencies` in ms; `home`: of the requests about a picture seen before, those
    that went to the engine that saw it first; `again`: how many were about one; `by_engine`: requests; `idle_shares`:
    of the device's time, by engine, as it says itself."""

    engines: int
    seconds: float
    latencies: tuple[float, ...]
    tokens: int
    cached_requests: int
    home: int
    again: int
    by_engine: Mapping[str, int]
    idle_shares: Mapping[str, float]
    pictures: int
    """Different ones that were asked about, those before and after the counted stretch too."""

    @property
    def per_second(self) -> float:
        """Requests."""
        return len(self.latencies) / self.seconds

    def row(self) -> dict[str, Any]:
        """For JSON."""
        waited = self.latencies or (0.0,)
        return {
            "gpus": self.engines,
            "seconds": round(self.seconds, 2),
            "requests": len(self.latencies),
            "requests_per_s": round(self.per_second, 3),
            "tokens_per_s": round(self.tokens / self.seconds, 1),
            "latency_p50_ms": round(median(waited), 1),
            "latency_p90_ms": round(percentile(waited, 90), 1),
            "repeats_at_home_share": round(self.home / max(self.again, 1), 4),
            "cached_request_share": round(self.cached_requests / max(len(self.latencies), 1), 4),
            "pictures": self.pictures,
            "requests_by_engine": dict(self.by_engine),
            "idle_shares": {name: round(share, 5) for name, share in self.idle_shares.items()},
        }


@dataclass
class Routed:
    """One phase under way. `pipes`: by engine; `callers`: requests open at each engine on average."""

    pipes: Mapping[str, Connection]
    pictures: Sequence[bytes]
    callers: int
    first: int
    """The first picture's number: phases take different ones."""
    slack: int
    _open: dict[int, tuple[str, float, bool, bool]] = field(default_factory=dict)
    """By number: engine, when it was asked, whether its picture was asked about before, and whether there."""
    _homes: dict[int, str] = field(default_factory=dict)
    _next: int = 0

    @property
    def apart(self) -> int:
        """Pictures after which one is asked about again: as many requests as are open."""
        return max(1, self.callers * len(self.pipes) // REPEATS)

    def run(self, settle: float, seconds: float) -> Phase:
        """Load, wait until every picture is one that was asked about as often as it should (`settle` seconds at most),
        count, and let the rest end. Raises `ChildProcessError` when an engine says nothing more or a request fails,
        `EOFError` when one ends."""
        loads = dict.fromkeys(self.pipes, 0)
        found: list[tuple[str, float, Done, bool, bool]] = []
        for _ in range(self.callers * len(self.pipes)):
            self._send(loads)
        began = perf_counter()
        self._until(began + settle, loads, None, 3 * self.apart * REPEATS)
        before, start = self._spent(loads), perf_counter()
        self._until(start + seconds, loads, found)
        end = perf_counter()
        after = self._spent(loads)
        self._until(None, loads, None)
        idle = {name: _idle_share(before[name], after[name]) for name in self.pipes}
        counts = {name: sum(engine == name for engine, *_ in found) for name in self.pipes}
        return Phase(
            engines=len(self.pipes),
            seconds=end - start,
            latencies=tuple(1e3 * took for _, took, *_ in found),
            tokens=sum(done.tokens for _, _, done, *_ in found),
            cached_requests=sum(done.cached > 0 for _, _, done, *_ in found),
            home=sum(again and home for *_, again, home in found),
            again=sum(again for *_, again, _ in found),
            by_engine=counts,
            idle_shares=idle,
            pictures=len(self._homes),
        )

    def _send(self, loads: dict[str, int]) -> None:
        number, self._next = self._next, self._next + 1
        picture = (self.first + picture_of(number, self.apart)) % len(self.pictures)
        key = blake2b(picture.to_bytes(8, "big"), digest_size=16).hexdigest()
        engine = order(key, loads, self.slack, turn=number)[0]
        loads[engine] += 1
        again, home = picture in self._homes, self._homes.setdefault(picture, engine) == engine
        self._open[number] = (engine, perf_counter(), again, home)
        self.pipes[engine].send(Ask(number, self.pictures[picture]))

    def _until(
        self, end: float | None, loads: dict[str, int], found: list[Any] | None, asked: int | None = None
    ) -> None:
        """Take answers, and ask anew for each until `end`, or until so many were asked; None: until nothing is open."""
        while self._open and (end is None or perf_counter() < end) and (asked is None or self._next < asked):
            for pipe in self._ready(end):
                message = pipe.recv()
                if isinstance(message, Done):
                    self._take(message, loads, found)
                    if end is not None:
                        self._send(loads)

    def _take(self, done: Done, loads: dict[str, int], found: list[Any] | None) -> None:
        engine, asked, again, home = self._open.pop(done.number)
        loads[engine] -= 1
        if done.error:
            raise ChildProcessError(f"a request failed: {done.error}")
        if found is not None:
            found.append((engine, perf_counter() - asked, done, again, home))

    def _ready(self, end: float | None) -> list[Connection]:
        patience = LONGEST_SILENCE if end is None else max(0.0, end - perf_counter())
        ready = [pipe for pipe in wait(list(self.pipes.values()), patience) if isinstance(pipe, Connection)]
        if not ready and end is None:
            raise ChildProcessError(f"{len(self._open)} requests got no answer within {LONGEST_SILENCE:g} s")
        return ready

    def _spent(self, loads: dict[str, int]) -> dict[str, dict[str, Any]]:
        """What each engine says it spent; answers that come meanwhile are replaced by new questions."""
        told: dict[str, dict[str, Any]] = {}
        for name, pipe in self.pipes.items():
            pipe.send("spent")
            while name not in told:
                message = pipe.recv()
                if isinstance(message, Done):
                    self._take(message, loads, None)
                    self._send(loads)
                else:
                    told[name] = message[1]
        return told


def _idle_share(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    idle, busy = after["idle_ms"] - before["idle_ms"], after["busy_ms"] - before["busy_ms"]
    return float(idle / (idle + busy)) if idle + busy else 0.0
