"""`python -m gapless.bench.vision`: the vision benchmark as a command. What is measured says `bench.vision_run`.

In: which model, numbers of crops and how long. Out: a table, JSON, a picture. Importing this waits for no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gapless.bench.against import chosen
from gapless.bench.command import Report, Save, add_against_torch, described, finish, numbers, parser_of
from gapless.bench.load import load, where
from gapless.config import ImageLimits
from gapless.errors import InvalidRequest

if TYPE_CHECKING:
    from PIL.Image import Image

    from gapless.api.load import Progress

COLUMNS = (
    "crops",
    "pictures",
    "encoder_ms",
    "ms",
    "crops_per_s",
    "pictures_per_s",
    "tflop_per_s",
    "floor_ms",
    "roofline_share",
)
REPEATS = {"cpu": 3, "cuda": 20}
SECONDS = 60.0
TOGETHER = ((2, 4), (9, 2))
"""Crops of each of so many pictures that a step encodes together."""


@dataclass(frozen=True, slots=True)
class Vision:
    """The benchmark; see `Benchmark`. `together`: crops of each of so many pictures; on a GPU alone. `plain`:
    with torch's kernels alone."""

    model: str | None = None
    device: str = "auto"
    crops: tuple[int, ...] = (1, 2, 5, 9, 13)
    seconds: float = SECONDS
    together: tuple[tuple[int, int], ...] = TOGETHER
    plain: bool = False

    @property
    def title(self) -> str:
        """See `Benchmark`."""
        return "Encoding of pictures"

    @property
    def tables(self) -> Mapping[str, Sequence[str]]:
        """See `Benchmark`."""
        return {"rows": COLUMNS}

    def run(self, save: Save, progress: Progress | None = None) -> Report:
        """See `Benchmark`. Raises `InvalidRequest` for a device that is not there and for more crops than a picture
        has, and what loading a model raises."""
        from gapless.api.load import crop_spec
        from gapless.bench.vision_run import VisionBench

        device = where(self.device)
        repeats = REPEATS[device.partition(":")[0]]
        cases = [(crops, 1) for crops in self.crops]
        if device != "cpu":
            cases += self.together
        loaded = load(self.model, device, self.plain)
        most = 1 + crop_spec(loaded.config.vision).most_tiles(ImageLimits().max_pixels)
        if max(self.crops) > most:
            raise InvalidRequest(
                f"no picture has {max(self.crops)} crops; {loaded.name} makes up to {most}", param="crops"
            )
        return VisionBench(loaded, cases, repeats, self.seconds, progress=progress).run(save)

    def complete(self, report: Report) -> bool:
        """Whether there is a row for every case."""
        return len(report["rows"]) == len(self.crops) + (len(self.together) if report["device"] != "cpu" else 0)

    def draw(self, report: Report) -> Image:
        """See `Benchmark`: milliseconds by number of crops, beside the floor."""
        from gapless.bench.bar_plot import Cluster, Style, draw_bars

        clusters = [
            Cluster(_case(row["crops"], row["pictures"]), "", (row["floor_ms"], row["encoder_ms"], row["ms"]))
            for row in report["rows"]
        ]
        style = Style(("the least possible", "encoder", "whole picture"))
        return draw_bars(clusters, style, "Encoding a picture: milliseconds", described(report))


def _case(crops: int, pictures: int) -> str:
    return f"{pictures} x {crops} crops" if pictures > 1 else f"{crops} crop{'s' if crops > 1 else ''}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 0, 1 if a row is missing, 2 if nothing could be measured."""
    usual = Vision()
    parser = parser_of("vision", "The vision benchmark.", usual.device, usual.seconds)
    parser.add_argument("--crops", type=numbers, default=usual.crops, help="for example 1,2,5,13")
    add_against_torch(parser)
    given = parser.parse_args(arguments)
    vision = Vision(given.model, given.device, given.crops, given.seconds)
    measured = chosen(vision, replace(vision, plain=True), given.against_torch)
    return finish(measured, given.out, given.png, given.json)


if __name__ == "__main__":
    raise SystemExit(main())
