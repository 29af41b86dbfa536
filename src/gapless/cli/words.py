"""Positional words: pictures, and after them the question or the object.

In: words as the shell split them. Out: pictures (`PictureWord`).
Raises usage errors (exit code 2) for what can be seen without reading a picture.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from gapless.config import ImageLimits

STDIN = "-"


@dataclass(frozen=True, slots=True)
class PictureWord:
    """A picture as it was named, and where its bytes come from: its path, or the bytes read from standard input."""

    name: str
    source: str | bytes


def check_words(pictures: Sequence[str], last: str, what: str) -> None:
    """Catch a forgotten `what` (a question, an object), which makes a picture the last word, and missing quotes."""
    if last == STDIN or _is_file(last):
        raise typer.BadParameter(f"the last word {last!r} is a picture; the {what} is missing, and comes last")
    strangers = [word for word in pictures if word != STDIN and _like_text(word)]
    if strangers:
        raise typer.BadParameter(
            f"{strangers[0]!r} is not a picture file; if it belongs to the {what}, put the {what} in quotes"
        )


def read_pictures(words: Sequence[str]) -> list[PictureWord]:
    """Resolve `-` to the bytes on standard input; paths stay paths. Raises when `-` cannot be read."""
    if words.count(STDIN) > 1:
        raise typer.BadParameter("'-' reads standard input, which holds one picture; give it once")
    return [PictureWord(word, _standard_input() if word == STDIN else word) for word in words]


def _standard_input() -> bytes:
    """At most one byte over the limit, so that an endless pipe is refused by its size and not kept."""
    if sys.stdin.isatty():
        raise typer.BadParameter("'-' reads a picture from standard input, but that is a terminal; pipe a picture in")
    return sys.stdin.buffer.read(ImageLimits().max_bytes + 1)


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except (OSError, ValueError):  # longer than any path, or with a NUL: a question, then
        return False


def _like_text(word: str) -> bool:
    """A word without a dot or a slash that names no file is part of an unquoted question, not a mistyped path."""
    return not _is_file(word) and not any(mark in word for mark in "./\\")
