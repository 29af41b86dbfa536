"""What the benchmarks of `gapless bench` share: their options, and how a report is shown, kept and drawn.

In: a benchmark that was chosen. Out: a table or JSON on standard output, files, an exit code.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gapless.bench.command import Benchmark, described, footnotes
from gapless.bench.report_file import save_to
from gapless.bench.text import cells, filled
from gapless.cli.cost import check_picture
from gapless.cli.drawing import make_place, write_picture
from gapless.cli.options import MOST_DEPTH, RUN, SHOW
from gapless.cli.show import json_line
from gapless.cli.terminal import complain, spinner, table


class SamplerChoice(StrEnum):
    """Samplers of `gapless.bench.decode`, in the form that the command line's parser takes."""

    GREEDY = "greedy"
    DEFAULT = "default"
    BOTH = "both"


class OneSampler(StrEnum):
    """Samplers of `gapless.bench.query`, likewise."""

    GREEDY = "greedy"
    DEFAULT = "default"


def above_zero(value: float) -> float:
    """Seconds in which something can be measured."""
    if not value > 0:  # nan is not, either
        raise typer.BadParameter(f"{value} is not above 0")
    return value


def distinct(values: list[int] | None) -> list[int] | None:
    """Numbers that were given, each once."""
    return list(dict.fromkeys(values)) if values else values


TYPED = "COMMANDLINE"
"""Where a value is from that was given."""
BenchModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME|FOLDER",
        rich_help_panel=RUN,
        help="Not given: on a GPU random, full-size random weights, as fast as trained ones; on a CPU glint. "
        "moondream-3 and moondream-3.1 are random weights too.",
    ),
]
DepthsOption = Annotated[
    list[int] | None,
    typer.Option(
        "--depth",
        min=1,
        max=MOST_DEPTH,
        callback=distinct,
        help="Steps in flight; may be given again. Not given: 1 and 2.",
    ),
]
SecondsOption = Annotated[
    float, typer.Option("--seconds", callback=above_zero, help="No new section begins after that long.")
]
WavesOption = Annotated[int, typer.Option("--waves", min=1, help="How often each row is measured, if time allows.")]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", rich_help_panel=SHOW, help="Write the report there too, as JSON."),
]
PngOption = Annotated[
    Path | None, typer.Option("--png", metavar="FILE", rich_help_panel=SHOW, help="Draw the report there.")
]
AgainstTorchOption = Annotated[
    bool,
    typer.Option(
        "--against-torch", help="Measure again with torch's kernels alone, and show the speed-up; twice as long."
    ),
]
CompareOption = Annotated[
    tuple[Path, Path] | None,
    typer.Option("--compare", metavar="A B", rich_help_panel=SHOW, help="Measure nothing: compare two reports."),
]


def alone(context: typer.Context, option: str) -> None:
    """Refuse whatever stands on the command line beside an option that wants none of it but `--json`."""
    given = [name for name in context.params if (source := context.get_parameter_source(name)) and source.name == TYPED]
    names = {of.name: max(of.opts, key=len) for of in context.command.params}
    more = [names[name] for name in given if name not in (option, "json")]
    if more:
        context.fail(f"{names[option]} takes nothing but --json beside it; leave out {', '.join(more)}")


def run_benchmark(benchmark: Benchmark, *, json: bool, out: Path | None, png: Path | None) -> int:
    """Measure and show. Returns 0, or 1 if something could not be measured."""
    check_picture(png)
    for path in (out, png):
        if path is not None:
            make_place(path)  # before anything that takes time
    with spinner(benchmark.title) as progress:
        report = benchmark.run(save_to(out), progress)
    if json:
        json_line(report)
    else:
        for name, columns in benchmark.tables.items():
            shown = filled(report[name], columns)
            title = f"{benchmark.title}: {described(report)}" if name == "rows" else name
            table(shown, cells(report[name], shown), title=title)
        print("\n".join(footnotes(report)))
    if png is not None:
        try:
            complain(f"wrote {write_picture(benchmark.draw(report), png)}")
        except ValueError as error:
            complain(f"{error}; no picture was made")
    return 0 if benchmark.complete(report) else 1


def show_host_only(json: bool) -> None:
    """The engine's own part of a step, on a device that computes nothing."""
    from gapless.bench.decode import HOST_COLUMNS
    from gapless.bench.hostpart import measure_null

    parts = [part.as_dict() for part in measure_null()]
    if json:
        json_line({"host": parts})
        return
    shown = filled(parts, HOST_COLUMNS)
    table(shown, cells(parts, shown), title="The engine's own part of a step")
