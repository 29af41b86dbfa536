"""What the accounting costs a step: `python -m gapless.bench.overhead`.

In: sessions on a device that computes nothing and on the CPU with the bundled model. Out: a row each. One engine
decodes on and on; for a few steps its loop has the meter, for as many a `NullMeter`, which reads the clock only where
the loop needs the time. The two take turns, the first of a pair now one and now the other, and the cost is the median
of the differences over all pairs. `share` is that over the step's time. On the device that computes nothing a step is
the engine's own work alone: there the microseconds are sharp and the share is the largest one possible. A model's step
takes long, and on a busy machine it varies by more than accounting costs; `error_us` says by how much.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from gapless.bench.hostpart import NULL, null_session
from gapless.bench.machine import describe_machine
from gapless.bench.timed import Session
from gapless.bench.wave import advance, questions
from gapless.config import EngineConfig
from gapless.observe.meter import Meter, Part
from gapless.records import Arrival, Step, StepKind

NULL_ROWS = (1, 8, 64)
LIMIT = 0.015
"""The most that accounting may take of a step."""
WARM = 10


class NullMeter(Meter):
    """A meter that notes nothing."""

    def enter(self, part: Part, step: Step | None = None) -> float:
        """See `Meter`: the loop plans and admits by this time, so it is read there."""
        return self._now() if part in (Part.PLAN, Part.ADMIT) else 0.0

    def launched(self, kind: StepKind, held: int) -> None:
        """See `Meter`."""

    def landed(self, step: Step, arrival: Arrival, in_flight: set[StepKind]) -> float:
        """See `Meter`."""
        return self._now()

    def retired(self, held: int) -> None:
        """See `Meter`."""


@dataclass(frozen=True, slots=True)
class Cost:
    """`step_us`: a step with accounting, the median; `cost_us`: what accounting adds, the median over `pairs` of
    `steps` steps each, with its standard error `error_us`; `share`: cost over step, as a fraction."""

    device: str
    rows: int
    pairs: int
    steps: int
    step_us: float
    cost_us: float
    error_us: float
    share: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}


def measure(session: Session, name: str, rows: int, pairs: int, steps: int) -> Cost:
    """Decode `rows` endless answers, with and without accounting in turns. Raises
    `PromptTooLong` for more steps than a context has room for."""
    loop, meter = session.engine.loop, session.engine.meter
    null = NullMeter(session.engine.clock, session.engine.pipeline.depth)
    session.submit(questions(rows, 1, None, 2 * (WARM + pairs * steps)))
    advance(session, rows, WARM)  # past the prefills
    with_it, cost = [], []
    for turn in range(pairs):
        spent = {}
        for now in (meter, null) if turn % 2 else (null, meter):
            loop.meter = now
            began = perf_counter()
            for _ in range(steps):
                loop.tick()
                session.engine.book.take_emissions()
            spent[now] = 1e6 * (perf_counter() - began) / steps
        with_it.append(spent[meter])
        cost.append(spent[meter] - spent[null])
    loop.meter = meter
    session.stop()
    step, added = statistics.median(with_it), statistics.median(cost)
    return Cost(name, rows, pairs, steps, step, added, _error(cost), added / step)


def _error(values: Sequence[float]) -> float:
    """The standard error of their median, from their quartiles, which a few wild values do not move."""
    low, _, high = statistics.quantiles(values, n=4)
    return 1.25 * (high - low) / 1.35 / math.sqrt(len(values))


def measure_null(pairs: int, steps: int) -> list[Cost]:
    """On the device that computes nothing."""
    return [measure(null_session(rows, 2), NULL, rows, pairs, steps) for rows in NULL_ROWS]


def measure_cpu(model: str, pairs: int, steps: int, rows: int = 1) -> Cost:
    """On the CPU device, with a model that answers without an end."""
    from gapless.bench.ending import EndingModel
    from gapless.constrain.table import build_table
    from gapless.device.host import HostDevice
    from gapless.models.moondream.templates import Templates
    from gapless.models.registry import load_model

    loaded = load_model(model, "cpu", "float32", None)
    rules = Templates.of(loaded.config).rules()
    endless = EndingModel(loaded.model, rules.end, loaded.model.max_context, loaded.model.max_context + 1)
    table, config = build_table(rules), EngineConfig(max_rows=rows)
    device = HostDevice(endless, table, config)
    try:
        return measure(Session(device, table, config), f"cpu, {loaded.name}", rows, pairs, steps)
    finally:
        device.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 1 if a step of a model certainly pays more than `LIMIT`."""
    parser = argparse.ArgumentParser(prog="python -m gapless.bench.overhead", description="What accounting costs.")
    parser.add_argument("--model", default="glint", help="a model's name or folder, run on the CPU")
    parser.add_argument("--pairs", type=int, default=101, help="pairs of stretches, with and without")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    costs = [*measure_null(given.pairs, 4), measure_cpu(given.model, given.pairs, 2)]
    if given.json:
        print(json.dumps({"machine": describe_machine().as_dict(), "rows": [cost.as_dict() for cost in costs]}))
    else:
        for cost in costs:
            print(
                f"{cost.device:<12} {cost.rows:>3} rows: {cost.cost_us:7.2f} +- {cost.error_us:.2f} us of a step of "
                f"{cost.step_us:.1f} us, {100 * cost.share:.2f} %"
            )
        print(f"machine: {describe_machine()}")
    worst = costs[-1]
    return int(worst.cost_us - 2 * worst.error_us > LIMIT * worst.step_us)


if __name__ == "__main__":
    raise SystemExit(main())
