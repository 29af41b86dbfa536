"""`python -m gapless.bench.query`: the query benchmark as a command. What is measured, and how, says `bench.query_run`.

In: which model, callers, depths, sampler and how long. Out: a table, JSON, a picture. Importing this waits for no
torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gapless.bench.against import chosen
from gapless.bench.command import Report, Save, add_against_torch, described, finish, numbers, parser_of
from gapless.bench.load import check_sizes, load, where
from gapless.bench.text import callers

if TYPE_CHECKING:
    from PIL.Image import Image

    from gapless.api.load import Progress

COLUMNS = (
    "answer",
    "concurrency",
    "depth",
    "requests",
    "requests_per_s",
    "latency_p50_ms",
    "latency_p90_ms",
    "latency_p99_ms",
    "ttft_p50_ms",
    "ttft_p90_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "tpot_p99_ms",
    "answer_tokens",
    "idle_share",
    "zombie_share",
    "observed_gain",
)
CHOICES = ("greedy", "default")
ANSWERS = ("short", "long")
CONCURRENCY = {"cpu": (1, 4), "cuda": (1, 4, 16, 64)}
WAVES = {"cpu": 1, "cuda": 2}
SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Query:
    """The benchmark; see `Benchmark`. `concurrency` and `waves` None: the device's usual ones. `size` None: pictures of
    several sizes. `plain`: with torch's kernels alone."""

    model: str | None = None
    device: str = "auto"
    concurrency: tuple[int, ...] | None = None
    depths: tuple[int, ...] = (1, 2)
    sampler: str = "default"
    waves: int | None = None
    seconds: float = SECONDS
    graphs: bool = True
    answers: tuple[str, ...] = ANSWERS
    size: tuple[int, int] | None = None
    plain: bool = False

    @property
    def title(self) -> str:
        """See `Benchmark`."""
        return "Queries through the library"

    @property
    def tables(self) -> Mapping[str, Sequence[str]]:
        """See `Benchmark`."""
        return {"rows": COLUMNS}

    def run(self, save: Save, progress: Progress | None = None) -> Report:
        """See `Benchmark`. Raises `InvalidRequest` for a device that is not there or more callers than an engine takes,
        and what loading a model raises."""
        from gapless.bench.query_run import LENGTHS, Options, QueryBench
        from gapless.bench.vlm_rig import VlmRig

        check_sizes(self.depths, self.concurrency or (), "concurrency")
        device = where(self.device)
        kind = device.partition(":")[0]
        concurrency = self.concurrency or CONCURRENCY[kind]
        options = Options(
            concurrency,
            self.depths,
            settings={"temperature": 0.0} if self.sampler == "greedy" else {},
            lengths={answer: LENGTHS[answer] for answer in self.answers},
            waves=self.waves or WAVES[kind],
            seconds=self.seconds,
            size=self.size,
        )
        rig = VlmRig(load(self.model, device, self.plain), max(concurrency), self.graphs, self.plain)
        try:
            report = QueryBench(rig, options, progress=progress).run(save)
        finally:
            rig.close()
        save(report)
        return report

    def complete(self, report: Report) -> bool:
        """Whether there is a row for every length of answers, number of callers and depth."""
        concurrency = self.concurrency or CONCURRENCY[report["device"]]
        return len(report["rows"]) == len(self.answers) * len(concurrency) * len(self.depths)

    def draw(self, report: Report) -> Image:
        """See `Benchmark`: requests per second at each depth, short answers above long ones."""
        from gapless.bench.bar_plot import Cluster, Style, draw_bars, stacked

        rows = {(row["answer"], row["concurrency"], row["depth"]): row["requests_per_s"] for row in report["rows"]}
        pictures = []
        for answer in dict.fromkeys(row["answer"] for row in report["rows"]):
            tokens = [row["answer_tokens"] for row in report["rows"] if row["answer"] == answer]
            clusters = [
                Cluster(callers(count), "", tuple(rows.get((answer, count, depth)) for depth in self.depths))
                for count in dict.fromkeys(row["concurrency"] for row in report["rows"])
            ]
            style = Style(tuple(f"depth {depth}" for depth in self.depths))
            title = f"Answers of {sum(tokens) / len(tokens):.0f} tokens: requests per second"
            pictures.append(draw_bars(clusters, style, title, described(report)))
        if not pictures:
            raise ValueError("there is no row to draw")
        return stacked(pictures)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 0, 1 if a row is missing, 2 if nothing could be measured."""
    usual = Query()
    parser = parser_of("query", "The query benchmark.", usual.device, usual.seconds)
    parser.add_argument("--concurrency", type=numbers, help="callers at once, for example 1,4,16,64")
    parser.add_argument("--depth", type=numbers, default=usual.depths, help="for example 1,2")
    parser.add_argument("--sampler", choices=CHOICES, default=usual.sampler)
    parser.add_argument("--waves", type=int, help="slices of each row")
    parser.add_argument("--graphs", choices=("on", "off"), default="on")
    parser.add_argument("--answers", choices=ANSWERS, nargs="+", default=usual.answers)
    parser.add_argument("--size", type=int, nargs=2, help="width and height of all pictures")
    add_against_torch(parser)
    given = parser.parse_args(arguments)
    query = Query(
        given.model,
        given.device,
        given.concurrency,
        given.depth,
        given.sampler,
        given.waves,
        given.seconds,
        given.graphs == "on",
        tuple(given.answers),
        None if given.size is None else tuple(given.size),
    )
    return finish(chosen(query, replace(query, plain=True), given.against_torch), given.out, given.png, given.json)


if __name__ == "__main__":
    raise SystemExit(main())
