"""`gapless demo`: every skill on the bundled pictures, answers beside the truth, drawings, and the fixed mix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from PIL import Image

from gapless.bench.asks import Result
from gapless.bench.samples import Question, Truth, agrees, found_in, read_samples
from gapless.cli.answer import loaded
from gapless.cli.bench import finish_report, measure
from gapless.cli.drawing import draw_answer, make_folder, write_picture
from gapless.cli.many import Outcome, each_in_order
from gapless.cli.options import DeviceOption, DTypeChoice, Engine, ModelOption, ReportJsonOption
from gapless.cli.show import json_line
from gapless.cli.terminal import one_line, table
from gapless.config import ImageLimits
from gapless.images.decode import RGB, load_picture
from gapless.images.draw import draw_text

DEPTHS = (1, 2)


@dataclass(frozen=True, slots=True)
class Answered:
    """A question with what came back, and the file it was drawn to (None where there was an error)."""

    outcome: Outcome[Question]
    file: Path | None

    @property
    def right(self) -> bool:
        """Whether the answer agrees with the truth."""
        question, result = self.outcome.of, self.outcome.result
        return result is not None and agrees(question.ask, result, question.truth)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        question, error = self.outcome.of, self.outcome.error
        return {
            "picture": question.picture.name,
            "skill": question.ask.skill,
            "text": question.ask.text,
            "result": self.outcome.result,
            "error": one_line(error) if error else None,
            "truth": question.truth,
            "right": self.right,
            "drawn": str(self.file) if self.file else None,
        }


def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Where the drawn pictures go; made if it is not there.")
    ] = Path("demo-out"),
    model: ModelOption = "glint",
    device: DeviceOption = "auto",
    json: ReportJsonOption = False,
) -> int:
    """Ask everything about three bundled pictures, draw the answers, then run the fixed mix at depth 1 and 2."""
    make_folder(out)  # before anything that takes time
    answers = _answer_all(read_samples(), model, device, out)
    if not json:
        _show(answers, out)
    report = measure(model, DEPTHS, device=device)
    if json:
        json_line({"answers": [answer.as_dict() for answer in answers], "mix": report.as_dict()})
    return finish_report(report, quiet=json)


def _answer_all(questions: Sequence[Question], model: str, device: str, out: Path) -> list[Answered]:
    """Ask all at once, and draw what comes back."""
    with loaded(Engine(model, device, DTypeChoice.AUTO, DEPTHS[-1])) as vlm:

        def work(question: Question) -> Result:
            return question.ask.put(vlm, question.picture)

        outcomes = list(each_in_order(questions, work))
    return [Answered(o, file) for o, file in zip(outcomes, _draw(outcomes, out), strict=True)]


def _draw(outcomes: Sequence[Outcome[Question]], out: Path) -> list[Path | None]:
    """Points, boxes and outlines get a picture each; all that was said about a picture stands under one copy of it."""
    files: list[Path | None] = []
    count: Counter[str] = Counter()
    said: dict[Path, list[str]] = {}
    for question, result in ((outcome.of, outcome.result) for outcome in outcomes):
        stem, skill = question.picture.stem, question.ask.skill
        if result is None:
            files.append(None)
        elif skill in ("query", "caption"):
            said.setdefault(question.picture, []).append(f"{_asked(question)} {found_in(question.ask, result)}")
            files.append(out / f"{stem}-text.png")
        else:
            count[f"{stem}-{skill}"] += 1
            name = f"{stem}-{skill}-{count[f'{stem}-{skill}']}.png"
            files.append(draw_answer(question.ask, result, _pixels(question.picture), out / name))
    for picture, lines in said.items():
        drawn = draw_text(Image.fromarray(_pixels(picture)), "\n".join(lines))
        write_picture(drawn, out / f"{picture.stem}-text.png")
    return files


def _pixels(picture: Path) -> RGB:
    return load_picture(picture, ImageLimits())


def _asked(question: Question) -> str:
    """A query as it was put; of other skills the name too."""
    return question.ask.text if question.ask.skill == "query" else f"{question.ask.skill} {question.ask.text}:"


def _show(answers: Sequence[Answered], out: Path) -> None:
    rows = []
    for answer in answers:
        question, result, error = answer.outcome.of, answer.outcome.result, answer.outcome.error
        said = one_line(error) if result is None else _spelled(found_in(question.ask, result))
        truth = _spelled(question.truth, " or " if question.ask.skill == "segment" else " ")
        right = "yes" if answer.right else "no"
        rows.append((question.picture.name, _asked(question).rstrip(":"), said, truth, right))
    table(("picture", "asked", "answer", "truth", "right"), rows)
    count = sum(answer.right for answer in answers)
    print(f"{count} of {len(answers)} answers are right; drawn pictures are in {out}/\n")


def _spelled(truth: Truth, between: str = " ") -> str:
    """Texts as they are, points as (x, y), boxes as (x_min, y_min, x_max, y_max), with `between` between places."""
    if isinstance(truth, str):
        return truth
    return between.join(f"({', '.join(f'{n:.2f}' for n in place)})" for place in truth) or "nothing"
