"""`python -m gapless.bench.sampler`: the end of a step by itself, by what its rows wish for. What is measured says
`bench.sampler_run`.

In: numbers of rows and how long. Out: a table, JSON, a picture. Importing this waits for no torch.
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

COLUMNS = ("wish", "rows", "kernels", "read_mb", "us", "torch_us", "floor_us", "roofline_share")
WISHES = ("greedy", "default", "open", "flat", "logprobs", "mixed", "adjusted")
DRAWN = ("greedy", "default", "logprobs")
REPEATS = {"cpu": 3, "cuda": 30}
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Sampler:
    """The benchmark; see `Benchmark`."""

    device: str = "auto"
    rows: tuple[int, ...] = (1, 8, 32, 64)
    seconds: float = SECONDS

    @property
    def title(self) -> str:
        """See `Benchmark`."""
        return "The end of a step"

    @property
    def tables(self) -> Mapping[str, Sequence[str]]:
        """See `Benchmark`."""
        return {"rows": COLUMNS}

    def run(self, save: Save, progress: Progress | None = None) -> Report:
        """See `Benchmark`. Raises `InvalidRequest` for a device that is not there."""
        from gapless.bench.sampler_run import SamplerBench

        device = where(self.device)
        repeats = REPEATS[device.partition(":")[0]]
        return SamplerBench(device, self.rows, repeats, self.seconds, progress=progress).run(save)

    def complete(self, report: Report) -> bool:
        """Whether there is a row for every number of rows and all wishes."""
        return len(report["rows"]) == len(WISHES) * len(self.rows)

    def draw(self, report: Report) -> Image:
        """See `Benchmark`: milliseconds of a step's end, beside torch's, of the wishes in `DRAWN`."""
        from gapless.bench.bar_plot import Cluster, Style, draw_bars

        clusters = [
            Cluster(
                f"{row['rows']} row{'s' * (row['rows'] > 1)}",
                row["wish"],
                ((row["torch_us"] or row["us"]) / 1e3, row["us"] / 1e3),
            )
            for row in report["rows"]
            if row["wish"] in DRAWN
        ]
        title = "The end of a step: milliseconds"
        return draw_bars(clusters, Style(("torch", "measured")), title, described(report))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 0, 1 if a row is missing, 2 if nothing could be measured."""
    usual = Sampler()
    parser = parser_of("sampler", "The benchmark of sampling, on random logits.", usual.device, usual.seconds)
    parser.add_argument("--rows", type=numbers, default=usual.rows, help="for example 1,8,32,64")
    given = parser.parse_args(arguments)
    return finish(Sampler(given.device, given.rows, given.seconds), given.out, given.png, given.json)


if __name__ == "__main__":
    raise SystemExit(main())
