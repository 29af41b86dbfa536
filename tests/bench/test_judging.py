"""Whether an answer is right: the judge of the demo."""

from __future__ import annotations

from typing import Any

import pytest
from PIL import Image

from gapless.bench.asks import Ask
from gapless.bench.samples import agrees, read_samples


def boxes(*corners: tuple[float, float, float, float]) -> dict[str, Any]:
    names = ("x_min", "y_min", "x_max", "y_max")
    return {"objects": [dict(zip(names, box, strict=True)) for box in corners]}


def points(*places: tuple[float, float]) -> dict[str, Any]:
    return {"points": [{"x": x, "y": y} for x, y in places]}


@pytest.mark.parametrize(
    ("said", "truth", "right"),
    [("3", "3", True), (" Red.", "red", True), ("4", "3", False), ("a red star", "a star, red", False)],
)
def test_texts(said: str, truth: str, right: bool) -> None:
    assert agrees(Ask("query", "?"), {"answer": said}, truth) is right
    assert agrees(Ask("caption", "short"), {"caption": said}, truth) is right


@pytest.mark.parametrize(
    ("found", "truth", "right"),
    [
        ([(0.5, 0.5), (0.1, 0.1)], [[0.12, 0.1], [0.5, 0.47]], True),
        ([(0.5, 0.5)], [[0.56, 0.5]], False),
        ([(0.5, 0.5)], [[0.5, 0.5], [0.5, 0.5]], False),
        ([(0.5, 0.5), (0.51, 0.5)], [[0.5, 0.5]], False),
        ([], [], True),
    ],
)
def test_points(found: list[tuple[float, float]], truth: list[list[float]], right: bool) -> None:
    assert agrees(Ask("point", "star"), points(*found), truth) is right


@pytest.mark.parametrize(
    ("found", "truth", "right"),
    [
        ([(0.0, 0.0, 0.5, 0.5)], [[0.0, 0.0, 0.5, 0.4]], True),
        ([(0.0, 0.0, 0.5, 0.5)], [[0.25, 0.25, 0.75, 0.75]], False),
        ([(0.0, 0.0, 0.5, 0.5)], [[0.6, 0.6, 0.9, 0.9]], False),
        ([(0.0, 0.0, 0.5, 0.5)], [], False),
    ],
)
def test_boxes(found: list[tuple[float, float, float, float]], truth: list[list[float]], right: bool) -> None:
    result = boxes(*found)
    assert agrees(Ask("detect", "star"), result, truth) is right
    if truth:
        assert agrees(Ask("segment", "star"), {"path": "M 0 0 Z", "bbox": result["objects"][0]}, truth) is right


def test_an_outline_may_be_of_any_object_it_can_mean() -> None:
    result = {"path": "M 0 0 Z", "bbox": boxes((0.5, 0.5, 0.9, 0.9))["objects"][0]}
    assert agrees(Ask("segment", "star"), result, [[0.0, 0.0, 0.3, 0.3], [0.5, 0.5, 0.9, 0.8]])
    assert not agrees(Ask("segment", "star"), result, [])


def test_an_outline_that_was_not_found() -> None:
    nothing = {"path": "", "bbox": None}
    assert agrees(Ask("segment", "star"), nothing, [])
    assert not agrees(Ask("segment", "star"), nothing, [[0.0, 0.0, 1.0, 1.0]])


def test_the_bundled_pictures_are_three_with_questions_of_all_skills() -> None:
    questions = read_samples()
    pictures = {question.picture for question in questions}
    assert len(pictures) == 3 and all(min(Image.open(picture).size) >= 300 for picture in pictures)
    for picture in pictures:
        skills = [question.ask.skill for question in questions if question.picture == picture]
        assert set(skills) == {"query", "caption", "point", "detect", "segment"}
    assert any(question.truth == [] for question in questions)
