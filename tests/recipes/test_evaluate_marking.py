"""Marks of answers made by hand, whose scores are known."""

from __future__ import annotations

import pytest
from recipes.glint.exam import Answer, Question, fine_path
from recipes.glint.marking import mark, mask_overlap, overlap, things_named

BOXES = ((0.1, 0.1, 0.3, 0.3), (0.5, 0.5, 0.9, 0.7))
POINTS = ((0.2, 0.2), (0.7, 0.6))


def marked(skill, want, got, kind=""):
    return mark(0, Question(skill, kind or skill, "it", want), got, {})


@pytest.mark.parametrize(
    ("skill", "want"),
    [
        ("query", Answer("red")),
        ("caption", Answer("A large red circle and a small blue star.")),
        ("point", Answer(points=POINTS)),
        ("point", Answer()),
        ("detect", Answer(boxes=BOXES)),
        ("segment", Answer(boxes=BOXES[:1], path=fine_path(3))),
        ("segment", Answer()),
    ],
)
def test_the_answer_that_is_wanted_is_right_and_complete(skill, want):
    m = marked(skill, want, want)
    assert m.right and m.matched == m.found == m.wanted and not m.alarm
    assert all(x == pytest.approx(1) for x in m.overlaps) and m.mask in (None, 1.0)


def test_overlap_of_boxes():
    assert overlap((0, 0, 0.2, 0.2), (0.1, 0, 0.3, 0.2)) == pytest.approx(1 / 3)
    assert overlap((0, 0, 0.2, 0.2), (0.2, 0, 0.4, 0.2)) == 0
    assert overlap((0, 0, 1, 1), (0, 0, 0.5, 0.5)) == pytest.approx(0.25)
    assert overlap((0.5, 0.5, 0.5, 0.5), (0.5, 0.5, 0.5, 0.5)) == 0


@pytest.mark.parametrize(("shift", "like"), [(0.02, 0.18 / 0.22), (0.06, 0.14 / 0.26), (0.1, None)])
def test_a_shifted_box_counts_from_half(shift, like):
    a = (0.1, 0.1, 0.3, 0.3)
    m = marked("detect", Answer(boxes=(a,)), Answer(boxes=((a[0] + shift, a[1], a[2] + shift, a[3]),)))
    assert m.right is (like is not None) and m.matched == len(m.overlaps) == int(like is not None)
    assert like is None or m.overlaps[0] == pytest.approx(like)


def test_boxes_in_another_order_are_right_and_each_is_used_once():
    assert marked("detect", Answer(boxes=BOXES), Answer(boxes=BOXES[::-1])).right
    twice = marked("detect", Answer(boxes=BOXES), Answer(boxes=(BOXES[0], BOXES[0])))
    assert (twice.matched, twice.found, twice.wanted, twice.right) == (1, 2, 2, False)


def test_the_better_box_is_matched_first():
    near, exact = (0.12, 0.1, 0.32, 0.3), BOXES[0]
    m = marked("detect", Answer(boxes=(exact,)), Answer(boxes=(near, exact)))
    assert m.overlaps == (pytest.approx(1),) and (m.matched, m.found) == (1, 2)


@pytest.mark.parametrize(("x", "y", "near"), [(0.229, 0.171, True), (0.231, 0.2, False), (0.2, 0.169, False)])
def test_a_point_counts_within_three_hundredths_of_either_side(x, y, near):
    m = marked("point", Answer(points=((0.2, 0.2),)), Answer(points=((x, y),)))
    assert m.right is near and m.matched == int(near)


def test_places_too_many_and_too_few():
    many = marked("point", Answer(points=POINTS[:1]), Answer(points=POINTS))
    few = marked("point", Answer(points=POINTS), Answer(points=POINTS[:1]))
    assert (many.matched, many.found, many.wanted, many.right) == (1, 2, 1, False)
    assert (few.matched, few.found, few.wanted, few.right) == (1, 1, 2, False)


@pytest.mark.parametrize(
    ("skill", "got"),
    [
        ("point", Answer(points=POINTS[:1])),
        ("detect", Answer(boxes=BOXES[:1])),
        ("segment", Answer(boxes=BOXES[:1], path=fine_path(0))),
    ],
)
def test_anything_found_where_nothing_is_is_an_alarm(skill, got):
    m = marked(skill, Answer(), got)
    assert m.absent and m.alarm and not m.right and m.wanted == 0 and m.found == 1
    assert not marked(skill, Answer(), Answer()).alarm and not marked(skill, got, got).absent


def test_masks_of_known_overlap():
    whole, half = "M 0 0 L 1 0 L 1 1 L 0 1 Z", "M 0 0 L 0.5 0 L 0.5 1 L 0 1 Z"
    a = Answer(boxes=BOXES[:1], path=whole)
    assert mask_overlap(a, Answer(boxes=BOXES[:1], path=half)) == pytest.approx(0.5)
    shifted = Answer(boxes=((0.2, 0.1, 0.4, 0.3),), path=whole)
    assert mask_overlap(a, shifted) == pytest.approx(1 / 3, abs=0.01)
    assert mask_overlap(a, Answer(boxes=(BOXES[1],), path=whole)) == 0
    assert mask_overlap(a, Answer()) == mask_overlap(a, Answer(boxes=BOXES[:1])) == 0
    circle = Answer(boxes=BOXES[:1], path=fine_path(0))
    assert mask_overlap(a, circle) == pytest.approx(0.785, abs=0.01)


def test_an_outline_that_is_missing_counts_nothing():
    m = marked("segment", Answer(boxes=BOXES[:1], path=fine_path(0)), Answer())
    assert m.mask == 0 and not m.right and (m.matched, m.found, m.wanted) == (0, 0, 1) and not m.absent


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("A large red circle, a small blue star and a large red circle.",
         ["1 large red circle", "1 small blue star", "1 large red circle"]),
        ("3 shapes on a navy background.", ["navy background", "3 shape"]),
        ("2 stars on a checkered white background.", ["white background", "2 star"]),
        ("A small pink ring, the word STAR and a red star.", ['"STAR"', "1 small pink ring", "1 red star"]),
        ("A word and the number 42.", ['"42"']),
        ("yes", []),
    ],
)  # fmt: skip
def test_what_a_caption_names(text, names):
    assert things_named(text) == names


def test_a_caption_that_names_one_of_two_things_wrongly():
    want = Answer("A large red circle and a small blue star.")
    m = marked("caption", want, Answer("A large red circle and a small blue ring."))
    assert (m.matched, m.found, m.wanted, m.right) == (1, 2, 2, False)
    swapped = marked("caption", want, Answer("A large blue circle and a small red star."))
    assert swapped.matched == 0


def test_reasoning_is_right_by_its_answer_and_its_points_count_apart():
    want = Answer("2", points=POINTS)
    m = marked("query", want, Answer("2", points=POINTS[:1]))
    assert m.right and (m.matched, m.found, m.wanted) == (1, 1, 2)
    assert not marked("query", want, Answer("3", points=POINTS)).right
