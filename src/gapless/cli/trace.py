"""`gapless trace`: run any command while every engine in it is recorded, and write a timeline.

In: a command line, run in this process. Out: a trace for Perfetto, and with `--png` a picture of a few decode steps,
blocking above pipelined. The command's own output and exit code are as ever; what is said about the trace goes to
standard error. A command that fails or is interrupted leaves the trace of what it did until then.

A picture needs a run at depth 1 and one at another depth. A command that runs both by itself (`demo`, `bench mix`) is
run once; one that takes a depth is run again, silently, at the depth that is missing: 1, or 2 if 1 was asked for.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from PIL import Image

from gapless.cli.drawing import make_place, write_picture
from gapless.cli.skills import COMMANDS
from gapless.cli.terminal import complain
from gapless.errors import GaplessError
from gapless.observe.chrome import trace_of
from gapless.observe.figure import draw
from gapless.observe.recording import CAPACITY, Recording, record
from gapless.observe.window import compare, works_of

VIEWER = "https://ui.perfetto.dev"
BOTH = ("demo", "bench mix")
"""Commands that run at depth 1 and at depth 2."""


def trace(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(metavar="OUT.json", help="Where the trace goes.")],
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND ...", help="What to run, as after the word gapless.")
    ],
    png: Annotated[
        Path | None,
        typer.Option("--png", metavar="OUT.png", help="Also draw a few decode steps: depth 1 above, depth 2 below."),
    ] = None,
    rows: Annotated[
        int | None, typer.Option("--rows", min=1, metavar="N", help="Draw steps of N rows. Not given: of many rows.")
    ] = None,
    spans: Annotated[
        int, typer.Option("--spans", min=100, help="Keep the last N spans; a step has about eight.")
    ] = CAPACITY,
) -> int:
    """Run a command and write a timeline of it: what the engine's thread and the device's streams did, step by step.

    Open the file in Perfetto (https://ui.perfetto.dev) or in Chrome (chrome://tracing).
    """
    if command[0] == "trace":
        raise typer.BadParameter("trace cannot run itself; name a command that answers, such as query or bench mix")
    if png is not None:
        _check_png(png, command)
    elif rows is not None:
        raise typer.BadParameter("--rows says which steps --png draws; give --png too")
    for path in (out, png) if png is not None else (out,):
        make_place(path)
    with record(spans) as recording:
        try:
            code = _run(context, command)
            if png is not None and not code and recording.depths:
                _run_missing(context, command, recording)
        finally:
            if recording.depths:
                _write(recording, out)
    if not recording.depths:
        raise GaplessError(
            f"gapless {_name(command)} ran no engine, so there is nothing to trace; trace a command that answers, "
            "such as query, caption, demo or bench mix"
        )
    if png is not None and not code:
        write_picture(_picture(recording, command, rows), png)
        complain(f"drawn to {png}")
    return code


def _check_png(png: Path, command: Sequence[str]) -> None:
    if png.suffix.lower() != ".png":
        raise typer.BadParameter(f"--png {str(png)!r} must end with .png")
    if "-" in command:
        raise typer.BadParameter("--png runs the command twice, and standard input can be read once; name a file")


def _run(context: typer.Context, command: Sequence[str]) -> int:
    """Run a command line of this program; its exit code. Its errors are raised."""
    app: Any = context.find_root().command
    return int(app(list(command), standalone_mode=False, prog_name="gapless") or 0)


def _run_missing(context: typer.Context, command: Sequence[str], recording: Recording) -> None:
    """Run again at the depth that the recording lacks, if the command takes one."""
    depths = set(recording.depths)
    if len(depths) > 1 and 1 in depths:
        return
    if command[0] not in COMMANDS:
        raise GaplessError(
            f"--png compares depth 1 with another, but gapless {' '.join(command)} ran at depth "
            f"{' and '.join(map(str, sorted(depths)))} alone; trace {', '.join((*COMMANDS, *BOTH[:-1]))} or {BOTH[-1]}"
        )
    words, missing = list(command), 2 if 1 in depths else 1
    end = words.index("--") if "--" in words else len(words)
    words[end:end] = ["--depth", str(missing)]  # the last one given counts
    with redirect_stdout(io.StringIO()):
        _run(context, words)


def _write(recording: Recording, out: Path) -> None:
    trace = trace_of(recording)
    try:
        with out.open("w", encoding="utf-8") as file:
            json.dump(trace, file)
    except OSError as error:
        raise GaplessError(f"cannot write {str(out)!r}: {error.strerror or error}; name another place") from error
    lost = f"; the {recording.dropped} oldest were dropped, --spans keeps more" if recording.dropped else ""
    complain(f"{trace['otherData']['spans']} spans written to {out}{lost}; open it in {VIEWER}")


def _picture(recording: Recording, command: Sequence[str], rows: int | None) -> Image.Image:
    """Of the last engine of depth 1 and the last of another depth, among those whose device says what it did."""
    spans = [recording.spans(engine) for engine in range(len(recording.depths))]
    seen = [(spans[i], depth) for i, depth in enumerate(recording.depths) if works_of(spans[i])]
    blocking = [mine for mine, depth in seen if depth == 1][-1:]
    pipelined = [(mine, depth) for mine, depth in seen if depth != 1][-1:]
    if not blocking or not pipelined:
        raise GaplessError(
            "--png draws a run at depth 1 and another, and of one of them no span was kept; give more --spans"
            if recording.dropped
            else "--png draws what the device did, and it said nothing; trace a command that runs a model"
        )
    windows = compare(blocking[0], pipelined[0][0], (1, pipelined[0][1]), rows)
    count = windows[0].rows
    return draw(windows, f"gapless {_name(command)}: decode steps of {count} {'row' if count == 1 else 'rows'}")


def _name(command: Sequence[str]) -> str:
    return " ".join(command[: 2 if command[0] == "bench" else 1])
