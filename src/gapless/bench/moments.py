"""Three moments of the pipeline, drawn from real steps of the bundled model: `python -m gapless.bench.moments FOLDER`.

In: a folder. Out: `prefill.png` (a prompt is fed while others decode) and `end.png` (an answer ends while others go
on), each at depth 1 above and depth 2 below, and `parked.png` (a row whose mask is made on the host waits for it and
nobody waits for the row) at depth 2. Everything runs on the CPU; the pictures are known beforehand, so that a prompt is
short. The rule of the last one is recursive, so a grammar leads it on the host: that needs the extra `structured`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gapless
from gapless.bench.mix import picture_path
from gapless.observe.figure import draw
from gapless.observe.moments import Moment, find
from gapless.observe.recording import record
from gapless.observe.window import Window

PICTURES = ("shapes_square", "shapes_wide", "shapes_tall")
TREE: dict[str, Any] = {
    "$defs": {
        "part": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 8},
                "parts": {"type": "array", "maxItems": 3, "items": {"$ref": "#/$defs/part"}},
            },
            "required": ["name", "parts"],
        }
    },
    "$ref": "#/$defs/part",
}
"""Things made of parts made of parts: recursive, so it has no table."""
Caller = Callable[[gapless.VLM, Callable[[], bool]], None]
"""Asks one question after another until the second argument says that it is time."""
TURNS = 12
"""Answers that each of the callers who decode asks for."""
PAUSE = 0.05
"""Seconds between short answers: the others decode alone meanwhile."""
FIGURES = {
    "prefill": "A prompt is fed while two answers go on",
    "end": "An answer ends while two others go on",
    "parked": "A row waits for a mask of the host, and nobody waits for it",
}


def _short(vlm: gapless.VLM, done: Callable[[], bool]) -> None:
    """Points, one answer after another: prompts of a few words, and answers that end by themselves."""
    while not done():
        vlm.point(str(picture_path(PICTURES[0])), "cross")
        time.sleep(PAUSE)


def _ruled(vlm: gapless.VLM, done: Callable[[], bool]) -> None:
    """Answers that a grammar leads."""
    settings = {"json_schema": TREE, "max_tokens": 40, "temperature": 0}
    while not done():
        vlm.query(str(picture_path(PICTURES[0])), "What is in the picture?", settings=settings)


def play(depth: int, third: Caller, moments: Sequence[Moment]) -> list[Window]:
    """Two callers have long captions made, the third does what it does meanwhile. A window of each moment."""
    with record() as recording:
        with gapless.load("glint", device="cpu", depth=depth, max_rows=4, threads=1) as vlm:
            for name in PICTURES:
                vlm.caption(str(picture_path(name)), settings={"max_tokens": 1})
            third(vlm, iter((False, True)).__next__)  # what is compiled once is compiled now
            since = time.perf_counter()
            with ThreadPoolExecutor(3) as callers:
                captions = [callers.submit(_captions, vlm, name) for name in PICTURES[1:]]
                other = callers.submit(third, vlm, captions[0].done)
                for call in (*captions, other):
                    call.result()
        spans = recording.spans()
    return [find(spans, depth, moment, 2, since) for moment in moments]


def _captions(vlm: gapless.VLM, name: str) -> None:
    for _ in range(TURNS):
        vlm.caption(str(picture_path(name)), length="long", settings={"temperature": 0})


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m gapless.bench.moments", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    short = [play(depth, _short, (Moment.PREFILL, Moment.END)) for depth in (1, 2)]
    windows = dict(zip(("prefill", "end"), zip(*short, strict=True), strict=True)) | {
        "parked": tuple(play(2, _ruled, (Moment.PARKED,)))
    }
    for name, title in FIGURES.items():
        draw(windows[name], title).save(options.folder / f"{name}.png", optimize=True)
        print(options.folder / f"{name}.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
