"""`gapless bench`: measurements, one subcommand each. Every one says what machine it ran on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gapless.bench.decode import RANDOM, complete, host_table, run_decode, save_to, summary
from gapless.bench.decode_run import Options
from gapless.bench.hostpart import measure_null
from gapless.bench.mix import MIX, PICTURES
from gapless.cli import cost
from gapless.cli.examples import epilog
from gapless.cli.options import (
    DeviceOption,
    DTypeChoice,
    DTypeOption,
    GraphsOption,
    ModelOption,
    ReportJsonOption,
    Switch,
)
from gapless.cli.show import json_line
from gapless.cli.terminal import complain, spinner, table

if TYPE_CHECKING:
    from gapless.bench.run import Report

app = typer.Typer(name="bench", help="Measure this machine, and say what to expect of it.")
app.command("model", epilog=epilog("bench model"))(cost.model)
app.command("compare", epilog=epilog("bench compare"))(cost.compare)
RANDOM_HELP = "A model's name or folder; random: full-size random weights, as fast as trained ones."
NO_PROMISE = (
    "Depth 2 hides the host's work behind the device's. On a CPU both share the same cores, so a small or busy machine "
    "may gain nothing from it, or lose a little; the answers are the same either way."
)


@app.command("mix", epilog=epilog("bench mix"))
def mix(
    depth: Annotated[
        list[int] | None,
        typer.Option("--depth", min=1, help="A depth to run at; may be given again. Default: 1 and 2."),
    ] = None,
    model: ModelOption = "glint",
    device: DeviceOption = "auto",
    dtype: DTypeOption = DTypeChoice.AUTO,
    json: ReportJsonOption = False,
) -> int:
    """Run one fixed mix at each depth: 24 requests of all skills over four small pictures, all at once."""
    report = measure(model, depth or (1, 2), device=device, dtype=dtype)
    if json:
        json_line(report.as_dict())
    return finish_report(report, quiet=json)


@app.command("decode", epilog=epilog("bench decode"))
def decode(
    model: Annotated[str, typer.Option("--model", metavar="NAME|FOLDER", help=RANDOM_HELP)] = RANDOM,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cuda or cuda:N.")] = "cuda",
    seconds: Annotated[float, typer.Option("--seconds", help="No new section begins after that long.")] = 150.0,
    graphs: GraphsOption = Switch.ON,
    host_only: Annotated[bool, typer.Option("--host-only", help="The engine's own part alone; needs no GPU.")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the report there, as JSON.")] = None,
) -> int:
    """Time decode steps on a GPU: 1 to 64 streams at depth 1 and 2, beside what the hardware allows.

    Ends with 1 if a row could not be measured.
    """
    if host_only:
        print(host_table([part.as_dict() for part in measure_null()]))
        return 0
    options = Options(seconds=seconds)
    with spinner("measuring decode steps"):
        report = run_decode(options, save_to(out), model=model, device=device, graphs=graphs is Switch.ON)
    print(summary(report))
    return 0 if complete(report, options) else 1


def measure(
    model: str, depths: Sequence[int], *, device: str = "auto", dtype: DTypeChoice = DTypeChoice.AUTO
) -> Report:
    """Run the mix, with a spinner."""
    with spinner(f"running the mix at depth {' and '.join(map(str, depths))}"):
        from gapless.bench.run import run_mix

        return run_mix(model, depths, device=device, dtype=dtype.for_load())


def finish_report(report: Report, *, quiet: bool) -> int:
    """Print the report for people, unless `quiet`. Returns the exit code: 1 if depths gave different answers."""
    if not quiet:
        _show_report(report)
    if not report.answers_equal:
        complain("the answers differ between depths, which is a bug; please report it with this machine's description")
        return 1
    return 0


def _show_report(report: Report) -> None:
    columns = ("depth", "steps", "tokens", "wall s", "step ms", "idle %", "tokens/s")
    rows = [
        (
            run.depth,
            run.steps,
            run.tokens,
            f"{run.wall_s:.2f}",
            f"{run.step_ms:.2f}",
            f"{100 * run.idle_share:.1f}",
            f"{run.tokens_per_s:.0f}",
        )
        for run in report.runs
    ]
    table(columns, rows, title=f"The fixed mix: {len(MIX)} requests over {len(PICTURES)} pictures, all at once")
    print(f"answers equal at every depth: {'yes' if report.answers_equal else 'NO'}")
    print(f"machine: {report.machine}")
    print(NO_PROMISE)
