"""What a program of the command line owes its user, for the examples beside this file: an error in one line with its
remedy, Ctrl-C without a traceback, and numbers that can be used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from gapless.errors import GaplessError

PICTURES = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}


def run(main: Callable[[], int]) -> int:
    """The program's exit code: its own, 1 after an error, 130 after Ctrl-C."""
    try:
        return main()
    except GaplessError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def pictures_in(folder: Path) -> list[Path]:
    """The picture files of a folder, by name. Raises `SystemExit` with a remedy if there is no folder or no picture."""
    if not folder.is_dir():
        raise SystemExit(f"{str(folder)!r} is no folder; name one with pictures in it")
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in PICTURES)
    if not files:
        raise SystemExit(f"{str(folder)!r} has no pictures in it ({', '.join(sorted(PICTURES))}); name another folder")
    return files


def count(text: str) -> int:
    """An option's whole number of 1 or more."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def positive(text: str) -> float:
    """An option's number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number
