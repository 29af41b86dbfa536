"""Held-out papers: they depend on the seed alone, their pictures are real files, their truths those of the scene."""

from __future__ import annotations

import dataclasses
import io
import random

import pytest
from PIL import Image
from recipes.glint import contact, exam, report
from recipes.glint.exam import Answer, Question
from recipes.glint.marking import mark, mask_overlap
from recipes.glint.prompts import segment
from recipes.glint.scenes import Printed, make_scene
from recipes.glint.streams import COORD, SIZE, Vocabulary


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary()


@pytest.fixture(scope="module")
def papers(vocabulary) -> list[exam.Paper]:
    return [exam.set_paper(5, number, vocabulary) for number in range(12)]


def test_a_paper_depends_on_its_seed_and_number_alone(papers, vocabulary):
    assert exam.set_paper(5, 3, vocabulary) == papers[3]
    assert exam.set_paper(6, 3, vocabulary).scene != papers[3].scene


def test_pictures_are_files_of_the_size_that_is_said(papers):
    for paper in papers:
        with Image.open(io.BytesIO(paper.file)) as image:
            assert image.size == (paper.width, paper.height)
            assert image.format == paper.groups["file"].upper()
    assert {paper.groups["file"] for paper in papers} == {"png", "jpeg"}


def test_sizes_spread_over_what_is_promised():
    sizes = [exam.picture_size(random.Random(i)) for i in range(2000)]
    assert all(96 <= side <= 1280 for size in sizes for side in size)
    aspects, areas = [w / h for w, h in sizes], [w * h for w, h in sizes]
    assert 0.32 < min(aspects) < 0.4 and 2.5 < max(aspects) < 3.1
    assert min(areas) < 1.3 * 96**2 and 700_000 < max(areas) < 1280 * 722


def test_every_kind_of_question_is_asked(vocabulary):
    asked = {maker for number in range(len(exam.OTHERS)) for maker in exam.makers_of(number)}
    assert asked == set(exam.prompts.SKILLS)


def test_the_asked_text_is_what_the_prompt_says(papers, vocabulary):
    for q in (q for paper in papers for q in paper.questions):
        assert q.text and not set(vocabulary.encode(q.text)) & set(range(21))
        assert q.skill != "caption" or q.text in ("short", "normal", "long")
        assert q.reasoning is q.kind.startswith("reason")
        assert bool(q.refs) is q.kind.startswith("here")
        assert all(0 <= v <= 1 for ref in q.refs for v in ref)


def test_an_encoded_question_is_the_prompt_again(vocabulary):
    for seed in range(40):
        rng = random.Random(seed)
        ask = exam.Ask(make_scene(rng), rng, vocabulary)
        for maker in exam.CORE + exam.OTHERS:
            s = maker(ask)
            if s is None or s.skill.startswith("caption"):
                continue
            q = exam.question_of(s, ask.scene, vocabulary)
            text = " " + q.text if q.skill in ("point", "detect") else q.text
            body = [i for i in s.ids[: s.prompt_length] if i not in (COORD, SIZE)]
            assert " ".join(map(str, vocabulary.encode(text))) in " ".join(map(str, body))


def test_one_question_a_scene_is_worded_as_training_never_does(papers):
    unseen = [q for paper in papers for q in paper.questions if q.unseen]
    assert all(sum(q.unseen for q in paper.questions) <= 1 for paper in papers)
    assert len(unseen) > len(papers) / 2 and {q.skill for q in unseen} == {"query"}


def test_a_printed_text_is_always_read(papers):
    for paper in papers:
        if paper.scene.printed:
            assert any(q.kind == "read" and not q.unseen for q in paper.questions)


def test_wanted_places_are_those_of_the_scene(papers):
    for paper in papers:
        found = [paper.scene.box(t) for t in paper.scene.things]
        found += [box for box in [paper.scene.text_box()] if box]
        centres, boxes = [box[:2] for box in found], [exam.edges(*box) for box in found]
        for q in paper.questions:
            for point in q.want.points:
                assert any(point == pytest.approx(c, abs=1e-6) for c in centres)
            for box in q.want.boxes:
                assert any(box == pytest.approx(b, abs=1e-6) for b in boxes)


def test_the_taught_outline_fits_the_true_one(vocabulary):
    found = 0
    for seed in range(60):
        rng = random.Random(seed)
        ask = exam.Ask(make_scene(rng), rng, vocabulary)
        s = segment(ask)
        q = exam.question_of(s, ask.scene, vocabulary)
        if q.want.boxes:
            s.aim = [-1] * len(s)
            taught = exam.question_of(s, ask.scene, vocabulary).want
            assert 0.93 < mask_overlap(taught, q.want) <= 1
            found += taught.path != q.want.path
    assert found


def test_overlapping_boxes_are_seen():
    scene = make_scene(random.Random(1), 1.0)
    one = scene.things[0]
    apart = dataclasses.replace(scene, things=(one,))
    assert not exam.boxes_overlap(apart)
    assert exam.boxes_overlap(dataclasses.replace(scene, things=(one, one)))


def test_what_is_printed_can_be_read(papers):
    printed = [paper for paper in papers if paper.scene.printed]
    assert printed and len(printed) < len(papers)
    assert all(paper.scene.letter_cell(paper.width, paper.height) >= exam.LEGIBLE for paper in printed)


@pytest.mark.parametrize(("text", "name"), [("STOP", "word"), ("407", "number"), ("QXJ", "letters")])
def test_what_is_printed_has_a_class(text, name):
    scene = make_scene(random.Random(1), 1.0)
    printed = Printed(text, 0.5, 0.5, 0.3, 0.1, (0.0, 0.0, 0.0))
    assert exam.groups_of(dataclasses.replace(scene, printed=printed), 300, 300)["printed"] == name
    assert exam.printed_class(dataclasses.replace(scene, printed=None)) == "nothing"


def test_sheets_show_every_wrong_example(papers, vocabulary, tmp_path):
    wrong = []
    for paper in papers:
        for q in paper.questions:
            boxes = ((0.2, 0.2, 0.6, 0.5),) if q.skill in ("detect", "segment") else ()
            got = Answer("wrong", boxes=boxes, path=exam.fine_path(1) if q.skill == "segment" else "")
            wrong.append(mark(paper.number, Question(q.skill, "all", q.text, q.want, refs=q.refs), got, {}))
    worst = report.worst(wrong)
    files = list(contact.write_sheets(worst[:1], 5, vocabulary, tmp_path))
    assert len(files) == 1
    with Image.open(files[0]) as image:
        assert image.size[0] == 3 * contact.TILE
        colours = {colour for _, colour in image.getcolors(2**24)}
    assert contact.WANT in colours and contact.GOT in colours
