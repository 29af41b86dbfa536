"""The prefill benchmark: how fast prompts are taken in, a picture block and text behind it, several in a step.

In: a `Rig` and `Options`. Out: a report for `benchmarks/*/prefill-*.json`, a row per number of prompts in a step and
length of the text. The engine runs steps of that many prompts, one behind the other, each prompt with a picture block
of its own; every request ends with its first token. The picture's own encoding is not in it (`bench.vision` has that).
`ms` is the device's time in a step, the median; tokens per second count idle time too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import product
from time import perf_counter
from typing import Any

from gapless.api.load import Progress
from gapless.bench.flops import prefill_work
from gapless.bench.rig import Rig
from gapless.bench.sections import Sections
from gapless.bench.text import rounded
from gapless.bench.timed import TickTimes
from gapless.bench.wave import questions
from gapless.observe.accounting import Accounting
from gapless.records import StepKind


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure. `texts`: ids behind the picture; `batches`: prompts of a step; `steps`: of each row; `seconds`:
    no new row begins after that long."""

    texts: tuple[int, ...] = (30, 128, 512)
    batches: tuple[int, ...] = (1, 4, 8)
    depth: int = 2
    steps: int = 8
    seconds: float = 60.0


@dataclass
class PrefillBench:
    """One run over a rig."""

    rig: Rig
    options: Options
    _: KW_ONLY
    progress: Progress | None = None
    now: Callable[[], float] = perf_counter
    rows: list[dict[str, Any]] = field(default_factory=list)
    _next_id: int = 1

    def __post_init__(self) -> None:
        total = len(self.options.batches) * len(self.options.texts)
        self.sections = Sections(self.options.seconds, total, self.progress, self.now)

    def run(self, save: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """Measure everything; `save` is given the report after every row."""
        for batch, ids in product(self.options.batches, self.options.texts):
            self.sections.run(f"{batch} prompts of a picture and {ids} tokens", self._row, batch, ids)
            save(self.report())
        return self.report()

    def _row(self, batch: int, ids: int) -> None:
        self._prefill(batch, ids, 1)  # picks and loads what the first of a shape needs
        ticks, spent = self._prefill(batch, ids, self.options.steps)
        mine = [tick for tick in ticks if tick.settled and len(tick.settled.rows) == batch]
        launches = [tick.launch for tick in ticks if tick.launched and len(tick.launched.rows) == batch]
        took = 1e3 * statistics.median(tick.busy for tick in mine)
        work = prefill_work(self.rig.config.text, ids, batch, self.rig.itemsize, self.rig.expert_itemsize)
        positions = self.rig.config.text.prefix_attn + ids
        self.rows.append(
            {
                "batch": batch,
                "text_tokens": ids,
                "depth": self.options.depth,
                "positions": positions,
                "ms": rounded(took),
                "launch_ms": rounded(1e3 * statistics.median(launches)),
                "idle_share": rounded(spent.idle_share),
                "tokens_per_s": rounded(1e3 * batch * self.options.steps * positions / (spent.busy_ms + spent.idle_ms)),
                "tflop_per_s": rounded(work.tflop_per_s(took)),
                "floor_ms": rounded(work.floor_ms(self.rig.rates)),
                "roofline_share": rounded(work.floor_ms(self.rig.rates) / took),
                "steps": len(mine),
            }
        )

    def _prefill(self, batch: int, ids: int, steps: int) -> tuple[list[TickTimes], Accounting]:
        """Prefill `steps` times `batch` prompts: the ticks that launched or settled one, and what it took in all."""
        session = self.rig.session(self.options.depth)
        session.engine.feeder.most = batch
        first, self._next_id = self._next_id, self._next_id + batch * steps
        ticks, before = len(session.ticks), Accounting.of(session.engine.meter)
        try:
            session.submit(questions(batch * steps, first, self.rig.side, max_tokens=1, prompt=ids))
            session.run()
        finally:
            session.stop()
        kinds = (StepKind.PREFILL,)
        mine = [t for t in session.ticks[ticks:] if any(s and s.kind in kinds for s in (t.launched, t.settled))]
        return mine, Accounting.of(session.engine.meter) - before

    def report(self) -> dict[str, Any]:
        """All there is so far, ready for JSON."""
        return {
            "benchmark": "prefill",
            **self.rig.facts(),
            "rows": list(self.rows),
            "seconds": self.sections.seconds,
            "notes": self.sections.notes,
        }
