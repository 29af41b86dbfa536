"""What the benchmarks share when they are run as modules, `python -m gapless.bench.NAME`, with torch and little else.

In: words of a command line. Out: the options that all of them take, parsed, and the report shown and kept.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gapless.bench.report_file import save_to
from gapless.bench.text import filled, table
from gapless.errors import GaplessError

if TYPE_CHECKING:
    from PIL.Image import Image

    from gapless.api.load import Progress

Report = dict[str, Any]
Save = Callable[[Mapping[str, Any]], None]


class Benchmark(Protocol):
    """One of the benchmarks, with its options: a table, a picture, and what makes the report."""

    @property
    def title(self) -> str:
        """What it measures, in a few words."""
        ...

    @property
    def tables(self) -> Mapping[str, Sequence[str]]:
        """Sections of its report and the columns shown of each."""
        ...

    def run(self, save: Save, progress: Progress | None = None) -> Report:
        """Measure; `save` is given each stage of the report."""
        ...

    def complete(self, report: Report) -> bool:
        """Whether all that was to be measured was."""
        ...

    def draw(self, report: Report) -> Image:
        """The report as a picture. Raises `ValueError` if there is nothing to draw."""
        ...


MODEL_HELP = (
    "a name or folder, or random weights: moondream-2 (or random, the default on a GPU), moondream-3, moondream-3.1"
)


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    return tuple(int(word) for word in text.split(","))


def parser_of(name: str, description: str, device: str, seconds: float) -> argparse.ArgumentParser:
    """A parser with the options of all benchmarks."""
    parser = argparse.ArgumentParser(prog=f"python -m gapless.bench.{name}", description=description)
    parser.add_argument("--model", help=MODEL_HELP)
    parser.add_argument("--device", default=device, help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--seconds", type=float, default=seconds, help="no new section begins after that long")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--json", action="store_true", help="print the JSON too")
    parser.add_argument("--png", type=Path, help="where a picture goes")
    return parser


def add_against_torch(parser: argparse.ArgumentParser) -> None:
    """The option to measure beside torch's kernels: `against_torch`."""
    parser.add_argument("--against-torch", action="store_true", help="again with torch's kernels alone, and the gain")


def finish(benchmark: Benchmark, out: Path | None, png: Path | None, as_json: bool) -> int:
    """Measure, keep, show. Returns 0, 1 if something could not be measured, 2 if nothing could."""
    try:
        report = benchmark.run(save_to(out))
    except GaplessError as error:
        print(error)
        return 2
    print(json.dumps(report) if as_json else summary(benchmark, report))
    if png is not None:
        png.parent.mkdir(parents=True, exist_ok=True)
        try:
            benchmark.draw(report).save(png)
        except ValueError as error:  # the notes said why nothing was measured
            print(f"no picture: {error}")
    return 0 if benchmark.complete(report) else 1


def summary(benchmark: Benchmark, report: Report) -> str:
    """The report for people."""
    lines = [f"{benchmark.title}: {described(report)}"]
    for name, columns in benchmark.tables.items():
        rows = report[name]
        lines += ["", table(rows, filled(rows, columns))]
    return "\n".join([*lines, "", *footnotes(report)])


def described(report: Mapping[str, Any]) -> str:
    """Model and machine."""
    machine = report["machine"]
    return f"{report['model']['name']}, {report['model']['dtype']}, on {machine.get('gpu') or machine['cpu']}"


def footnotes(report: Mapping[str, Any]) -> list[str]:
    """The roofs, and what went wrong."""
    read = max(rate for name, rate in report["read_gb_per_s"].items() if name != "copy")
    product = max(report["matmul_tflop_per_s"].values())
    roofs = f"measured just before: reading {read} GB/s, matrix products {product} TFLOP/s"
    return [roofs, *(f"note: {note}" for note in report["notes"])]
