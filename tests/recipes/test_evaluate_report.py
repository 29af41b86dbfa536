"""Sums over marks made by hand: shares, intervals, floors, confusions, groups, weak categories."""

from __future__ import annotations

import json

import pytest
from recipes.glint import report
from recipes.glint.exam import Answer, Question
from recipes.glint.marking import mark


def made(skill, want, got, *, kind="", groups=None, number=0, **flags):
    return mark(number, Question(skill, kind or skill, "it", want, **flags), got, groups or {})


def queries(rights: int, wrongs: int, **options):
    return [made("query", Answer("red"), Answer("red"), **options)] * rights + [
        made("query", Answer("red"), Answer("blue"), **options)
    ] * wrongs


def test_wilson_interval_against_known_values():
    assert report.wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert report.wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert report.wilson(0, 0) == (0.0, 1.0)


def test_headline_of_mixed_marks():
    one, other = (0.1, 0.1, 0.3, 0.3), (0.5, 0.5, 0.9, 0.7)
    marks = [
        *queries(2, 1),
        made("query", Answer("red"), Answer("red"), refs=((0.5, 0.5),)),
        made("query", Answer("2", points=((0.2, 0.2),)), Answer("2"), reasoning=True),
        made("point", Answer(points=((0.2, 0.2), (0.6, 0.6))), Answer(points=((0.2, 0.2), (0.9, 0.1), (0.1, 0.9)))),
        made("point", Answer(), Answer(points=((0.2, 0.2),))),
        made("detect", Answer(boxes=(one, other)), Answer(boxes=(one,))),
        made("detect", Answer(), Answer()),
        made("caption", Answer("A large red circle and a small blue star."), Answer("A large red circle.")),
    ]
    scores = report.headline(marks)
    values = {name: score["value"] for name, score in scores.items()}
    assert values["query_exact"] == 0.75 and scores["query_exact"]["n"] == 4
    assert scores["spatial_refs_exact"]["n"] == 1
    assert values["reasoning_exact"] == 1 and values["reasoning_points_f1"] == 0
    assert values["point_precision"] == 0.25 and values["point_recall"] == 0.5
    assert values["detect_f1"] == pytest.approx(2 / 3, abs=1e-4)
    assert values["detect_mean_iou"] == 1 and values["detect_mean_iou_misses_0"] == 0.5
    assert values["caption_object_f1"] == pytest.approx(2 / 3, abs=1e-4)
    assert values["absent_found"] == 0.5 and scores["absent_found"]["n"] == 2
    assert values["segment_mean_iou"] is None


def test_floors_are_met_and_missed():
    perfect = {name: {"value": 1.0, "n": 9} for name in report.FLOORS}
    perfect |= {"absent_found": {"value": 0.0, "n": 9}, "caption_seconds": {"value": 0.4, "n": 5}}
    assert all(t["met"] and t["aim_met"] for t in report.targets(perfect))
    for name, (floor, aim) in report.FLOORS.items():
        worse = floor + 0.001 if name in report.LESS_IS_BETTER else floor - 0.001
        missed = report.targets(perfect | {name: {"value": worse, "n": 9}})
        assert [t["name"] for t in missed if not t["met"]] == [name]
        between = next(t for t in report.targets(perfect | {name: {"value": floor, "n": 9}}) if t["name"] == name)
        assert between["met"] and between["aim_met"] is (floor == aim)
    assert not any(t["met"] for t in report.targets({}))


def test_a_small_sample_misses_a_floor_only_beyond_its_interval():
    def met(score, name="query_exact"):
        return next(t["met"] for t in report.targets({name: score}, small=True) if t["name"] == name)

    assert met(report.share(17, 20)) and not met(report.share(10, 20)) and not met(report.share(0, 20))
    assert met(report.share(2, 20), "absent_found") and not met(report.share(10, 20), "absent_found")
    assert met({"value": 0.7, "n": 9}, "detect_mean_iou") and not met({"value": 0.6, "n": 9}, "detect_mean_iou")
    assert not met({"value": 2.1, "n": 5}, "caption_seconds")


def test_confusion_counts_what_was_answered_instead():
    marks = [
        *queries(3, 2),
        made("query", Answer("red"), Answer("There is no star.")),
        made("query", Answer("a large red circle"), Answer("a small red star")),
        made("query", Answer("navy"), Answer("black")),
        made("query", Answer("3"), Answer("2")),
        made("query", Answer("black"), Answer("white"), kind="ink"),
        made("query", Answer("a large red circle and a small blue star"), Answer("nothing")),
    ]
    assert report.confusion(marks) == {
        "colour": {"red": {"red": 4, "blue": 2, "other": 1}},
        "shape": {"circle": {"star": 1}},
        "size": {"large": {"small": 1}},
        "ground": {"navy": {"black": 1}},
    }


def test_unseen_wordings_groups_and_kinds_are_counted_apart():
    marks = [
        *queries(3, 0, kind="count", unseen=True),
        *queries(0, 1, kind="colour", unseen=True),
        *queries(1, 0, kind="colour", groups={"pattern": "plain"}),
        *queries(0, 1, kind="colour", groups={"pattern": "noisy"}),
    ]
    assert {kind: (s["value"], s["n"]) for kind, s in report.unseen(marks).items()} == {
        "all": (0.75, 4), "colour": (0, 1), "count": (1, 3),
    }  # fmt: skip
    assert report.unseen(marks[4:]) == {}
    assert report.kinds(marks[4:])["colour"]["right"]["value"] == 0.5
    groups = report.by_group(marks[4:])["pattern"]
    assert groups["plain"]["query_exact"]["value"] == 1 and groups["noisy"]["query_exact"]["value"] == 0


def test_reading_is_scored_by_what_is_printed():
    marks = [
        made("query", Answer("STOP"), Answer("STOP"), kind="read", groups={"printed": "word"}),
        made("query", Answer("STAR"), Answer("STOP"), kind="read", groups={"printed": "word"}),
        made("query", Answer("There is no number."), Answer("7"), kind="read", groups={"printed": "word"}),
        made("query", Answer("42"), Answer("42"), kind="read", groups={"printed": "number"}),
        made("query", Answer("XQW"), Answer("xqw"), kind="read", groups={"printed": "letters"}),
    ]
    values = {name: (score["value"], score["n"]) for name, score in report.reading(marks).items()}
    assert values == {
        "reading_word_exact": (0.5, 2), "reading_number_exact": (1, 1), "reading_letters_exact": (0, 1),
    }  # fmt: skip


def test_worst_categories_come_first_with_wrong_examples_only():
    marks = [*queries(30, 0, kind="good"), *queries(15, 15, kind="bad", number=7), *queries(0, 5, kind="rare")]
    found = report.worst(marks)
    assert found[0]["category"] == "kind bad" and found[0]["right"]["value"] == 0.5
    assert {e["scene"] for e in found[0]["examples"]} == {7} and len(found[0]["examples"]) == report.EXAMPLES
    assert found[0]["examples"][0]["want"] == {"text": "red"} and found[0]["examples"][0]["got"] == {"text": "blue"}
    assert "kind good" not in [e["category"] for e in found] and "kind rare" not in [e["category"] for e in found]
    json.dumps(found)


def test_examples_come_from_as_many_scenes_as_there_are():
    marks = [m for number in (3, 5, 9) for m in queries(1, 4, number=number)]
    assert [e["scene"] for e in report.examples(marks)] == [3, 5, 9, 3, 5, 9]
    assert report.examples(queries(4, 0)) == []
