"""`gapless demo`: every skill on the bundled pictures, answers beside the truth, drawings, and the fixed mix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from gapless.bench.asks import Result
from gapless.bench.samples import Question, Truth, agrees, found_in, read_samples
from gapless.cli.answer import loaded
from gapless.cli.bench import finish_report, measure
from gapless.cli.drawing import draw_answer
from gapless.cli.many import Outcome, each_in_order
from gapless.cli.options import DTypeChoice, Engine, JsonOption, ModelOption
from gapless.cli.show import json_line
from gapless.cli.terminal import one_line, table
from gapless.config import ImageLimits
from gapless.images.decode import load_picture

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
    json: JsonOption = False,
) -> int:
    """Ask everything about three bundled pictures, draw the answers, then run the fixed mix at depth 1 and 2."""
    answers = _answer_all(read_samples(), model, out)
    if not json:
        _show(answers, out)
    report = measure(model, DEPTHS)
    if json:
        json_line({"answers": [answer.as_dict() for answer in answers], "mix": report.as_dict()})
    return finish_report(report, quiet=json)


def _answer_all(questions: Sequence[Question], model: str, out: Path) -> list[Answered]:
    """Ask all at once, and draw what comes back."""
    with loaded(Engine(model, "auto", DTypeChoice.AUTO, DEPTHS[-1])) as vlm:

        def work(question: Question) -> Result:
            return question.ask.put(vlm, question.picture)

        outcomes = list(each_in_order(questions, work))
    return [_drawn(outcome, out / name) for outcome, name in zip(outcomes, _file_names(questions), strict=True)]


def _drawn(outcome: Outcome[Question], file: Path) -> Answered:
    if outcome.result is None:
        return Answered(outcome, None)
    image = load_picture(outcome.of.picture, ImageLimits())
    return Answered(outcome, draw_answer(outcome.of.ask, outcome.result, image, file))


def _file_names(questions: Sequence[Question]) -> list[str]:
    """picture-skill.png, numbered from the second question of a kind on."""
    seen: Counter[str] = Counter()
    names = []
    for question in questions:
        stem = f"{question.picture.stem}-{question.ask.skill}"
        seen[stem] += 1
        names.append(f"{stem}-{seen[stem]}.png" if seen[stem] > 1 else f"{stem}.png")
    return names


def _show(answers: Sequence[Answered], out: Path) -> None:
    rows = []
    for answer in answers:
        question, result, error = answer.outcome.of, answer.outcome.result, answer.outcome.error
        said = one_line(error) if result is None else _spelled(found_in(question.ask, result))
        asked = f"{question.ask.skill}: {question.ask.text}"
        rows.append((question.picture.name, asked, said, _spelled(question.truth), "yes" if answer.right else "no"))
    table(("picture", "asked", "answer", "truth", "right"), rows)
    right = sum(answer.right for answer in answers)
    print(f"{right} of {len(answers)} answers are right; drawn pictures are in {out}/\n")


def _spelled(truth: Truth) -> str:
    """Texts as they are, points as (x, y), boxes as (x_min, y_min, x_max, y_max)."""
    if isinstance(truth, str):
        return truth
    return " ".join(f"({', '.join(f'{n:.2f}' for n in place)})" for place in truth) or "nothing"
