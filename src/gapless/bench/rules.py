"""`python -m gapless.bench.rules`: what rules cost, as a command. What is measured says `bench.rules_run`.

In: which model, how many streams, how long. Out: a table, JSON, a picture. Importing this waits for no torch.
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
    "sampler",
    "share",
    "rows",
    "tokens_per_s",
    "of_free",
    "step_ms",
    "floor_ms",
    "roofline_share",
    "idle_share",
)
TABLE_COLUMNS = ("states", "classes", "bytes", "compile_s", "fewest")
STREAMS = {"cpu": 4, "cuda": 32}
TURNS = 3
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RulesBenchmark:
    """The benchmark; see `Benchmark`. `streams` None: what is usual on the device. `host`: rows whose masks come from
    the host, beside those with tables; by grammars too where `llguidance` is."""

    model: str | None = None
    device: str = "auto"
    streams: int | None = None
    turns: int = TURNS
    seconds: float = SECONDS
    host: bool = False

    @property
    def title(self) -> str:
        """See `Benchmark`."""
        return "Answers by rules"

    @property
    def tables(self) -> Mapping[str, Sequence[str]]:
        """See `Benchmark`."""
        return {"tables": TABLE_COLUMNS, "rows": COLUMNS}

    @property
    def _guided(self) -> bool:
        from gapless.constrain.guides import installed

        return self.host and installed()

    def run(self, save: Save, progress: Progress | None = None) -> Report:
        """See `Benchmark`. Raises `InvalidRequest` for a device that is not there, and what loading a model raises."""
        from gapless.bench.rig import Wants
        from gapless.bench.rigs import open_rig
        from gapless.bench.rules_run import ANSWERS, Options, RulesBench

        device = where(self.device)
        kind = device.partition(":")[0]
        loaded = load(self.model, device)
        streams = STREAMS[kind] if self.streams is None else self.streams
        options = Options(streams, self.turns, seconds=self.seconds, host=self.host, guided=self._guided)
        rig = open_rig(device, loaded, (streams,), Wants(answers=ANSWERS))
        try:
            return RulesBench(rig, options, progress=progress).run(save)
        finally:
            rig.close()

    def complete(self, report: Report) -> bool:
        """Whether there is a row for every way."""
        from gapless.bench.rules_run import Options

        wanted = Options(1, self.turns, host=self.host, guided=self._guided).keys
        return len(report["rows"]) == len(wanted) and all(row["tokens_per_s"] for row in report["rows"])

    def draw(self, report: Report) -> Image:
        """See `Benchmark`: tokens per second by share, in percent of free text's."""
        from gapless.bench.bar_plot import Cluster, Style, draw_bars

        clusters = [
            Cluster(f"{row['share']} %", f"{row['way']}, {row['sampler']}", (100 * row["of_free"],))
            for row in report["rows"]
            if row["of_free"] is not None
        ]
        return draw_bars(clusters, Style(("of free text",)), "Tokens per second, in percent", described(report))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 0, 1 if a row is missing, 2 if nothing could be measured."""
    usual = RulesBenchmark()
    parser = parser_of("rules", "The benchmark of rules.", usual.device, usual.seconds)
    parser.add_argument("--streams", type=int, help="requests at once")
    parser.add_argument("--turns", type=int, default=usual.turns, help="how often each row is measured")
    parser.add_argument("--host", action="store_true", help="rows whose masks come from the host, beside the others")
    given = parser.parse_args(arguments)
    rules = RulesBenchmark(given.model, given.device, given.streams, given.turns, given.seconds, given.host)
    return finish(rules, given.out, given.png, given.json)


if __name__ == "__main__":
    raise SystemExit(main())
