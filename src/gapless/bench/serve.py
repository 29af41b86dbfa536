"""`python -m gapless.bench.serve`: the serving benchmark as a command. What is measured, and how, says
`bench.serve_run`.

In: which model, callers, streams and how long. Out: tables, JSON, a picture. Importing this waits for no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gapless.bench.command import Report, Save, described, finish, numbers, parser_of
from gapless.bench.load import BUNDLED, RANDOM, where
from gapless.bench.text import callers
from gapless.errors import InvalidRequest

if TYPE_CHECKING:
    from PIL.Image import Image

    from gapless.api.load import Progress

COLUMNS = (
    "side",
    "concurrency",
    "requests",
    "requests_per_s",
    "latency_p50_ms",
    "latency_p90_ms",
    "latency_p99_ms",
    "ttft_p50_ms",
    "ttft_p90_ms",
    "ttft_p99_ms",
    "answer_tokens",
    "idle_share",
    "client_cpu",
    "server_cpu",
    "overhead",
)
STREAM_COLUMNS = (
    "side",
    "streams",
    "steps",
    "rows_per_step",
    "step_ms",
    "busy_ms",
    "idle_ms",
    "tokens_per_s",
    "events",
    "server_cpu",
    "step_cost",
)
CONCURRENCY = {"cpu": (1, 4), "cuda": (1, 16, 64, 128)}
STREAMS = {"cpu": 4, "cuda": 64}
TOKENS, STREAM_TOKENS = 110, 512
SECONDS = 150.0
NEEDED = (
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
    "pydantic_settings",
    "yaml",
    "prometheus_client",
    "zmq",
    "msgspec",
)


@dataclass(frozen=True, slots=True)
class Serve:
    """The benchmark; see `Benchmark`. `concurrency` and `streams` None: the device's usual ones; `tokens` and
    `stream_tokens`: of an answer and of a stream."""

    model: str | None = None
    device: str = "auto"
    concurrency: tuple[int, ...] | None = None
    streams: int | None = None
    waves: int = 2
    seconds: float = SECONDS
    tokens: int = TOKENS
    stream_tokens: int = STREAM_TOKENS

    @property
    def title(self) -> str:
        """See `Benchmark`."""
        return "Queries over HTTP"

    @property
    def tables(self) -> Mapping[str, Sequence[str]]:
        """See `Benchmark`."""
        return {"rows": COLUMNS, "streams": STREAM_COLUMNS}

    def run(self, save: Save, progress: Progress | None = None) -> Report:
        """See `Benchmark`. Raises `InvalidRequest` without the server's packages or for a device that is not there, and
        what loading a model raises."""
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing:
            raise InvalidRequest(
                f"the server's packages are not installed ({', '.join(missing)} missing); "
                "pip install '.[serve]' in a checkout"
            )
        from gapless.bench.serve_rig import ServeRig
        from gapless.bench.serve_run import Options, ServeBench

        device = where(self.device)
        kind = device.partition(":")[0]
        options = Options(
            self.concurrency or CONCURRENCY[kind],
            self.streams or STREAMS[kind],
            tokens=self.tokens,
            stream_tokens=self.stream_tokens,
            waves=self.waves,
            seconds=self.seconds,
        )
        model = self.model or (BUNDLED if kind == "cpu" else RANDOM)
        rows = max(*options.concurrency, options.streams)
        rig = ServeRig(model, device, rows, max(self.tokens, self.stream_tokens), progress)
        try:
            report = ServeBench(rig, options, progress=progress).run(save)
        finally:
            rig.close()
        save(report)
        return report

    def complete(self, report: Report) -> bool:
        """Whether there is a row for every number of callers and side, the steps of both sides, and the server ended
        with 0."""
        concurrency = self.concurrency or CONCURRENCY[report["device"]]
        rows = len(report["rows"]) == 2 * len(concurrency) and len(report["streams"]) == 2
        return rows and report["exit_code"] == 0

    def draw(self, report: Report) -> Image:
        """See `Benchmark`: requests per second of both sides, above what a decode step takes."""
        from gapless.bench.bar_plot import Cluster, Style, draw_bars, stacked

        sides = tuple(dict.fromkeys(row["side"] for row in report["rows"]))
        rates = {(row["side"], row["concurrency"]): row["requests_per_s"] for row in report["rows"]}
        counts = list(dict.fromkeys(row["concurrency"] for row in report["rows"]))
        clusters = [Cluster(callers(count), "", tuple(rates.get((side, count)) for side in sides)) for count in counts]
        if not clusters:
            raise ValueError("there is no row to draw")
        pictures = [draw_bars(clusters, Style(sides), "Requests per second", described(report))]
        steps = {row["side"]: row["step_ms"] for row in report["streams"]}
        if steps:
            busy = Cluster(f"{report['streams'][0]['streams']} busy streams", "", tuple(map(steps.get, sides)))
            pictures.append(draw_bars([busy], Style(sides, " ms"), "A decode step, idle time included", ""))
        return stacked(pictures)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 0, 1 if a row is missing, 2 if nothing could be measured."""
    usual = Serve()
    parser = parser_of("serve", "The serving benchmark.", usual.device, usual.seconds)
    parser.add_argument("--concurrency", type=numbers, help="callers at once, for example 1,16,64,128")
    parser.add_argument("--streams", type=int, help="streams at once")
    parser.add_argument("--waves", type=int, default=usual.waves, help="slices of each row")
    parser.add_argument("--tokens", type=int, default=usual.tokens, help="of an answer")
    parser.add_argument("--stream-tokens", type=int, default=usual.stream_tokens, help="of a stream")
    given = parser.parse_args(arguments)
    serve = Serve(
        given.model,
        given.device,
        given.concurrency,
        given.streams,
        given.waves,
        given.seconds,
        given.tokens,
        given.stream_tokens,
    )
    return finish(serve, given.out, given.png, given.json)


if __name__ == "__main__":
    raise SystemExit(main())
