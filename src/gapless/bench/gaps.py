"""`python -m gapless.bench.gaps`: the gaps benchmark as a command. What is measured says `bench.gaps_run`.

In: which model, how many streams and pictures, and how long. Out: a table, JSON, a picture. Importing this waits for no
torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.bench.command import Report, Save, described, finish, parser_of
from gapless.bench.load import load, where

if TYPE_CHECKING:
    from PIL.Image import Image

    from gapless.api.load import Progress

COLUMNS = (
    "way",
    "pictures",
    "tokens_per_s",
    "gap_p50_ms",
    "gap_p99_ms",
    "longest_gap_ms",
    "tpot_p50_ms",
    "tpot_p99_ms",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "parts",
    "longest_step_ms",
)
STREAMS = {"cpu": 4, "cuda": 32}
RATES = {"cpu": 1.0, "cuda": 10.0}
SECONDS = 60.0
LENGTH = 2.0
SLICES = 3
MAX_STEP_MS = 8.0
SPARE = 16
"""Rows beside the streams', for the pictures that come."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """The benchmark; see `Benchmark`. `streams`, `rate`, `length`, `slices`: see `gaps_run.Options`; None for what is
    usual on the device."""

    model: str | None = None
    device: str = "auto"
    streams: int | None = None
    rate: float | None = None
    max_step_ms: float = MAX_STEP_MS
    length: float = LENGTH
    slices: int = SLICES
    seconds: float = SECONDS

    @property
    def title(self) -> str:
        """See `Benchmark`."""
        return "Gaps between tokens while pictures come in"

    @property
    def tables(self) -> Mapping[str, Sequence[str]]:
        """See `Benchmark`."""
        return {"rows": COLUMNS}

    def run(self, save: Save, progress: Progress | None = None) -> Report:
        """See `Benchmark`. Raises `InvalidRequest` for a device that is not there, and what loading a model raises."""
        from gapless.bench.gaps_run import GapsBench, Options
        from gapless.bench.rig import Wants
        from gapless.bench.rigs import open_rig
        from gapless.bench.wave import PROMPT

        device = where(self.device)
        kind = device.partition(":")[0]
        loaded = load(self.model, device)
        usual, most = Options(), loaded.config.vision.max_crops
        options = Options(
            max_step_ms=self.max_step_ms,
            streams=STREAMS[kind] if self.streams is None else self.streams,
            rate=RATES[kind] if self.rate is None else self.rate,
            tilings=tuple(tiling for tiling in usual.tilings if tiling[0] * tiling[1] <= most),
            length=self.length,
            slices=self.slices,
            seconds=self.seconds,
        )
        room = loaded.model.max_context - loaded.model.prefix - PROMPT
        answers, rows = (room, room + 1), options.streams + SPARE
        buckets = tuple(sorted({1, 8, options.streams, rows}))
        rig = open_rig(device, loaded, buckets, Wants(answers=answers, max_step_ms=self.max_step_ms, sees=True))
        try:
            return GapsBench(rig, options, progress=progress).run(save)
        finally:
            rig.close()

    def complete(self, report: Report) -> bool:
        """Whether there is a row for every way, and on a GPU pictures were encoded in parts."""
        costs = report["costs"] or {}
        return len(report["rows"]) == 3 and bool(costs.get("crops_ms") or report["device"] == "cpu")

    def draw(self, report: Report) -> Image:
        """See `Benchmark`: gaps by way."""
        from gapless.bench.bar_plot import Cluster, Style, draw_bars

        clusters = [
            Cluster(row["way"], "", (row["gap_p50_ms"], row["gap_p99_ms"], row["longest_gap_ms"]))
            for row in report["rows"]
        ]
        style = Style(("median gap", "99th percentile", "longest"))
        return draw_bars(clusters, style, "Gaps between tokens: milliseconds", described(report))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 0, 1 if a row is missing, 2 if nothing could be measured."""
    usual = Gaps()
    parser = parser_of("gaps", "The gaps benchmark.", usual.device, usual.seconds)
    parser.add_argument("--streams", type=int, help="answers that run all the time")
    parser.add_argument("--rate", type=float, help="new pictures a second")
    parser.add_argument("--max-step-ms", type=float, default=usual.max_step_ms, help="what steps are cut to")
    parser.add_argument("--length", type=float, default=usual.length, help="seconds of a slice")
    parser.add_argument("--slices", type=int, default=usual.slices, help="slices of each way")
    given = parser.parse_args(arguments)
    gaps = Gaps(
        given.model,
        given.device,
        given.streams,
        given.rate,
        given.max_step_ms,
        given.length,
        given.slices,
        given.seconds,
    )
    return finish(gaps, given.out, given.png, given.json)


if __name__ == "__main__":
    raise SystemExit(main())
