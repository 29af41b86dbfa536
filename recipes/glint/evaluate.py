"""How good the published weights are: fresh scenes as picture files, asked about through the engine's public API.

python -m recipes.glint.evaluate --scenes 2000 --seed 2026 --processes 2 --json recipes/glint/heldout.json

In: weights (the bundled ones, or a folder laid out like them), a number of scenes and a seed. Out: scores on the
terminal, a report as JSON, pictures of wrong answers; exit code 1 if a floor is missed. Everything is asked at
temperature 0 with many requests in flight; a scene's questions, and so the scores, depend on the seed alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import platform
import queue
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from recipes.glint import report
from recipes.glint.asking import GREEDY, ask
from recipes.glint.exam import Answer, Paper, set_paper
from recipes.glint.marking import Mark, mark
from recipes.glint.streams import Vocabulary
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import gapless
from gapless.config import KVDType

SCHEMA = 1
BUNDLED = Path(gapless.__file__).parent / "assets" / "glint"
ASKING, AHEAD = 48, 4
"""Threads that wait for answers, and papers out before the first is collected: enough to keep all rows busy."""


@dataclass(frozen=True)
class Plan:
    """What is evaluated, on what."""

    folder: Path
    scenes: int
    seed: int
    device: str
    threads: int | None = None
    kv_dtype: KVDType = "auto"


def open_model(plan: Plan) -> gapless.VLM:
    """The model behind an engine of its own; the bundled folder is loaded as users load it, by name."""
    name = "glint" if plan.folder == BUNDLED.resolve() else plan.folder
    return gapless.load(name, device=plan.device, threads=plan.threads, kv_dtype=plan.kv_dtype)


def sit(vlm: gapless.VLM, plan: Plan, numbers: Sequence[int]) -> Iterator[list[Mark]]:
    """The marks of one scene after another; later papers are drawn while earlier ones are answered."""
    vocabulary = Vocabulary(plan.folder)
    waiting: deque[tuple[Paper, list[Future[Answer]]]] = deque()
    with ThreadPoolExecutor(ASKING) as pool:
        for number in numbers:
            paper = set_paper(plan.seed, number, vocabulary)
            image = vlm.encode_image(paper.file)
            waiting.append((paper, [pool.submit(ask, vlm, image, q) for q in paper.questions]))
            if len(waiting) > AHEAD:
                yield _collect(*waiting.popleft())
        while waiting:
            yield _collect(*waiting.popleft())


def _collect(paper: Paper, answers: list[Future[Answer]]) -> list[Mark]:
    return [
        mark(paper.number, question, answer.result(), paper.groups)
        for question, answer in zip(paper.questions, answers, strict=True)
    ]


def _work(plan: Plan, numbers: Sequence[int], out: multiprocessing.Queue[list[Mark]]) -> None:
    """One process's share, with an engine of its own."""
    with open_model(plan) as vlm:
        for marks in sit(vlm, plan, numbers):
            out.put(marks)


def spread(plan: Plan, processes: int) -> Iterator[list[Mark]]:
    """The marks of all scenes, as they come, from several processes."""
    context = multiprocessing.get_context("spawn")
    out: multiprocessing.Queue[list[Mark]] = context.Queue()
    workers = [
        context.Process(target=_work, args=(plan, range(i, plan.scenes, processes), out), daemon=True)
        for i in range(processes)
    ]
    for worker in workers:
        worker.start()
    left = plan.scenes
    while left:
        try:
            yield out.get(timeout=1)
            left -= 1
        except queue.Empty:
            if any(worker.exitcode not in (None, 0) for worker in workers):
                raise SystemExit("a process of the evaluation ended early; its error is above") from None
    for worker in workers:
        worker.join()


def caption_seconds(vlm: gapless.VLM, plan: Plan, times: int = 3) -> dict[str, Any]:
    """Seconds from a picture file to its long caption, nothing else running: median of a few fresh pictures."""
    vocabulary = Vocabulary(plan.folder)
    taken = []
    for i in range(times + 1):  # the first one warms up
        file = set_paper(plan.seed, -1 - i, vocabulary).file
        begun = time.perf_counter()
        vlm.caption(file, "long", settings=GREEDY)
        taken.append(time.perf_counter() - begun)
    return {"value": round(statistics.median(taken[1:]), 3), "n": times, "most": round(max(taken), 3)}


def run(plan: Plan, processes: int, console: Console) -> tuple[list[Mark], dict[str, Any], float]:
    """Marks in the order of the scenes, the caption's time, and how long the scenes took."""
    marks: list[Mark] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with open_model(plan) as vlm, Progress(*columns, console=console, transient=True) as bar:
        timed = caption_seconds(vlm, plan)
        begun = time.perf_counter()
        several = processes > 1
        if several:
            vlm.close()
        source = spread(plan, processes) if several else sit(vlm, plan, range(plan.scenes))
        for some in bar.track(source, total=plan.scenes, description="scenes"):
            marks += some
        seconds = time.perf_counter() - begun
    return sorted(marks, key=lambda m: m.number), timed, seconds


def summary(marks: Sequence[Mark], plan: Plan, timed: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The whole report."""
    seen = [m for m in marks if not m.question.unseen]
    scores = report.headline(seen) | report.reading(seen) | {"caption_seconds": timed}
    return {
        "schema": SCHEMA,
        "model": digest(plan.folder),
        "seed": plan.seed,
        "scenes": plan.scenes,
        "requests": len(marks),
        "seconds": round(seconds, 1),
        "device": plan.device,
        "kv_dtype": plan.kv_dtype,
        "versions": versions(),
        "floors_met": all(t["met"] for t in report.targets(scores)),
        "targets": report.targets(scores),
        "scores": scores,
        "kinds": report.kinds(seen),
        "unseen": report.unseen(marks),
        "groups": report.by_group(seen),
        "confusion": report.confusion(seen),
        "worst": report.worst(marks),
    }


def digest(folder: Path) -> str:
    """sha256 of the weights file."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def versions() -> dict[str, str]:
    """What the numbers may depend on."""
    import numpy
    import PIL
    import tokenizers
    import torch

    return {"python": platform.python_version(), "gapless": gapless.__version__, "torch": torch.__version__,
            "numpy": numpy.__version__, "pillow": PIL.__version__, "tokenizers": tokenizers.__version__}  # fmt: skip


def show(summed: dict[str, Any], console: Console) -> None:
    """The scores with floors, then the worst categories."""
    table = Table("score", "value", "n", "floor", "aim", "", title=f"{summed['requests']} requests")
    for t in summed["targets"]:
        state = "aim met" if t["aim_met"] else "floor met" if t["met"] else "MISSED"
        table.add_row(t["name"], str(t["value"]), str(t["n"]), str(t["floor"]), str(t["aim"]), state)
    console.print(table)
    for entry in summed["worst"]:
        console.print(f"{entry['right']['value']:.3f} of {entry['right']['n']:5d}  {entry['category']}")


def positive(text: str) -> int:
    """A number from the command line that must be 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=positive, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--weights", type=Path, default=BUNDLED, help="a folder laid out like the bundled model's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kv-dtype", choices=get_args(KVDType), default="auto", help="how keys and values are kept")
    parser.add_argument("--processes", type=positive, default=1, help="each with an engine of its own")
    parser.add_argument("--json", nargs="?", const="-", help="write the report here; without a name, print it")
    parser.add_argument("--pictures", type=Path, help="a folder for sheets of wrong answers in the worst categories")
    args = parser.parse_args(argv)
    if args.json not in (None, "-") and not Path(args.json).absolute().parent.is_dir():  # said now, not in half an hour
        parser.error(f"--json: the folder of {args.json!r} does not exist; make it first")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate; 1 if a floor is missed."""
    args = arguments(argv)
    console = Console(stderr=True)
    threads = 1 if args.processes > 1 and args.device == "cpu" else None
    plan = Plan(args.weights.resolve(), args.scenes, args.seed, args.device, threads, args.kv_dtype)
    marks, timed, seconds = run(plan, args.processes, console)
    summed = summary(marks, plan, timed, seconds)
    show(summed, console)
    text = json.dumps(summed, indent=1) + "\n"
    if args.json == "-":
        sys.stdout.write(text)
    elif args.json:
        Path(args.json).write_text(text, encoding="utf-8")
    if args.pictures:
        from recipes.glint.contact import write_sheets

        for path in write_sheets(summed["worst"], plan.seed, Vocabulary(plan.folder), args.pictures):
            console.print(f"wrote {path}")
    return 0 if summed["floors_met"] else 1


if __name__ == "__main__":
    sys.exit(main())
