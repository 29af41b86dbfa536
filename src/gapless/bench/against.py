"""A benchmark beside itself with torch's kernels alone: what the other kernels bring, row by row.

In: one benchmark twice, the second one `plain`. Out: the first one's report, in which each row has what torch took and
the speed-up, above 1 where torch is slower; and a note where both ran the same kernels, so that nobody takes noise for
a gain. The plain one goes first, so that what is left of its memory is known to be free.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapless.bench.command import Benchmark, Report, Save
from gapless.bench.compare import label_of
from gapless.bench.text import rounded

if TYPE_CHECKING:
    from PIL.Image import Image

    from gapless.api.load import Progress

MEASURED = {"decode": "period_ms", "prefill": "ms", "vision": "encoder_ms", "query": "requests_per_s"}
"""By benchmark: the number that a row is about."""
SPEED_UP = "speed_up"
SAME = (
    "both runs had torch's kernels: there are no others for a CPU, nor for a GPU without Triton or one that its "
    "kernels do not take; what the speed-ups differ from 1 is noise"
)


@dataclass(frozen=True, slots=True)
class AgainstTorch:
    """The benchmark; see `Benchmark`. It takes as long as both of them."""

    fast: Benchmark
    plain: Benchmark

    @property
    def title(self) -> str:
        """See `Benchmark`."""
        return f"{self.fast.title}, against torch's kernels"

    @property
    def tables(self) -> Mapping[str, Sequence[str]]:
        """See `Benchmark`: what is compared stands behind what it is compared by."""
        return {name: _with_torch(columns) if name == "rows" else columns for name, columns in self.fast.tables.items()}

    def run(self, save: Save, progress: Progress | None = None) -> Report:
        """See `Benchmark`. Raises what either raises."""
        torch = self.plain.run(_keep_nothing, progress)
        gc.collect()
        report = beside(self.fast.run(save, progress), torch)
        save(report)
        return report

    def complete(self, report: Report) -> bool:
        """Whether it is whole, and every row has a speed-up."""
        return self.fast.complete(report) and all(row[SPEED_UP] is not None for row in report["rows"])

    def draw(self, report: Report) -> Image:
        """See `Benchmark`: the first one's picture."""
        return self.fast.draw(report)


def chosen(benchmark: Benchmark, plain: Benchmark, against_torch: bool) -> Benchmark:
    """What is to run: the benchmark, or both."""
    return AgainstTorch(benchmark, plain) if against_torch else benchmark


def beside(report: Report, torch: Report) -> Report:
    """The report with what torch took in each row, `torch_COLUMN`, and `speed_up`; None where torch has no such row."""
    column = MEASURED[report["benchmark"]]
    took = {label_of(row): row[column] for row in torch["rows"]}
    rows = [_joined(row, column, took.get(label_of(row))) for row in report["rows"]]
    notes = [*report["notes"], *(f"torch's kernels: {note}" for note in torch["notes"])]
    if report["kernels"] == torch["kernels"]:
        notes.append(SAME)
    return {**report, "rows": rows, "notes": notes, "against": {"kernels": torch["kernels"], "rows": torch["rows"]}}


def _joined(row: Mapping[str, Any], column: str, took: float | None) -> dict[str, Any]:
    speed_up = None
    if took and row[column]:
        speed_up = rounded(took / row[column] if column.endswith("ms") else row[column] / took)
    return {**row, f"torch_{column}": took, SPEED_UP: speed_up}


def _with_torch(columns: Sequence[str]) -> tuple[str, ...]:
    column = next(name for name in columns if name in MEASURED.values())
    at = columns.index(column) + 1
    return (*columns[:at], f"torch_{column}", SPEED_UP, *columns[at:])


def _keep_nothing(report: Mapping[str, Any]) -> None:
    """Half of a comparison is not kept."""
