"""The rules benchmark: what a step of many streams takes when some of them follow a rule.

In: a `Rig` whose answers do not end while they are looked at, and `Options`. Out: a report for
`benchmarks/*/rules-*.json`, a row for each way and share of the streams:

- `table`: so many percent of the rows follow a token table (a list of detections, JSON with fourteen objects, compiled
  for a made-up vocabulary of the model's size), the others write free text;
- `host`: so many percent have their masks built on the host, at once: what the way there and back costs;
- `guide`: so many percent follow the same list as a grammar on the host, whose masks `llguidance` builds;
- `slow`: one row's masks take `SLOW` seconds each, and what is counted are the others' tokens.

`of_free` is tokens a second and row over that of the row without rules in the same run, with the same sampler. Ways
take turns, several times over, and a row is the median of its turns. A step's floor is what it must read over the
bandwidth measured just before, as in `bench.decode_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from gapless.api.load import Progress
from gapless.bench.made_up import made_up
from gapless.bench.rig import Rig
from gapless.bench.sections import Sections, still
from gapless.bench.slow_masks import SlowMasks
from gapless.bench.text import rounded
from gapless.bench.timed import Session
from gapless.bench.wave import FAR, PROMPT, questions
from gapless.constrain.grammar import Grammar, compile_grammar, host_grammar
from gapless.observe.accounting import Accounting
from gapless.records import HostGrammar, Request, TokenTable

ANSWERS = (600, 601)
"""Where free answers would end: behind all that is measured."""
SLOW = 0.05
"""Seconds of a slow mask."""
STEPS = 100
OBJECTS = 14
SCHEMA = {
    "type": "array",
    "minItems": OBJECTS,
    "maxItems": OBJECTS,
    "items": {
        "type": "object",
        "properties": {
            "label": {"type": "string", "minLength": 3, "maxLength": 24},
            "kind": {"enum": ["person", "vehicle", "animal", "sign", "other"]},
            "score": {"type": "number", "minimum": 0, "maximum": 1},
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
            "occluded": {"type": "boolean"},
        },
        "required": ["label", "kind", "score", "count", "occluded"],
    },
}


class Key(NamedTuple):
    """A row: `share` of its streams in percent."""

    way: str
    sampler: str
    share: int


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure: `streams` at once, `steps` of each row and turn at `depth`; no section begins after `seconds`.
    `host` and `guided`: see the module."""

    streams: int
    turns: int = 3
    steps: int = STEPS
    depth: int = 2
    seconds: float = 60.0
    host: bool = False
    guided: bool = False
    shares: tuple[int, ...] = (0, 20, 80, 100)

    @property
    def keys(self) -> list[Key]:
        """All rows, in the order they are measured."""
        found = [Key("table", sampler, share) for sampler, share in product(("greedy", "default"), self.shares)]
        if self.host:
            found += [Key("host", "greedy", share) for share in self.shares if share]
            found.append(Key("slow", "greedy", 0))
        if self.guided:
            found += [Key("guide", "greedy", share) for share in self.shares if share]
        return found

    @property
    def first(self) -> list[Key]:
        """Those that are tried before anything counts: one of each way and sampler, and free rows."""
        tried = {(key.way, key.sampler): key for key in self.keys if key.share != 100}
        return [self.keys[0], *tried.values()]


@dataclass
class RulesBench:
    """One run over a rig."""

    rig: Rig
    options: Options
    _: KW_ONLY
    progress: Progress | None = None
    now: Callable[[], float] = perf_counter
    turns: dict[Key, list[dict[str, float]]] = field(default_factory=dict)
    table: TokenTable | None = None
    guide: HostGrammar | None = None
    _next_id: int = 1

    def __post_init__(self) -> None:
        total = 1 + len(self.options.first) + len(self.options.keys) * self.options.turns
        self.sections = Sections(self.options.seconds, total, self.progress, self.now)
        self._masks = self.rig.masks = SlowMasks()

    def run(self, save: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """Measure everything; `save` is given the report after every section."""
        options, sections = self.options, self.sections
        sections.run("compile", self._compile)
        for key in options.first:
            sections.run(f"warm-up of {_named(key)}", self._measure, key, 4)
        self.turns.clear()
        with still():
            for turn in range(options.turns):
                for key in options.keys:
                    sections.run(f"turn {turn + 1} of {_named(key)}", self._measure, key, options.steps)
                    save(self.report())
            self._masks.close()
        report = self.report()
        save(report)
        return report

    def _compile(self) -> None:
        text = self.rig.config.text
        rule, words = Grammar.json_schema(SCHEMA), made_up(text.vocab_size, self.rig.rules.end)
        self.table, self.guide = compile_grammar(rule, words), host_grammar(rule, words)

    def _ask(self, key: Key) -> list[Request]:
        """Requests with ids that were never used; those with rules are spread over the others."""
        rows, first, text = self.options.streams, self._next_id, self.rig.config.text
        self._next_id += rows
        temperature, top_p = self.rig.sampler if key.sampler == "default" else (0.0, 1.0)
        most = min(FAR, text.max_context - text.prefix_attn - PROMPT)
        asked = questions(rows, first, self.rig.side, most, temperature=temperature, top_p=top_p)
        many = 1 if key.way == "slow" else -(-rows * key.share // 100)
        chosen = {i * rows // many for i in range(many)}
        if key.way == "table":
            return [replace(r, grammar=self.table) if i in chosen else r for i, r in enumerate(asked)]
        if key.way == "guide":
            return [replace(r, host_masked=True, guide=self.guide) if i in chosen else r for i, r in enumerate(asked)]
        return [replace(r, host_masked=i in chosen) for i, r in enumerate(asked)]

    def _measure(self, key: Key, steps: int) -> None:
        session, asked = self.rig.session(self.options.depth), self._ask(key)
        self._masks.seconds = SLOW if key.way == "slow" else 0.0
        self._masks.wake = session.mailbox.notify
        counted = {request.id for request in asked if not (key.way == "slow" and request.host_masked)}
        session.submit(asked)
        try:
            self._fill(session, len(asked))
            before = Accounting.of(session.engine.meter)
            tokens = self._tokens(session, counted, len(counted) * steps)
            spent = Accounting.of(session.engine.meter) - before
        finally:
            session.stop()
        time_ms, decoded = spent.busy_ms + spent.idle_ms, max(1, spent.steps["decode"])
        self.turns.setdefault(key, []).append(
            {
                "tokens_per_s": 1e3 * tokens / time_ms,
                "per_row": 1e3 * tokens / time_ms / len(counted),
                "step_ms": time_ms / decoded,
                "idle_share": spent.idle_ms / time_ms,
            }
        )

    def _fill(self, session: Session, rows: int) -> None:
        """Until all rows have said something, and prefills are over."""
        said: set[int] = set()
        while len(said) < rows:
            said |= {news.request_id for news in session.tick() if news.tokens}

    def _tokens(self, session: Session, of: set[int], goal: int) -> int:
        """Tick until these requests have said `goal` more tokens; how many they were."""
        tokens = 0
        while tokens < goal:
            tokens += sum(len(news.tokens) for news in session.tick() if news.request_id in of)
        return tokens

    def report(self) -> dict[str, Any]:
        """All there is so far, ready for JSON."""
        table, roofline = self.table, self.rig.roofline
        found = {
            key: {name: median(turn[name] for turn in turns) for name in turns[0]} for key, turns in self.turns.items()
        }
        return {
            "benchmark": "rules",
            **self.rig.facts(),
            "streams": self.options.streams,
            "depth": self.options.depth,
            "schema": SCHEMA,
            "slow_mask_ms": 1e3 * SLOW,
            "roofline": {"weight_bytes": roofline.weight_bytes, "read_gb_per_s": round(roofline.bandwidth / 1e9, 1)},
            "tables": [] if table is None else [_table_row(table)],
            "rows": [self._row(key, found) for key in self.options.keys if key in found],
            "seconds": self.sections.seconds,
            "notes": self.sections.notes,
        }

    def _row(self, key: Key, found: Mapping[Key, Mapping[str, float]]) -> dict[str, Any]:
        mine, free = found[key], found.get(Key("table", key.sampler, 0))
        rows, context = self.options.streams, self.rig.prefix + PROMPT + self.options.steps // 2
        floor = self.rig.roofline.floor_ms(rows, context)
        ratios = [
            turn["per_row"] / other["per_row"] for turn, other in zip(self.turns[key], self._free(key), strict=False)
        ]
        return {
            "way": key.way,
            "sampler": key.sampler,
            "share": key.share,
            "rows": rows,
            "tokens_per_s": round(mine["tokens_per_s"], 1),
            "of_free": None if free is None else round(mine["per_row"] / free["per_row"], 4),
            "of_free_turns": [round(ratio, 4) for ratio in ratios],
            "step_ms": rounded(mine["step_ms"]),
            "floor_ms": rounded(floor),
            "roofline_share": rounded(floor / mine["step_ms"]),
            "idle_share": round(mine["idle_share"], 5),
        }

    def _free(self, key: Key) -> list[dict[str, float]]:
        return self.turns.get(Key("table", key.sampler, 0), [])


def _table_row(table: TokenTable) -> dict[str, Any]:
    return {
        "states": table.states,
        "classes": table.following.shape[1],
        "bytes": table.nbytes,
        "compile_s": round(table.seconds, 3),
        "fewest": table.fewest,
    }


def _named(key: Key) -> str:
    return f"{key.way}, {key.share} % {key.sampler}"
