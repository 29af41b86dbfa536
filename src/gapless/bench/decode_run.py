"""The decode benchmark: what a step takes at several numbers of streams, blocking and pipelined.

In: a `Rig` (a model on a device, and what can be measured on it) and `Options`. Out: a report for
`benchmarks/*/decode-*.json` with a row per streams and depth, and the host's part. How it is measured:

- Every stream is a request on a picture of its own (so that keys and values are read from memory, not from a cache)
  whose answer ends at a length the engine does not know (`bench.ending`). A row is a wave (`bench.wave`): the period
  is that of the steps with all rows, tokens per second and zombies count to the last end. Depths take turns, several
  times over, and the row is the wave whose tokens per second are the median (`waves` has the least and the most).
- `forward_ms`, `sampling_ms`: the two graphs replayed alone, at the wave's context.
- `idle_ms`: the gap between one step's last and the next step's first kernel, in a profiler's trace (`bench.trace`).
  Traces are taken last, so that no profiler is near the other numbers.
  `gap_ms`, from the device's own marks and without a profiler, is beside it: from behind a step's last copy to the
  next step's first kernel.
- `plan_ms`, `launch_ms`, `commit_ms`: the host's parts, by the engine's own meter (`observe.meter`).
- `predicted_gain`: what depth should bring by the parts of the row of depth 1 (`bench.cost_model`), beside what it
  brought, `observed_gain`. `answer_tokens` is the mean length of the answers.
- `roofline_share`: the bytes a step must read over the bandwidth measured just before (`bench.roofline`), as a part of
  the period.

A section that fails or does not fit into the time is noted in the report and its numbers are null; the rest goes on.
"""

from __future__ import annotations

import gc
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from gapless.bench.cost_model import predict_rows
from gapless.bench.hostpart import NULL, ROWS, HostPart, measure_null, measure_rows
from gapless.bench.roofline import Roofline, gain
from gapless.bench.timed import Session
from gapless.bench.trace import Gaps, StepWork, gaps_of
from gapless.bench.wave import Wave, advance, questions, ride

COLUMNS = (
    "streams",
    "depth",
    "context",
    "forward_ms",
    "sampling_ms",
    "period_ms",
    "idle_ms",
    "plan_ms",
    "launch_ms",
    "commit_ms",
    "zombie_share",
    "tokens_per_s",
    "gb_per_s",
    "roofline_share",
    "predicted_gain",
    "observed_gain",
)
Row = dict[str, Any]
Key = tuple[int, int]
"""Streams and depth."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure. `seconds`: no new section begins after that long. `settled`: full steps before the isolated
    replays and before a trace of `traced` steps; `host_steps`: of the host's part at each of `host_rows`; `waves`: how
    often each row is measured."""

    streams: tuple[int, ...] = (1, 8, 32, 64)
    depths: tuple[int, ...] = (1, 2)
    seconds: float = 150.0
    settled: int = 50
    traced: int = 24
    host_rows: tuple[int, ...] = ROWS
    host_steps: int = 40
    waves: int = 3


class Rig(Protocol):
    """A model on a device. Devices of all depths stay open until `close`."""

    @property
    def name(self) -> str:
        """Of the kind of device, for the table of the host's part."""
        ...

    @property
    def roofline(self) -> Roofline:
        """What a step must read, and how fast this machine reads."""
        ...

    @property
    def side(self) -> int:
        """Pixels of a crop's side."""
        ...

    def session(self, depth: int) -> Session:
        """The engine of that depth, opened when first asked for."""
        ...

    def isolated(self, session: Session, rows: int) -> tuple[float | None, float | None]:
        """Milliseconds of the forward and of the tail of `rows` rows alone. Nothing is in flight; the rows' state is
        left as it was."""
        ...

    def traced(self, session: Session, rows: int, steps: int) -> list[StepWork]:
        """Run `steps` steps under a profiler."""
        ...

    def facts(self) -> dict[str, Any]:
        """Machine, versions, clocks and the like, for the report's head."""
        ...


@dataclass
class Bench:
    """One run over a rig: its rows so far, and what went wrong."""

    rig: Rig
    options: Options
    now: Callable[[], float] = perf_counter
    rows: dict[Key, Row] = field(default_factory=dict)
    waves: dict[Key, list[Wave]] = field(default_factory=dict)
    answered: dict[Key, int] = field(default_factory=dict)
    """Tokens of all answers in a row's waves."""
    host: list[HostPart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    _began: float = 0.0
    _next_id: int = 1

    def run(self, save: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """Measure everything; `save` is given the report after every section."""
        self._began = self.now()
        self._section("host part without a device", self._null)
        keys = [(streams, depth) for streams in self.options.streams for depth in self.options.depths]
        for depth in self.options.depths:
            self._section(f"warm-up at depth {depth}", self._warm_up, depth)
        gc.collect()
        gc.freeze()
        for turn in range(self.options.waves):
            for streams, depth in keys:
                self._section(f"wave {turn + 1} of {streams} at depth {depth}", self._wave, streams, depth)
            save(self.report())
        for rows in self.options.host_rows:
            self._section(f"host part of {rows} rows", self._host, rows)
        for streams, depth in keys:
            self._section(f"isolated graphs of {streams} at depth {depth}", self._isolated, streams, depth)
        save(self.report())
        for streams, depth in reversed(keys):
            self._section(f"trace of {streams} at depth {depth}", self._trace, streams, depth)
            save(self.report())
        for rows in self.options.host_rows:
            self._section(f"device calls of {rows} rows", self._api_calls, rows)
        report = self.report()
        save(report)
        return report

    def report(self) -> dict[str, Any]:
        """All there is so far, ready for JSON."""
        fill_gains(self.rows)
        roofline = self.rig.roofline
        return {
            **self.rig.facts(),
            "roofline": {
                "weight_bytes": roofline.weight_bytes,
                "kv_bytes_per_position": roofline.token_bytes,
                "read_gb_per_s": round(roofline.bandwidth / 1e9, 1),
            },
            "rows": [self.rows[key] for key in sorted(self.rows)],
            "host": [part.as_dict() for part in self.host],
            "seconds": self.seconds,
            "notes": self.notes,
        }

    def _section(self, name: str, work: Callable[..., None], *arguments: int) -> None:
        with self._guarded(name) as goes:
            if goes:
                work(*arguments)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[bool]:
        """Time a section; a failure is noted and does not end the run, but the sessions are cleared after it."""
        began = self.now()
        goes = began - self._began < self.options.seconds
        if not goes:
            self.notes.append(f"{name}: left out, the time was over")
        try:
            yield goes
        except Exception as error:
            self.notes.append(f"{name}: {type(error).__name__}: {error} (at {_origin(error)})")
        if goes:
            self.seconds[name] = round(self.now() - began, 2)

    def _ask(self, rows: int) -> int:
        """The first of `rows` request ids that were never used."""
        first = self._next_id
        self._next_id += rows
        return first

    def _null(self) -> None:
        self.host += measure_null(self.options.host_rows, self.options.depths[-1], self.options.host_steps)

    def _warm_up(self, depth: int) -> None:
        rows = min(self.options.streams[-1], 8)
        ride(self.rig.session(depth), questions(rows, self._ask(rows), self.rig.side), steps=5)

    def _wave(self, streams: int, depth: int) -> None:
        key, session = (streams, depth), self.rig.session(depth)
        before = session.engine.counters.tokens
        wave = ride(session, questions(streams, self._ask(streams), self.rig.side))
        taken = self.waves.setdefault(key, [])
        taken.append(wave)
        self.answered[key] = self.answered.get(key, 0) + session.engine.counters.tokens - before
        self.rows[key] = row_of(taken, depth, self.rig.roofline)
        self.rows[key]["answer_tokens"] = _rounded(self.answered[key] / (len(taken) * streams))

    def _settle(self, streams: int, depth: int) -> Session:
        session = self.rig.session(depth)
        session.submit(questions(streams, self._ask(streams), self.rig.side))
        advance(session, streams, self.options.settled)
        return session

    def _isolated(self, streams: int, depth: int) -> None:
        session = self._settle(streams, depth)
        try:
            session.drain()
            forward, sampling = self.rig.isolated(session, streams)
            self.rows[streams, depth].update(forward_ms=_rounded(forward), sampling_ms=_rounded(sampling))
        finally:
            session.stop()

    def _trace(self, streams: int, depth: int) -> None:
        session = self._settle(streams, depth)
        try:
            gaps = gaps_of(self.rig.traced(session, streams, self.options.traced))
        finally:
            session.stop()
        self.rows[streams, depth].update(idle_ms=_rounded(gaps.median_ms), trace=trace_part(gaps))

    def _host(self, rows: int) -> None:
        depth = self.options.depths[-1]
        first, steps = self._ask(rows), self.options.host_steps
        self.host.append(measure_rows(self.rig.session(depth), self.rig.name, rows, depth, first, steps))

    def _api_calls(self, rows: int) -> None:
        session = self.rig.session(self.options.depths[-1])
        session.submit(questions(rows, self._ask(rows), None))
        try:
            advance(session, rows, 4)
            steps = self.rig.traced(session, rows, 10)
        finally:
            session.stop()
        if steps:
            calls = dict(steps[len(steps) // 2].calls)
            self.host = [
                part.with_calls(calls) if part.rows == rows and part.device != NULL else part for part in self.host
            ]


def _origin(error: Exception) -> str:
    """The innermost places an error passed, file and line, outermost first."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)


def row_of(waves: Sequence[Wave], depth: int, roofline: Roofline) -> Row:
    """Waves of as many rows as a row of the report, the median one's; what other sections fill in is null."""
    ranked = sorted(waves, key=attrgetter("tokens_per_s"))
    wave = ranked[len(ranked) // 2]
    period = wave.period_ms
    row: Row = dict.fromkeys(COLUMNS)
    row.update(
        streams=wave.rows,
        depth=depth,
        context=round(wave.context, 1),
        period_ms=_rounded(period),
        plan_ms=_rounded(wave.plan_ms),
        launch_ms=_rounded(wave.launch_ms),
        commit_ms=_rounded(wave.commit_ms),
        zombie_share=_rounded(wave.zombie_share),
        tokens_per_s=round(wave.tokens_per_s, 1),
        waves=[round(w.tokens_per_s, 1) for w in (ranked[0], ranked[-1])],
        steps=wave.full_steps,
        device_ms=_rounded(wave.device_ms),
        gap_ms=_rounded(wave.gap_ms),
        wait_ms=_rounded(wave.wait_ms),
        floor_ms=_rounded(roofline.floor_ms(wave.rows, wave.context)),
    )
    if period:
        row["gb_per_s"] = round(roofline.achieved_gb_per_s(wave.rows, wave.context, period), 1)
        row["roofline_share"] = _rounded(roofline.share(wave.rows, wave.context, period))
    return row


def fill_gains(rows: Mapping[Key, Row]) -> None:
    """Each row's throughput over that of depth 1 with as many streams, as it should be and as it is, where there is
    one."""
    for row, predicted in zip(rows.values(), predict_rows(list(rows.values())), strict=True):
        row["predicted_gain"] = _rounded(predicted)
    for (streams, _), row in rows.items():
        blocking = rows.get((streams, 1))
        if blocking is not None:
            row["observed_gain"] = _rounded(gain(row["tokens_per_s"], blocking["tokens_per_s"]))


def trace_part(gaps: Gaps) -> dict[str, Any]:
    """The trace's other numbers: how sure the idle time is, and how far the profiler slowed the run."""
    return {
        "pairs": gaps.pairs,
        "missing": gaps.missing,
        "idle_mean_ms": _rounded(gaps.mean_ms),
        "idle_max_ms": _rounded(gaps.max_ms),
        "idle_with_copies_ms": _rounded(gaps.any_ms),
        "period_ms": _rounded(gaps.period_ms),
        "span_ms": _rounded(gaps.span_ms),
        "kernels": gaps.kernels,
    }


def table_of(rows: Sequence[Row]) -> str:
    """The rows as text, one line each, columns aligned."""
    lines = [COLUMNS, *(tuple(cell(row.get(column)) for column in COLUMNS) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def cell(value: Any) -> str:
    """A value of a table as text."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e4 else str(value)


def _rounded(value: float | None) -> float | None:
    """Five digits are more than any of these numbers is good for."""
    if value is None or not math.isfinite(value) or value == 0:
        return value
    return round(value, max(0, 5 - 1 - math.floor(math.log10(abs(value)))))
