"""`python -m gapless.bench.prefill`: the prefill benchmark as a command. What is measured says `bench.prefill_run`.

In: which model, lengths and how long. Out: a table, JSON, a picture. Importing this waits for no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gapless.bench.against import chosen
from gapless.bench.command import Report, Save, add_against_torch, described, finish, numbers, parser_of
from gapless.bench.load import load, where
from gapless.errors import InvalidRequest

if TYPE_CHECKING:
    from PIL.Image import Image

    from gapless.api.load import Progress

COLUMNS = (
    "batch",
    "text_tokens",
    "positions",
    "ms",
    "launch_ms",
    "idle_share",
    "tokens_per_s",
    "tflop_per_s",
    "floor_ms",
    "roofline_share",
)
STEPS = {"cpu": 2, "cuda": 8}
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Prefill:
    """The benchmark; see `Benchmark`. `texts`: ids behind the picture; `batches`: prompts of a step.
    `plain`: with torch's kernels alone."""

    model: str | None = None
    device: str = "auto"
    texts: tuple[int, ...] = (30, 128, 512)
    batches: tuple[int, ...] = (1, 4, 8)
    seconds: float = SECONDS
    plain: bool = False

    @property
    def title(self) -> str:
        """See `Benchmark`."""
        return "Prefills of a picture and text"

    @property
    def tables(self) -> Mapping[str, Sequence[str]]:
        """See `Benchmark`."""
        return {"rows": COLUMNS}

    def run(self, save: Save, progress: Progress | None = None) -> Report:
        """See `Benchmark`. Raises `InvalidRequest` for a device that is not there or a text that does not fit, and what
        loading a model raises."""
        from gapless.bench.prefill_run import Options, PrefillBench
        from gapless.bench.rig import Wants
        from gapless.bench.rigs import open_rig

        device = where(self.device)
        options = Options(self.texts, self.batches, steps=STEPS[device.partition(":")[0]], seconds=self.seconds)
        loaded = load(self.model, device, self.plain)
        room = loaded.model.max_context - loaded.model.prefix - 1
        if max(self.texts) > room:
            raise InvalidRequest(
                f"{max(self.texts)} tokens behind a picture do not fit; the model has room for {room}", param="text"
            )
        rows, prompt = max(self.batches) * (options.depth + 1), max(self.texts)
        rig = open_rig(device, loaded, tuple(sorted({*self.batches, rows})), Wants(prompt), plain=self.plain)
        try:
            return PrefillBench(rig, options, progress=progress).run(save)
        finally:
            rig.close()

    def complete(self, report: Report) -> bool:
        """Whether there is a row for every batch and length."""
        return len(report["rows"]) == len(self.texts) * len(self.batches)

    def draw(self, report: Report) -> Image:
        """See `Benchmark`: tokens per second by prompts in a step and length of the text."""
        from gapless.bench.bar_plot import Cluster, Style, draw_bars

        rates = {(row["batch"], row["text_tokens"]): row["tokens_per_s"] for row in report["rows"]}
        clusters = [
            Cluster(f"{ids} tokens", "behind a picture", tuple(_thousands(rates.get((b, ids))) for b in self.batches))
            for ids in self.texts
        ]
        style = Style(tuple(f"{b} prompt{'s' if b > 1 else ''} a step" for b in self.batches))
        return draw_bars(clusters, style, "Prefill: thousands of tokens per second", described(report))


def _thousands(rate: float | None) -> float | None:
    return None if rate is None else rate / 1e3


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 0, 1 if a row is missing, 2 if nothing could be measured."""
    usual = Prefill()
    parser = parser_of("prefill", "The prefill benchmark.", usual.device, usual.seconds)
    parser.add_argument("--text", type=numbers, default=usual.texts, help="tokens behind the picture: 30,128,512")
    parser.add_argument("--batch", type=numbers, default=usual.batches, help="prompts of a step: 1,4,8")
    add_against_torch(parser)
    given = parser.parse_args(arguments)
    prefill = Prefill(given.model, given.device, given.text, given.batch, given.seconds)
    return finish(chosen(prefill, replace(prefill, plain=True), given.against_torch), given.out, given.png, given.json)


if __name__ == "__main__":
    raise SystemExit(main())
