"""What happens between a command line and its output: load the model, ask, draw, show.

In: an `Ask`, pictures, an `Engine` and an `Output`. Out: an exit code. One picture: its answer for people, or one JSON
object; its error ends the command. Several: one JSON object a line, in the pictures' order; an error is that picture's
line, and the others go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gapless.bench.asks import Ask, Result
from gapless.cli.drawing import draw_answer, plan_files
from gapless.cli.many import Outcome, each_in_order
from gapless.cli.options import Engine, Output, Switch
from gapless.cli.show import error_line, json_line, show_result, show_stream
from gapless.cli.terminal import complain, progress_bar, spinner
from gapless.cli.words import PictureWord
from gapless.config import ImageLimits
from gapless.images.decode import load_picture

if TYPE_CHECKING:
    from gapless.api.vlm import VLM


@contextmanager
def loaded(engine: Engine) -> Iterator[VLM]:
    """A `VLM` for the block's length; a spinner shows while torch and the model are read and graphs are captured.

    On a GPU a line on standard error says how its memory is divided.
    """
    with spinner(f"loading {engine.model}") as progress:
        import gapless

        vlm = gapless.load(
            engine.model,
            device=engine.device,
            dtype=engine.dtype.for_load(),
            depth=engine.depth,
            graphs=engine.graphs is Switch.ON,
            max_rows=engine.max_rows,
            pages=engine.pages,
            adapters=dict(engine.adapters) or None,
            kv_memory=engine.kv_memory,
            max_context=engine.max_context,
            prefix_cache=engine.prefix_cache is Switch.ON,
            kv_dtype=engine.kv_dtype.for_load(),
            max_step_ms=engine.max_step_ms,
            progress=progress,
        )
    if vlm.plan is not None:
        complain(vlm.plan)
    with vlm:
        yield vlm


@dataclass(frozen=True, slots=True)
class Job:
    """A picture to ask about, and the file its drawing goes to."""

    picture: PictureWord
    file: Path | None


def answer(ask: Ask, pictures: Sequence[PictureWord], engine: Engine, output: Output) -> int:
    """Ask about each picture (none: without one) and show what comes back. Returns the exit code."""
    if output.stream and len(pictures) > 1:
        raise typer.BadParameter("--stream prints one answer as it comes; give one picture")
    if output.stream and output.draw:
        raise typer.BadParameter("--draw needs the whole answer; leave out --stream")
    files = plan_files(output.draw, [p.name for p in pictures]) if output.draw else [None] * len(pictures)
    jobs = [Job(picture, file) for picture, file in zip(pictures, files, strict=True)]
    if len(jobs) > 1:
        return _ask_many(ask, jobs, engine)
    return _ask_one(ask, jobs[0] if jobs else None, engine, output)


def _ask_one(ask: Ask, job: Job | None, engine: Engine, output: Output) -> int:
    image = load_picture(job.picture.source, ImageLimits()) if job else None  # a bad picture is told before loading
    named = {"image": job.picture.name} if job else {}
    with loaded(engine) as vlm:
        if output.stream:
            show_stream(ask.stream(vlm, image), named, as_json=output.json)
            return 0
        result = ask.put(vlm, image)
    if job and job.file and image is not None:
        named["drawn"] = str(draw_answer(ask, result, image, job.file))
        complain(f"drawn to {job.file}")
    if output.json:
        json_line(named | result)
    else:
        show_result(ask, result)
    return 0


def _ask_many(ask: Ask, jobs: Sequence[Job], engine: Engine) -> int:
    failed = 0
    with loaded(engine) as vlm, progress_bar(ask.skill, len(jobs)) as progress:

        def work(job: Job) -> Result:
            image = load_picture(job.picture.source, ImageLimits())
            result = ask.put(vlm, image)
            if job.file:
                return {"drawn": str(draw_answer(ask, result, image, job.file))} | result
            return result

        for outcome in each_in_order(jobs, work):
            failed += outcome.error is not None
            _show_line(outcome)
            progress.advance(progress.task_ids[0])
    if failed:
        complain(f"{failed} of {len(jobs)} pictures failed; their lines say why")
    return 1 if failed else 0


def _show_line(outcome: Outcome[Job]) -> None:
    if outcome.error is not None:
        error_line(outcome.of.picture.name, outcome.error)
    elif outcome.result is not None:
        json_line({"image": outcome.of.picture.name} | outcome.result)
