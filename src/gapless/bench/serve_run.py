"""The serving benchmark: what HTTP costs, beside the same engine asked in this process.

In: a `ServeRig` and `Options`. Out: a report for `benchmarks/*/serve-*.json`: a row for each number of callers and
side, and a row a side of what a decode step takes while all streams are busy. Every request is about a picture of its
own; all answers end at their length. The sides take turns, in changing order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from time import perf_counter
from typing import Any

from gapless.api.load import Progress
from gapless.bench.sections import Sections, still
from gapless.bench.serve_load import Load, Run
from gapless.bench.serve_rig import ServeRig
from gapless.bench.serve_rows import HERE, HTTP, fill_overheads, fill_step_costs, load_row, stream_row

SIDES = (HERE, HTTP)
WARM = 8
SETTINGS = {"temperature": 0.0}


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure. `rounds`: questions of each caller in a slice, and at least `fewest` in all; `tokens`: of their
    answers. `streams` answers of `stream_tokens` at once, looked at `every` so many seconds. `waves`: slices of each
    row; `seconds`: no new slice begins after that long.
    """

    concurrency: tuple[int, ...] = (1, 16, 64, 128)
    streams: int = 64
    tokens: int = 110
    stream_tokens: int = 512
    rounds: int = 2
    fewest: int = 6
    every: float = 0.05
    waves: int = 2
    seconds: float = 150.0

    def requests(self, concurrency: int) -> int:
        """Questions of one slice."""
        return max(self.rounds * concurrency, self.fewest)


@dataclass
class ServeBench:
    """One run over a rig: its slices so far. `began`: when the measurement began, start of the rig included."""

    rig: ServeRig
    options: Options
    _: KW_ONLY
    progress: Progress | None = None
    now: Callable[[], float] = perf_counter
    loads: dict[tuple[int, str], list[Run]] = field(default_factory=dict)
    streams: dict[str, list[Run]] = field(default_factory=dict)
    exit_code: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    _pictures: int = 0

    def __post_init__(self) -> None:
        options = self.options
        spent = sum(self.rig.seconds.values())
        total = options.waves * len(SIDES) * (len(options.concurrency) + 1) + 1
        self.sections = Sections(options.seconds - spent, total, self.progress, self.now)

    def run(self, save: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """Measure everything, and stop the server; `save` is given the report after every turn."""
        self.sections.run("warm-up", self._warm_up)
        with still():
            self.facts = self.rig.facts()
            for turn in range(self.options.waves):
                for concurrency in self.options.concurrency:
                    self._pair(turn, f"{concurrency} callers", self._load, concurrency)
                self._pair(turn, f"{self.options.streams} streams", self._stream, self.options.streams)
                save(self.report())
        self._stop()
        return self.report()

    def _pair(self, turn: int, what: str, work: Callable[[str, int, int], None], count: int) -> None:
        """The same on both sides; from the second turn on, nothing where the time would not do."""
        names = {side: f"{what}, {side}, turn" for side in (SIDES if turn % 2 == 0 else SIDES[::-1])}
        cost = sum(self.sections.seconds.get(f"{name} 1", 0.0) for name in names.values())
        first = self._pictures
        for side, name in names.items():
            if turn == 0 or cost <= self.sections.left:
                self.sections.run(f"{name} {turn + 1}", work, side, count, first)
            else:
                self.sections.leave_out(f"{name} {turn + 1}")

    def _warm_up(self) -> None:
        count = max(*self.options.concurrency, self.options.streams)
        callers = min(WARM, count)
        self._pictures = 2 * callers
        self.rig.warm_up(Load(callers, callers, 0, SETTINGS | {"max_tokens": self.options.tokens}))

    def _load(self, side: str, concurrency: int, first: int) -> None:
        requests = self.options.requests(concurrency)
        load = Load(concurrency, requests, first, SETTINGS | {"max_tokens": self.options.tokens})
        self._pictures = first + requests
        run = self.rig.over_http(load, stream=False) if side == HTTP else self.rig.here(load)
        self.loads.setdefault((concurrency, side), []).append(run)

    def _stream(self, side: str, count: int, first: int) -> None:
        load = Load(count, count, first, SETTINGS | {"max_tokens": self.options.stream_tokens}, self.options.every)
        self._pictures = first + count
        run = self.rig.over_http(load, stream=True) if side == HTTP else self.rig.here(load)
        run.busy()  # a run that shows nothing is a note, and no part of a row
        self.streams.setdefault(side, []).append(run)

    def _stop(self) -> None:
        """However late it is. The server's end is part of what is measured: another code than 0 is a note."""
        try:
            self.exit_code = self.rig.stop()
        except ChildProcessError as error:
            self.sections.notes.append(str(error))
        if self.exit_code not in (0, None):
            self.sections.notes.append(f"at SIGTERM the server ended with {self.exit_code}: {self.rig.last_words()}")

    def report(self) -> dict[str, Any]:
        """All there is so far, ready for JSON."""
        order = sorted(self.loads, key=_place)
        rows = [load_row(side, concurrency, self.loads[concurrency, side]) for concurrency, side in order]
        steps = [stream_row(side, self.streams[side]) for side in SIDES if side in self.streams]
        fill_overheads(rows)
        fill_step_costs(steps)
        return {
            "benchmark": "serve",
            **self.facts,
            "settings": SETTINGS | {"max_tokens": self.options.tokens, "stream_max_tokens": self.options.stream_tokens},
            "rows": rows,
            "streams": steps,
            "exit_code": self.exit_code,
            "seconds": self.rig.seconds | self.sections.seconds,
            "notes": self.sections.notes,
        }


def _place(key: tuple[int, str]) -> tuple[int, int]:
    return key[0], SIDES.index(key[1])
