"""The command line's door: the commands, and what their endings mean.

In: `sys.argv`. Out: data on standard output, everything else on standard error, and an exit code: 0 all is well,
1 something failed (said in one line), 2 the command line is wrong, 130 interrupted. Torch is not imported before a
command needs a model, so `--help` and `--version` answer at once.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, cast

import typer

from gapless import __version__
from gapless.cli import bench, demo, inspect, models, pull, rule, serve, skills, trace, tune
from gapless.cli.examples import epilog
from gapless.cli.terminal import complain
from gapless.errors import GaplessError

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
UsageError: type[Exception] = cast(type[Exception], typer.BadParameter.__mro__[1])
"""What every complaint about a command line derives from; typer exports only its child."""

app = typer.Typer(
    name="gapless",
    add_completion=False,
    epilog=epilog(""),
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _command in skills.COMMANDS.items():
    app.command(_name, epilog=epilog(_name))(_command)
app.command("serve", epilog=epilog("serve"))(serve.serve)
app.command("models", epilog=epilog("models"))(models.models)
app.command("pull", epilog=epilog("pull"))(pull.pull)
app.command("inspect", epilog=epilog("inspect"))(inspect.inspect)
app.command("rule", epilog=epilog("rule"))(rule.rule)
app.command("tune", epilog=epilog("tune"))(tune.tune)
app.command("demo", epilog=epilog("demo"))(demo.demo)
app.command("trace", epilog=epilog("trace"))(trace.trace)
app.add_typer(bench.app, name="bench", epilog=epilog("bench"))


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gapless {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def gapless(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Ask questions about pictures: query, caption, point, detect, segment and gaze, on your own machine."""
    if context.invoked_subcommand is None and (text := context.get_help()):
        print(text)


def main(arguments: list[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit code."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(arguments, standalone_mode=False, prog_name="gapless")
        sys.stdout.flush()
        return int(code or 0)
    except UsageError as error:
        complain(f"{_message_of(error)} (see {_command_of(error)} --help)")
        return WRONG_USAGE
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as end:  # typer has met the broken pipe first, and quieted standard output
        return FAILED if end.code else 0
    except BrokenPipeError:
        _forget_stdout()
        return FAILED
    except (GaplessError, OSError) as error:
        complain(error if isinstance(error, GaplessError) else _refused(error))
        return FAILED


def _open_closed_streams() -> None:
    """A standard stream that the shell has closed (`>&-`) is None in Python: read nothing from it, write to nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - open until the process ends


def _message_of(error: Exception) -> str:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    return str(message).removeprefix("Invalid value: ").replace(": Value error, ", ": ").removesuffix(".")


def _command_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context else "gapless"


def _refused(error: OSError) -> str:
    """What no room expects, such as a full disk behind standard output; what is still unwritten is given up."""
    _forget_stdout()
    return f"the system refused to read or write ({error}); make room, or see to the permissions"


def _forget_stdout() -> None:
    """The reader of our output has left: nothing more can be said, and the interpreter must not try at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
