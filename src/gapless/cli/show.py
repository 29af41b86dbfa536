"""Answers as people and machines read them.

In: the library's result dicts. Out: lines on standard output, nothing but data. Numbers are the normalised
coordinates of the result (0..1 of the upright picture's width and height). A terminal gets tables; anything else gets
plain lines: points as "x y", boxes as "x_min y_min x_max y_max", a segment as "bbox ..." and "path ...".
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, assert_never

from gapless.bench.asks import Ask, Result
from gapless.cli.terminal import complain, one_line, table
from gapless.errors import GaplessError

if TYPE_CHECKING:
    from gapless.api.stream import Stream

BOX = ("x_min", "y_min", "x_max", "y_max")
POINT = ("x", "y")


def json_line(value: dict[str, Any]) -> None:
    """One JSON object on one line, ASCII only, so that any terminal, pipe and file name can carry it."""
    print(json.dumps(value), flush=True)


def error_line(name: str, error: GaplessError) -> None:
    """What stands for a picture's result when there is none."""
    json_line({"image": name, "error": one_line(error), "error_type": type(error).__name__})


def show_result(ask: Ask, result: Result) -> None:
    """Print one picture's result for people."""
    match ask.skill:
        case "query":
            if "reasoning" in result:
                _show_reasoning(result["reasoning"])
            print(result["answer"].strip())
        case "caption":
            print(result["caption"].strip())
        case "point":
            _show_rows(ask, POINT, result["points"])
        case "detect":
            _show_rows(ask, BOX, result["objects"])
        case "segment":
            _show_segment(ask, result)
        case "gaze":
            _show_rows(ask, POINT, [result["gaze"]] if result["gaze"] else [])
        case _:
            assert_never(ask.skill)


def show_stream(stream: Stream, named: dict[str, Any], *, as_json: bool) -> None:
    """Print an answer as it comes. As JSON: its pieces, one object a line, and last the whole result, "completed",
    behind what it is `named`."""
    if as_json:
        _stream_json(stream, named)
        return
    if reasoning := stream.reasoning():
        _show_reasoning(reasoning)
    try:
        for piece in stream:
            text = piece if isinstance(piece, str) else piece.get("chunk", "")
            print(text, end="", flush=True)
    finally:
        print()


def _stream_json(stream: Stream, named: dict[str, Any]) -> None:
    for piece in stream:
        if isinstance(piece, str):
            json_line({"chunk": piece})
        elif "completed" not in piece:
            json_line(piece)
    json_line(named | stream.result() | {"completed": True})


def _show_reasoning(reasoning: dict[str, Any]) -> None:
    print(f"reasoning: {reasoning['text'].strip()}\n")


def _show_rows(ask: Ask, keys: tuple[str, ...], rows: list[dict[str, float]]) -> None:
    """Points or boxes, a line each. That there are none is said on standard error: it is no datum."""
    if not rows:
        complain(f"no {ask.text} found")
    elif not sys.stdout.isatty():
        for row in rows:
            print(*(f"{row[key]:.4f}" for key in keys))
    else:
        cells = [(i, *(f"{row[key]:.4f}" for key in keys)) for i, row in enumerate(rows, 1)]
        table(("", *keys), cells, title=f"{ask.text}: {len(rows)}")


def _show_segment(ask: Ask, result: Result) -> None:
    if not result.get("path"):
        complain(f"no {ask.text} found")
        return
    box = result.get("bbox")
    if box:
        print("bbox", *(f"{box[key]:.4f}" for key in BOX))
    print("path", result["path"])
