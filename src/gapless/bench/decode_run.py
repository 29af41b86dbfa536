"""The decode benchmark: what a step takes at several numbers of streams, blocking and pipelined.

In: a `Rig` and `Options`. Out: a report for `benchmarks/*/decode-*.json` with a row per sampler, streams and depth, and
the host's part. How it is measured:

- Every stream is a request on a picture of its own (so that keys and values are read from memory, not from a cache)
  whose answer ends at a length the engine does not know (`bench.ending`). A row is a wave (`bench.wave`), all of it by
  the engine's own accounting: the period and its parts are those of the steps with all rows, tokens per second and
  zombies count to the last end. Depths take turns, several times over, and the row is the wave whose tokens per second
  are the median (`waves` has the least and the most). From the second turn on a pair of depths is left out if the
  time would not do for what must follow.
- `forward_ms`, `sampling_ms`: the graphs replayed alone, at a context in the middle of an answer.
- `idle_ms`, `trace`: what a profiler says of a few greedy steps (`bench.trace`); `gap_ms` is the accounting's number.
  Traces are taken last, so that no profiler is near the other numbers.
- Rows that detect and rows with adapters of rank 16 are measured beside the others, as if they were two samplers more:
  `over_greedy` is by how much their period is above that of greedy rows in the same run.
- `predicted_gain`: what depth should bring by the parts of the row of depth 1 (`bench.cost_model`), beside what it
  brought, `observed_gain`.

A section that fails or does not fit into the time is noted in the report and its numbers are null; the rest goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import product
from time import perf_counter
from typing import Any

from gapless.api.load import Progress
from gapless.bench.decode_rows import (
    DEFAULT,
    GREEDY,
    KINDS,
    SAMPLERS,
    Key,
    Row,
    fill_gains,
    fill_isolated,
    fill_trace,
    row_of,
)
from gapless.bench.hostpart import NULL, ROWS, HostPart, measure_null, measure_rows
from gapless.bench.rig import ADAPTED, SPATIAL, Inside, Rig
from gapless.bench.sections import Sections, still
from gapless.bench.timed import Session
from gapless.bench.trace import gaps_of
from gapless.bench.wave import FAR, PROMPT, Wave, advance, questions, ride
from gapless.records import Request

REST_SECONDS = 12.0
"""About what the host's part and the first trace take beside the waves' own prefills."""
Save = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure. `seconds`: no new section begins after that long. `settled`: full steps before the isolated
    replays, `before_trace`: before a trace of `traced` steps; `host_steps`: of the host's part at each of `host_rows`;
    `waves`: how often each row is measured; `prompt`: ids behind a picture."""

    streams: tuple[int, ...] = (1, 8, 32, 64, 128)
    depths: tuple[int, ...] = (1, 2)
    seconds: float = 150.0
    settled: int = 50
    before_trace: int = 8
    traced: int = 20
    host_rows: tuple[int, ...] = ROWS
    host_steps: int = 40
    waves: int = 3
    samplers: tuple[str, ...] = SAMPLERS
    prompt: int = PROMPT

    @property
    def keys(self) -> list[Key]:
        """All rows, in the order they are measured: depths take turns."""
        found = product(self.streams, self.samplers, self.depths)
        return [(sampler, streams, depth) for streams, sampler, depth in found]

    @property
    def greedy(self) -> list[Key]:
        """The rows that are traced: the greedy ones, or where there are none, all."""
        return [key for key in self.keys if key[0] == GREEDY] or self.keys

    @property
    def kinds(self) -> list[str]:
        """What rows do beside writing text."""
        return [kind for kind in self.samplers if kind in KINDS]

    def sections(self, looks: bool) -> int:
        """How many sections there are."""
        isolated = len(self.streams) * (1 + len(self.kinds))
        inside = len(self.host_rows) + isolated + len(self.greedy) if looks else 0
        return 1 + len(self.depths) + self.waves * len(self.keys) + len(self.host_rows) + inside


@dataclass
class Bench:
    """One run over a rig: its rows so far, and what went wrong."""

    rig: Rig
    options: Options
    _: KW_ONLY
    progress: Progress | None = None
    now: Callable[[], float] = perf_counter
    rows: dict[Key, Row] = field(default_factory=dict)
    waves: dict[Key, list[Wave]] = field(default_factory=dict)
    host: list[HostPart] = field(default_factory=list)
    _next_id: int = 1

    def __post_init__(self) -> None:
        total = self.options.sections(self.rig.inside is not None)
        self.sections = Sections(self.options.seconds, total, self.progress, self.now)

    def run(self, save: Save) -> dict[str, Any]:
        """Measure everything; `save` is given the report after every few sections."""
        options, sections = self.options, self.sections
        sections.run("host part without a device", self._null)
        for depth in options.depths:
            sections.run(f"warm-up at depth {depth}", self._warm_up, depth)
        with still():
            for turn in range(options.waves):
                self._turn(turn, save)
            for rows in options.host_rows:
                sections.run(f"host part of {rows} rows", self._host, rows)
            if self.rig.inside is not None:
                self._look_inside(self.rig.inside, save)
        report = self.report()
        save(report)
        return report

    def _look_inside(self, inside: Inside, save: Save) -> None:
        options, sections = self.options, self.sections
        for streams in options.streams:
            sections.run(f"isolated graphs of {streams}", self._isolated, inside, streams)
            for kind in options.kinds:
                sections.run(f"isolated graphs of {streams}, {kind}", self._isolated, inside, streams, kind)
        save(self.report())
        for key in reversed(options.greedy):
            sections.run(f"trace of {_named(key)}", self._trace, inside, *key)
            save(self.report())
        for rows in options.host_rows:
            sections.run(f"device calls of {rows} rows", self._api_calls, inside, rows)

    def _turn(self, turn: int, save: Save) -> None:
        """One wave of every row. The depths of a row are measured together or, from the second turn on, not at all."""
        for streams, sampler in product(self.options.streams, self.options.samplers):
            keys = [(sampler, streams, depth) for depth in self.options.depths]
            names = [f"wave {turn + 1} of {_named(key)}" for key in keys]
            fits = turn == 0 or sum(map(self._cost, keys)) + self._rest() <= self.sections.left
            for key, name in zip(keys, names, strict=True):
                if fits:
                    self.sections.run(name, self._wave, *key)
                else:
                    self.sections.leave_out(name)
            save(self.report())

    def _cost(self, key: Key) -> float:
        """Seconds of a row's first wave."""
        return self.sections.seconds.get(f"wave 1 of {_named(key)}", 0.0)

    def _rest(self) -> float:
        """About how long the sections take that must follow the waves: none longer than a wave."""
        looks = 1.5 * sum(self._cost(key) for key in self.options.greedy)
        return REST_SECONDS + looks if self.rig.inside is not None else 0.0

    def report(self) -> dict[str, Any]:
        """All there is so far, ready for JSON."""
        fill_gains(self.rows)
        roofline = self.rig.roofline
        temperature, top_p = self.rig.sampler
        return {
            "benchmark": "decode",
            **self.rig.facts(),
            "samplers": {"greedy": {"temperature": 0.0}, "default": {"temperature": temperature, "top_p": top_p}},
            "roofline": {
                "weight_bytes": roofline.weight_bytes,
                "kv_bytes_per_position": roofline.token_bytes,
                **({"expert_bytes": roofline.expert_bytes} if roofline.expert_bytes else {}),
                "read_gb_per_s": round(roofline.bandwidth / 1e9, 1),
            },
            "rows": [self.rows[key] for key in self._ordered()],
            "host": [part.as_dict() for part in self.host],
            "seconds": self.sections.seconds,
            "notes": self.sections.notes,
        }

    def _ordered(self) -> list[Key]:
        return [key for sampler in (*SAMPLERS, *KINDS) for key in sorted(self.rows) if key[0] == sampler]

    def _ask(self, rows: int, side: int | None, sampler: str = GREEDY) -> list[Request]:
        """Requests with ids that were never used."""
        first = self._next_id
        self._next_id += rows
        temperature, top_p = self.rig.sampler if sampler == DEFAULT else (0.0, 1.0)
        program = "detect" if sampler == SPATIAL else "text"
        adapters = [*self.rig.adapters, None] if sampler == ADAPTED else [None]
        text, prompt = self.rig.config.text, self.options.prompt
        return questions(
            rows,
            first,
            side,
            min(FAR, text.max_context - text.prefix_attn - prompt),
            temperature=temperature,
            top_p=top_p,
            prompt=prompt,
            program=program,
            adapters=adapters,
        )

    def _null(self) -> None:
        self.host += measure_null(self.options.host_rows, self.options.depths[-1], self.options.host_steps)

    def _warm_up(self, depth: int) -> None:
        rows = min(self.options.streams[-1], 8)
        for sampler in self.options.samplers:
            ride(self.rig.session(depth), self._ask(rows, self.rig.side, sampler), steps=5)

    def _wave(self, sampler: str, streams: int, depth: int) -> None:
        key = (sampler, streams, depth)
        taken = self.waves.setdefault(key, [])
        taken.append(ride(self.rig.session(depth), self._ask(streams, self.rig.side, sampler)))
        self.rows[key] = row_of(key, taken, self.rig.roofline)

    def _settle(self, sampler: str, streams: int, depth: int, steps: int) -> Session:
        session = self.rig.session(depth)
        session.submit(self._ask(streams, self.rig.side, sampler))
        advance(session, streams, steps)
        return session

    def _isolated(self, inside: Inside, streams: int, kind: str | None = None) -> None:
        session = self._settle(kind or GREEDY, streams, self.options.depths[0], self.options.settled)
        try:
            session.drain()
            found = inside.isolated(session, streams, kind) if kind else inside.isolated(session, streams)
        finally:
            session.stop()
        fill_isolated(self.rows, streams, found, self.rig.roofline, kind)

    def _trace(self, inside: Inside, sampler: str, streams: int, depth: int) -> None:
        session = self._settle(sampler, streams, depth, self.options.before_trace)
        try:
            works = inside.traced(session, streams, self.options.traced)
        finally:
            session.stop()
        fill_trace(self.rows[sampler, streams, depth], gaps_of(works))

    def _host(self, rows: int) -> None:
        depth, first = self.options.depths[-1], self._next_id
        self._next_id += rows
        session = self.rig.session(depth)
        self.host.append(measure_rows(session, self.rig.name, rows, depth, first, self.options.host_steps))

    def _api_calls(self, inside: Inside, rows: int) -> None:
        session = self.rig.session(self.options.depths[-1])
        session.submit(self._ask(rows, None))
        try:
            advance(session, rows, 4)
            steps = inside.traced(session, rows, 10)
        finally:
            session.stop()
        if steps:
            calls = dict(steps[len(steps) // 2].calls)
            self.host = [
                part.with_calls(calls) if part.rows == rows and part.device != NULL else part for part in self.host
            ]


def _named(key: Key) -> str:
    sampler, streams, depth = key
    return f"{streams} at depth {depth}, {sampler}"
