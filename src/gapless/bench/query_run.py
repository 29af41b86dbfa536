"""The query benchmark: what callers of the library wait for, from the bytes of a picture to the whole answer.

In: a `VlmRig` and `Options`. Out: a report for `benchmarks/*/query-*.json`, a row per length of answers, number of
callers and depth. Short answers show what prefilling beside decoding brings, long ones what pipelined decoding does.
Every request is about a picture of its own. Answers end at lengths the engine does not know. Depths take turns: a
slice of requests at one, the same at the other, in changing order; a row has all samples of its slices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import product
from time import perf_counter
from typing import Any

from gapless.api.load import Progress
from gapless.bench.clients import Settings, ask_all
from gapless.bench.latency import Slice, row_of
from gapless.bench.pictures import jpegs
from gapless.bench.roofline import gain
from gapless.bench.sections import Sections, still
from gapless.bench.text import rounded
from gapless.bench.vlm_rig import VlmRig

LENGTHS = {"short": (3, 3), "long": (100, 120)}
"""Tokens of an answer, from and to, its end among them."""
WARM = 4
Key = tuple[str, int, int]
"""Length of the answers, callers, depth."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure. `rounds`: questions of each caller in a slice, and at least `fewest` in all (by length of
    answers); `waves`: slices of each row; `settings`: of every query; `seconds`: no new slice begins after that long;
    `size`: of all pictures, width and height.
    """

    concurrency: tuple[int, ...] = (1, 4, 16, 64)
    depths: tuple[int, ...] = (1, 2)
    lengths: Mapping[str, tuple[int, int]] = field(default_factory=LENGTHS.copy)
    settings: Settings = field(default_factory=dict)
    rounds: int = 2
    fewest: Mapping[str, int] = field(default_factory={"short": 32, "long": 4}.copy)
    waves: int = 2
    seconds: float = 90.0
    size: tuple[int, int] | None = None

    def requests(self, answer: str, concurrency: int) -> int:
        """Questions of one slice."""
        return max(self.rounds * concurrency, self.fewest[answer])


@dataclass
class QueryBench:
    """One run over a rig: its slices so far."""

    rig: VlmRig
    options: Options
    _: KW_ONLY
    progress: Progress | None = None
    now: Callable[[], float] = perf_counter
    slices: dict[Key, list[Slice]] = field(default_factory=dict)
    _pictures: int = 0

    def __post_init__(self) -> None:
        options = self.options
        pairs = options.waves * len(options.lengths) * len(options.concurrency)
        total = len(options.depths) * (pairs + 1)
        self.sections = Sections(options.seconds, total, self.progress, self.now)

    def run(self, save: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """Measure everything; `save` is given the report after every turn."""
        for depth in self.options.depths:
            self.sections.run(f"warm-up at depth {depth}", self._warm_up, depth)
        with still():
            for turn in range(self.options.waves):
                for answer, concurrency in product(self.options.lengths, self.options.concurrency):
                    self._pair(turn, answer, concurrency)
                save(self.report())
        return self.report()

    def _pair(self, turn: int, answer: str, concurrency: int) -> None:
        """One slice at each depth, or from the second turn on none where the time would not do."""
        depths = self.options.depths if turn % 2 == 0 else self.options.depths[::-1]
        names = {d: f"{answer} answers, {concurrency} callers, depth {d}, turn" for d in depths}
        cost = sum(self.sections.seconds.get(f"{name} 1", 0.0) for name in names.values())
        for depth, name in names.items():
            if turn == 0 or cost <= self.sections.left:
                self.sections.run(f"{name} {turn + 1}", self._slice, answer, concurrency, depth, turn)
            else:
                self.sections.leave_out(f"{name} {turn + 1}")

    def _warm_up(self, depth: int) -> None:
        vlm = self.rig.vlm(depth)
        self.rig.end_after(depth, 3, 3, seed=0)
        callers = min(WARM, max(self.options.concurrency))
        ask_all(vlm, self._new(2 * WARM), callers, self.options.settings)

    def _slice(self, answer: str, concurrency: int, depth: int, turn: int) -> None:
        self.rig.end_after(depth, *self.options.lengths[answer], seed=turn)
        pictures = self._new(self.options.requests(answer, concurrency))
        found = ask_all(self.rig.vlm(depth), pictures, concurrency, self.options.settings)
        self.slices.setdefault((answer, concurrency, depth), []).append(found)

    def _new(self, count: int) -> list[bytes]:
        """Pictures that were never asked about."""
        self._pictures += count
        return jpegs(self._pictures - count, count, self.rig.side, self.options.size)

    def report(self) -> dict[str, Any]:
        """All there is so far, ready for JSON."""
        rows = [row_of(*key, slices) for key, slices in self.slices.items()]
        rows.sort(key=_place)
        fill_gains(rows)
        return {
            "benchmark": "query",
            **self.rig.facts(),
            "settings": dict(self.options.settings),
            "pictures": "of several sizes" if self.options.size is None else "{} x {}".format(*self.options.size),
            "rows": rows,
            "seconds": self.sections.seconds,
            "notes": self.sections.notes,
        }


def _place(row: Mapping[str, Any]) -> tuple[bool, int, int]:
    return row["answer"] == "long", row["concurrency"], row["depth"]


def fill_gains(rows: list[dict[str, Any]]) -> None:
    """Each row's requests per second over those of depth 1, where there is such a row."""
    blocking = {(r["answer"], r["concurrency"]): r["requests_per_s"] for r in rows if r["depth"] == 1}
    for row in rows:
        base = blocking.get((row["answer"], row["concurrency"]))
        row["observed_gain"] = None if base is None else rounded(gain(row["requests_per_s"], base))
