"""The gaps benchmark: how long running answers stand still while new pictures come in.

In: a `Rig` whose answers do not end, and `Options`. Out: a report for `benchmarks/*/gaps-*.json`, a row for each way:
`quiet`, streams alone; `cut`, with new pictures at a steady rate, prompts and pictures cut to `max_step_ms`; `whole`,
the same pictures without cutting. The ways take turns on one engine, so that each meets the machine in every mood.

A gap lies between two tokens of one request, as the loop's thread hands them over. `tpot` is a request's mean gap, of
streams and of answers about pictures alike, where there are enough tokens. Pictures come by the clock, however long
others take.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from gapless.api.load import Progress
from gapless.bench.latency import percentile
from gapless.bench.rig import Rig
from gapless.bench.sections import Sections, still
from gapless.bench.text import rounded
from gapless.bench.timed import Session
from gapless.bench.wave import questions
from gapless.engine.feeding import Cutting
from gapless.records import Crops, Picture, Prompt, Request, StepKind, Talk

WAYS = ("quiet", "whole", "cut")
ENOUGH = 8
"""Tokens of a request whose mean gap counts."""
STEPS = 1.5
"""How many quiet steps the longest gap may have beside `max_step_ms`."""
RATIO = 2.5
"""How many times its quiet value the 99th percentile of `tpot` may have."""
SLOTS = 4
"""Pictures of each number of crops whose pixels are drawn; others repeat them under another name."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure. `streams` at once; `rate`: new pictures a second, of `tilings` in turn, each with an answer of
    `answer` tokens; `slices`: of each way, of `length` seconds each; `seconds`: no new slice begins after that long."""

    max_step_ms: float = 8.0
    streams: int = 32
    rate: float = 10.0
    tilings: tuple[tuple[int, int], ...] = ((1, 1), (2, 2), (2, 3), (3, 4), (2, 4), (3, 4))
    answer: int = 24
    length: float = 2.0
    slices: int = 3
    depth: int = 2
    seconds: float = 60.0


@dataclass(slots=True)
class Heard:
    """What was handed over in a slice: moments by request, and when each picture came."""

    times: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    asked: dict[int, float] = field(default_factory=dict)

    def gaps(self) -> list[float]:
        """Between tokens of one request, in milliseconds."""
        return [1e3 * (b - a) for times in self.times.values() for a, b in pairwise(times)]

    def means(self) -> list[float]:
        """Each request's mean gap, in milliseconds."""
        long = (times for times in self.times.values() if len(times) >= ENOUGH)
        return [1e3 * (times[-1] - times[0]) / (len(times) - 1) for times in long]

    def waits(self) -> list[float]:
        """From a picture's coming to its first token, in milliseconds."""
        return [1e3 * (self.times[number][0] - at) for number, at in self.asked.items() if self.times.get(number)]


@dataclass(slots=True)
class Way:
    """All slices of one way. `steps`: the device's time in each prefill step, in milliseconds."""

    heard: list[Heard] = field(default_factory=list)
    seconds: float = 0.0
    steps: list[float] = field(default_factory=list)
    parts: int = 0
    over: int = 0

    def all(self, of: Callable[[Heard], list[float]]) -> list[float]:
        """The values of all slices."""
        return [value for heard in self.heard for value in of(heard)]


@dataclass
class GapsBench:
    """One run over a rig."""

    rig: Rig
    options: Options
    _: KW_ONLY
    progress: Progress | None = None
    now: Callable[[], float] = perf_counter
    ways: dict[str, Way] = field(default_factory=dict)
    _next_id: int = 1
    _cutting: Cutting | None = None
    """The engine's own, once it is warm; `_slice` takes it out for the other ways."""

    def __post_init__(self) -> None:
        options = self.options
        self.sections = Sections(options.seconds, 1 + len(WAYS) * options.slices, self.progress, self.now)
        side, rng = self.rig.side, np.random.default_rng(9)
        counts = {1 + rows * columns for rows, columns in options.tilings}
        self._crops: dict[int, list[Crops]] = {
            count: [rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8) for _ in range(SLOTS)]
            for count in sorted(counts)
        }

    def run(self, save: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """Measure everything; `save` is given the report after every turn."""
        self.sections.run("warm-up", self._warm_up)
        with still():
            for turn in range(self.options.slices):
                for name in WAYS if turn % 2 == 0 else WAYS[::-1]:
                    self.sections.run(f"{name}, slice {turn + 1}", self._slice, name, self.options.length, True)
                save(self.report())
        return self.report()

    def _warm_up(self) -> None:
        self._cutting = self.rig.session(self.options.depth).engine.feeder.cutting
        for name in ("whole", "cut"):
            self._slice(name, len(self.options.tilings) / self.options.rate, False)

    def _slice(self, name: str, length: float, counts: bool) -> None:
        session = self.rig.session(self.options.depth)
        session.watch.notes.clear()
        session.engine.feeder.cutting = self._cutting if name == "cut" else None
        counted = session.engine.counters
        parts, over = counted.prompt_parts, counted.long_steps
        heard = Heard()
        try:
            began = self._begin(session)
            self._go_on(session, heard, began, length, 0.0 if name == "quiet" else self.options.rate)
        finally:
            session.stop()
        if counts:
            way = self.ways.setdefault(name, Way())
            way.heard.append(heard)
            way.seconds += length
            way.parts += counted.prompt_parts - parts
            way.over += counted.long_steps - over
            arrived = [note.arrival for note in session.watch.notes if note.step.kind is StepKind.PREFILL]
            way.steps += [1e3 * (one.ended - one.started - one.paused) for one in arrived if one is not None]

    def _begin(self, session: Session) -> float:
        """All streams run; returns the time."""
        streams = self._number(self.options.streams)
        session.submit(questions(len(streams), streams[0], self.rig.side, max_tokens=self._room()))
        speaking: set[int] = set()
        while len(speaking) < len(streams):
            speaking |= {emission.request_id for emission in session.tick() if emission.tokens}
        session.watch.notes.clear()
        return self.now()

    def _go_on(self, session: Session, heard: Heard, began: float, length: float, rate: float) -> None:
        loop, book, come = session.engine.loop, session.engine.book, 0
        while (now := self.now()) - began < length:
            if rate and now - began >= come / rate:
                request = self._picture(come)
                heard.asked[request.id] = began + come / rate
                session.submit([request])
                come += 1
            if not loop.tick():
                time.sleep(0)
            news, now = book.take_news(), self.now()
            for one in news:
                for number in one.requests if isinstance(one, Talk) else (one.request_id,) if one.tokens else ():
                    heard.times[number].append(now)

    def _picture(self, come: int) -> Request:
        """A question about a picture that nobody saw before."""
        (number,) = self._number(1)
        tiling = self.options.tilings[come % len(self.options.tilings)]
        drawn = self._crops[1 + tiling[0] * tiling[1]]
        shown = Picture(f"{number:064x}", drawn[number % SLOTS], tiling, self.rig.side, self.rig.side)
        (asked,) = questions(1, number, None, max_tokens=self.options.answer)
        return Request(number, Prompt(asked.prompt.ids[1:], asked.prompt.values[1:], shown), "text", asked.sampling)

    def _number(self, count: int) -> range:
        first, self._next_id = self._next_id, self._next_id + count
        return range(first, self._next_id)

    def _room(self) -> int:
        """As many tokens as a stream may have."""
        text = self.rig.config.text
        return text.max_context - text.prefix_attn - 64

    def report(self) -> dict[str, Any]:
        """All there is so far, ready for JSON."""
        rows = [self._row(name, self.ways[name]) for name in WAYS if name in self.ways]
        return {
            "benchmark": "gaps",
            **self.rig.facts(),
            "streams": self.options.streams,
            "pictures_per_s": self.options.rate,
            "crops": [1 + rows * columns for rows, columns in self.options.tilings],
            "max_step_ms": self.options.max_step_ms,
            "costs": self._costs(),
            "rows": rows,
            "asked": self._asked(rows),
            "seconds": self.sections.seconds,
            "notes": self.sections.notes,
        }

    def _row(self, name: str, way: Way) -> dict[str, Any]:
        gaps, means, waits = way.all(Heard.gaps), way.all(Heard.means), way.all(Heard.waits)
        return {
            "way": name,
            "pictures": len(waits),
            "tokens_per_s": rounded((len(gaps) + sum(len(one.times) for one in way.heard)) / way.seconds),
            "gap_p50_ms": rounded(median(gaps)) if gaps else None,
            "gap_p99_ms": rounded(percentile(gaps, 99)) if gaps else None,
            "longest_gap_ms": rounded(max(gaps)) if gaps else None,
            "tpot_p50_ms": rounded(median(means)) if means else None,
            "tpot_p99_ms": rounded(percentile(means, 99)) if means else None,
            "ttft_p50_ms": rounded(median(waits)) if waits else None,
            "ttft_p99_ms": rounded(percentile(waits, 99)) if waits else None,
            "parts": way.parts,
            "longest_step_ms": rounded(max(way.steps)) if way.steps else None,
            "long_steps": way.over,
        }

    def _costs(self) -> dict[str, Any] | None:
        if self._cutting is None:
            return None
        costs = self._cutting.costs
        return {
            "crops_ms": {str(most): rounded(1e3 * seconds) for most, seconds in costs.crops},
            "tokens_ms": {str(most): rounded(1e3 * seconds) for most, seconds in costs.tokens},
            "picture_ms": rounded(1e3 * costs.picture),
            "step_ms": rounded(1e3 * costs.step),
            "behind_ns": rounded(1e9 * costs.behind),
        }

    def _asked(self, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
        """The bounds, from the quiet row, and whether the cut one keeps them."""
        found = {row["way"]: row for row in rows}
        if not all(found.get(way, {}).get("tpot_p99_ms") for way in ("quiet", "cut")):
            return None
        gap = self.options.max_step_ms + STEPS * found["quiet"]["gap_p50_ms"]
        tpot = RATIO * found["quiet"]["tpot_p99_ms"]
        return {
            "longest_gap_ms": rounded(gap),
            "longest_gap": found["cut"]["longest_gap_ms"] <= gap,
            "tpot_p99_ms": rounded(tpot),
            "tpot_p99": found["cut"]["tpot_p99_ms"] <= tpot,
        }
