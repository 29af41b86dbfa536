"""Where words go: data to standard output, everything else to standard error.

In: messages. Out: lines and bars on standard error; a spinner or a bar shows only where a person is watching. Nothing
here knows what is being done.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status
from rich.table import Table

PROGRAM = "gapless"
BAR_WIDTH = 24
PLAIN_WIDTH = 1000
"""Columns where no terminal sets them: wide enough that nothing is broken into lines."""


def one_line(message: object) -> str:
    """The message with every run of white space made one blank, so that an error is one line."""
    return " ".join(str(message).split())


def complain(message: object) -> None:
    """Print one line on standard error, led by the program's name."""
    print(f"{PROGRAM}: {one_line(message)}", file=sys.stderr)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table on standard output: framed on a terminal, bare columns of full width anywhere else.

    A terminal too narrow for the longest words gets bare columns as well: a frame would cut them off.
    """
    rows = list(rows)
    terminal = Console(highlight=False)
    if sys.stdout.isatty():
        grid = _grid(columns, rows, title, framed=True)
        if Measurement.get(terminal, terminal.options.update(width=PLAIN_WIDTH), grid).minimum <= terminal.width:
            terminal.print(grid)
            return
    grid = _grid(columns, rows, title, framed=False)
    plain = Console(width=PLAIN_WIDTH, highlight=False)
    with plain.capture() as printed:
        plain.print(grid, crop=False)
    print("\n".join(line.rstrip() for line in printed.get().splitlines()))


def _grid(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str, *, framed: bool) -> Table:
    grid = Table(
        *columns,
        title=title or None,
        title_justify="left",
        show_header=any(columns),
        box=box.ROUNDED if framed else None,
        pad_edge=framed,
    )
    for row in rows:
        grid.add_row(*(escape(str(cell)) for cell in row))
    return grid


class Spinner:
    """A spinner that can be told how far things are; without a terminal it shows nothing."""

    def __init__(self, status: Status | None) -> None:
        self._status = status

    def show(self, doing: str, done: int, total: int) -> None:
        """`done` of `total` parts are over; `doing` begins."""
        if self._status is not None:
            filled = BAR_WIDTH * done // max(total, 1)
            self._status.update(f"{'━' * filled}{'╌' * (BAR_WIDTH - filled)} {done}/{total} {doing}")


@contextmanager
def spinner(doing: str) -> Iterator[Spinner]:
    """Show `doing` with a spinner on standard error while the block runs, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Spinner(None)
        return
    with console.status(doing) as status:
        yield Spinner(status)


@contextmanager
def progress_bar(doing: str, total: int) -> Iterator[Progress]:
    """A bar on standard error for `total` things, advanced with `progress.advance(progress.task_ids[0])`.

    Lines printed meanwhile go above the bar where both are on the terminal, in one piece however narrow it is, and are
    left alone where output is a file.
    """
    console = Console(stderr=True, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        disable=not console.is_terminal,
    ) as progress:
        progress.add_task(doing, total=total)
        yield progress
