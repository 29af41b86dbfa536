"""`python -m gapless.bench.experts`: one layer of experts by itself, in bfloat16 and in FP8. What is measured says
`bench.experts_run`.

In: numbers of tokens and how long. Out: a table, JSON, a picture. Importing this waits for no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.bench.command import Report, Save, described, finish, numbers, parser_of
from gapless.bench.load import where

if TYPE_CHECKING:
    from PIL.Image import Image

    from gapless.api.load import Progress

COLUMNS = ("weights", "tokens", "kernels", "experts_read", "read_mb", "us", "torch_us", "floor_us", "roofline_share")
REPEATS = {"cpu": 3, "cuda": 20}
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Experts:
    """The benchmark; see `Benchmark`."""

    device: str = "auto"
    tokens: tuple[int, ...] = (1, 8, 32, 64, 740)
    seconds: float = SECONDS

    @property
    def title(self) -> str:
        """See `Benchmark`."""
        return "A layer of experts"

    @property
    def tables(self) -> Mapping[str, Sequence[str]]:
        """See `Benchmark`."""
        return {"rows": COLUMNS}

    def run(self, save: Save, progress: Progress | None = None) -> Report:
        """See `Benchmark`. Raises `InvalidRequest` for a device that is not there."""
        from gapless.bench.experts_run import ExpertsBench

        device = where(self.device)
        repeats = REPEATS[device.partition(":")[0]]
        return ExpertsBench(device, self.tokens, repeats, self.seconds, progress=progress).run(save)

    def complete(self, report: Report) -> bool:
        """Whether there is a row for every number of tokens and both kinds of weights."""
        return len(report["rows"]) == 2 * len(self.tokens)

    def draw(self, report: Report) -> Image:
        """See `Benchmark`: microseconds of a layer, beside the floor."""
        from gapless.bench.bar_plot import Cluster, Style, draw_bars

        clusters = [
            Cluster(f"{row['tokens']} tokens", row["weights"], (row["floor_us"], row["us"])) for row in report["rows"]
        ]
        return draw_bars(
            clusters, Style(("the least possible", "measured")), "A layer of experts: microseconds", described(report)
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 0, 1 if a row is missing, 2 if nothing could be measured."""
    usual = Experts()
    parser = parser_of("experts", "The benchmark of experts, on random weights.", usual.device, usual.seconds)
    parser.add_argument("--tokens", type=numbers, default=usual.tokens, help="for example 1,8,32,64,740")
    given = parser.parse_args(arguments)
    return finish(Experts(given.device, given.tokens, given.seconds), given.out, given.png, given.json)


if __name__ == "__main__":
    raise SystemExit(main())
