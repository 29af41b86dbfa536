"""`gapless bench model` and `gapless bench compare`: what pipelining should bring, and what changed between two runs.

In: reports' files and a person's own numbers. Out: tables, JSON, a picture, an exit code. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gapless.bench.compare import Change, Compared, Comparison, Label
from gapless.bench.compare import compare as compared
from gapless.bench.gain_plot import Bars, draw_gains
from gapless.bench.gain_plot import streams as streams_of
from gapless.bench.model_report import ModelRow, WhatIf, imagined_rows, published_rows, report_rows
from gapless.bench.report_file import decode_rows, read_report
from gapless.cli.drawing import FORMATS, write_picture
from gapless.cli.options import ReportJsonOption
from gapless.cli.show import json_line
from gapless.cli.terminal import complain, table

INSTEAD = "Instead of measured numbers"
HEAD = ("streams", "depth", "G ms", "C ms", "H ms", "T_block", "T_pipe", "measured", "L", "z %", "predicted %")
MEANING = (
    "G: forward + sampling; C: the loop thread; H: from sampled to the next launch; T_block: the period at depth 1. "
    "T_pipe = max(G, C, (G + H) / depth), and predicted = T_block / T_pipe x (1 - z) - 1."
)
PUBLISHED_SO = (
    "Published figures, Moondream 2: predicted is made from their two periods, as they were published; by parts takes "
    "T_pipe from G, C and H. C was not published; H stands in for it."
)
NOTHING = "-"
WORSE, BETTER, OTHER = "!", "+", "*"


def _above(value: float | None) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise typer.BadParameter(f"{value} is not above 0")
    return value


def _answer(value: float | None) -> float | None:
    if value is not None and not 1 <= value < float("inf"):
        raise typer.BadParameter(f"{value:g} is below 1; an answer has its end at least")
    return value


def _not_below(value: float | None) -> float | None:
    if value is not None and not 0 <= value < float("inf"):
        raise typer.BadParameter(f"{value} is below 0 or no number")
    return value


def _ms(flag: str, says: str, *, zero: bool = True) -> Any:
    """An option for milliseconds of a step."""
    check = _not_below if zero else _above
    return typer.Option(flag, metavar="MS", callback=check, rich_help_panel=INSTEAD, help=says)


def _counts(values: list[int] | None) -> list[int] | None:
    return list(dict.fromkeys(values)) if values else values


def model(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A report of bench decode.")] = None,
    depth: Annotated[
        list[int] | None, typer.Option("--depth", min=1, callback=_counts, help="Steps in flight; may be given again.")
    ] = None,
    streams: Annotated[
        list[int] | None, typer.Option("--streams", min=1, callback=_counts, help="Only these; may be given again.")
    ] = None,
    forward_ms: Annotated[float | None, _ms("--forward-ms", "A step's forward on the device.", zero=False)] = None,
    sampling_ms: Annotated[float | None, _ms("--sampling-ms", "A step's sampling on the device.")] = None,
    host_ms: Annotated[float | None, _ms("--host-ms", "A step's time of the loop thread.")] = None,
    chain_ms: Annotated[float | None, _ms("--chain-ms", "From sampled to the next launch.")] = None,
    tokens: Annotated[
        float | None,
        typer.Option("--tokens", metavar="N", callback=_answer, rich_help_panel=INSTEAD, help="Tokens of an answer."),
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="OUT", help="Draw predicted and observed gains.")] = None,
    json: ReportJsonOption = False,
) -> int:
    """What pipelining should bring: the cost model, beside what was observed.

    With a report: its streams, each predicted from its own row of depth 1. Without: published figures; or, given
    --forward-ms and --host-ms, a step of your own.
    """
    check_picture(png)
    what = WhatIf(forward_ms, sampling_ms, host_ms, chain_ms, tokens)
    origin, rows = _rows_for(file, what, depth or (), streams or ())
    if json:
        json_line({"source": origin, "rows": [row.as_dict() for row in rows]})
    else:
        _show_model(rows, origin)
    if png is not None:
        complain(f"wrote {write_picture(draw_gains(_bars(rows), 'What pipelining brings', _subtitle(origin)), png)}")
    return 0


def check_picture(png: Path | None) -> None:
    """Refuse a --png of no known format before anything is measured."""
    if png is not None and png.suffix.lower() not in FORMATS:
        raise typer.BadParameter(f"--png {str(png)!r} must end with one of {', '.join(FORMATS)}")


def _rows_for(
    file: Path | None, what: WhatIf, depths: Sequence[int], streams: Sequence[int]
) -> tuple[str, list[ModelRow]]:
    """Where the numbers come from, and the lines."""
    if file is not None:
        report = read_report(file)
        rows = report_rows(decode_rows(report, file), depths, streams, what)
        return f"{_described(report) or file.name}{', what if' if what.times else ''}", rows
    if what.times:
        return "what if", imagined_rows(what, depths, streams)
    return "published, Moondream 2", published_rows(depths, streams, what.tokens)


def _described(report: dict[str, Any]) -> str:
    """Machine and model of a report, as far as it tells."""
    machine, network = report.get("machine"), report.get("model")
    names = (
        machine.get("gpu") or machine.get("cpu") if isinstance(machine, dict) else None,
        network.get("name") if isinstance(network, dict) else network,
    )
    return ", ".join(str(name) for name in names if name)


def _show_model(rows: Sequence[ModelRow], origin: str) -> None:
    published = bool(rows[0].gpu)
    head = ("GPU", "sampler", *HEAD, "by parts %" if published else "by periods %", "observed %")
    lines = [_cells(row) for row in rows]
    kept = [i for i in range(len(head)) if any(line[i] != NOTHING for line in lines)]
    table([head[i] for i in kept], [[line[i] for i in kept] for line in lines], title=f"The cost model: {origin}")
    print(MEANING)
    if published:
        print(PUBLISHED_SO)
    elif any(row.by_periods for row in rows):
        print("by periods: the same with the measured period in T_pipe's place; measured: that period.")


def _cells(row: ModelRow) -> tuple[str, ...]:
    point, predicted = row.predicted.point, row.predicted
    parts = point.parts
    other = row.by_parts if row.gpu else row.by_periods
    return (
        row.gpu or NOTHING,
        row.sampler or NOTHING,
        str(point.streams),
        str(predicted.depth),
        *(f"{ms:.3f}" for ms in (parts.device_ms, parts.host_ms, parts.chain_ms)),
        f"{point.blocking_ms:.3f}",
        f"{predicted.pipelined_ms:.3f}",
        NOTHING if row.measured_ms is None else f"{row.measured_ms:.3f}",
        f"{point.tokens:.0f}",
        f"{100 * predicted.tax:.2f}",
        *(_percent(gain) for gain in (predicted.gain, other.gain if other else None, row.observed)),
    )


def _percent(gain: float | None) -> str:
    return NOTHING if gain is None else f"{100 * gain:+.1f}"


def _subtitle(origin: str) -> str:
    return f"Throughput above the blocking engine, in percent · {origin}"


def _bars(rows: Sequence[ModelRow]) -> list[Bars]:
    several = len({row.predicted.depth for row in rows}) > 1
    ordered = sorted(rows, key=_group_of) if several else rows
    return [
        Bars(
            streams_of(row.predicted.point.streams),
            _group_of(row) if several else row.gpu or row.sampler,
            row.predicted.gain,
            row.observed,
        )
        for row in ordered
    ]


def _group_of(row: ModelRow) -> str:
    depth = f"depth {row.predicted.depth}"
    kind = row.gpu or row.sampler
    return f"{kind}, {depth}" if kind else depth


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A report: the one to compare with.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="A report of the same kind: the new one.")],
    threshold: Annotated[
        float, typer.Option("--threshold", callback=_not_below, help="Changes above this fraction are marked.")
    ] = 0.02,
    column: Annotated[
        list[str] | None, typer.Option("--column", metavar="NAME", help="Only this number; may be given again.")
    ] = None,
    fail_above: Annotated[
        bool,
        typer.Option("--fail-above", help="End with 1 if a number is worse by more, or a row or a number is gone."),
    ] = False,
    json: ReportJsonOption = False,
) -> int:
    """Put two reports side by side: B over A for every number, rows matched by streams and depth.

    Gains and shares are compared by their difference, in points.
    """
    reports = read_report(a), read_report(b)
    found = compared(*reports, threshold, column or ())
    if json:
        json_line(found.as_dict())
    else:
        _show_comparison(found)
        names = [_described(report) for report in reports]
        if names[0] != names[1]:
            print(f"A: {names[0] or a.name}; B: {names[1] or b.name}")
    return 1 if fail_above and found.failed else 0


def _show_comparison(found: Comparison) -> None:
    for section in dict.fromkeys(row.section for row in found.rows):
        rows = [row for row in found.rows if row.section == section]
        labels = list(dict.fromkeys(name for row in rows for name, _ in row.label))
        columns = list(dict.fromkeys(name for row in rows for name in row.columns))
        if columns:
            table(
                (*labels, *columns), [_compared_cells(row, labels, columns) for row in rows], title=f"{section}: B / A"
            )
    for name, only in (("A", found.only_a), ("B", found.only_b)):
        for section, label in only:
            print(f"only in {name}: {_told(section, label)}")
    for row in found.rows:
        if row.lost:
            print(f"only in A: {', '.join(row.lost)} of {_told(row.section, row.label)}")
    print(f"above {100 * found.threshold:g} %: {WORSE} worse, {BETTER} better, {OTHER} different. pt: points, B - A.")


def _told(section: str, label: Label) -> str:
    return " ".join([section, *(f"{key}={value}" for key, value in label)])


def _compared_cells(row: Compared, labels: Sequence[str], columns: Sequence[str]) -> list[str]:
    told = dict(row.label)
    numbers = [_change_cell(name, row.columns.get(name)) for name in columns]
    return [*(str(told.get(name, NOTHING)) for name in labels), *numbers]


def _change_cell(name: str, change: Change | None) -> str:
    if change is None:
        return NOTHING
    mark = "" if not change.marked else {True: BETTER, False: WORSE, None: OTHER}[change.better]
    if change.change is None:
        return f"{change.a:g} → {change.b:g}{mark}"
    if change.in_points:
        return f"{100 * change.change:+.1f}pt{mark}"
    return f"{1 + change.change:.3f}{mark}"
