"""A ninth shape plays the part of one of the eight: its pixels fill that one's box, its word takes that one's place."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from PIL import Image, ImageDraw
from recipes.glint import phrases, scenes
from recipes.glint.decode import Reply
from recipes.glint.lora_score import about, requests, right
from recipes.glint.new_word import PARTS, SHAPES, Cast, Exchanged, Stage
from recipes.glint.shapes import contour
from recipes.glint.streams import COORD, SIZE, Stream, Vocabulary


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage(SHAPES["moon"], Vocabulary())


def casts(stage: Stage, count: int) -> list[Cast]:
    return [stage.cast(random.Random(seed), 1.25, 1.0) for seed in range(count)]


def alone(kind: int) -> scenes.Scene:
    thing = scenes.Thing(kind, 0, 2, 0.45, 0.55, 0.12, (1.0, 0.0, 0.0))
    black = (0.0, 0.0, 0.0)
    return scenes.Scene(1.5, (thing,), 2, 0, black, black, 0.0, 0.1, 0.0)


@pytest.mark.parametrize("word", sorted(SHAPES))
def test_the_new_shape_fills_the_box_of_whom_it_stands_in_for(word):
    stage, width, height = Stage(SHAPES[word], Vocabulary()), 300, 200
    for kind in PARTS:
        scene = alone(kind)
        new = np.asarray(stage.picture(Cast(scene, kind), width, height))[..., 0] > 127
        rows, cols = np.nonzero(new)
        x, y, w, h = scene.box(scene.things[0])
        got = (cols.min(), rows.min(), cols.max() + 1, rows.max() + 1)
        want = ((x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height)
        assert np.abs(np.subtract(got, want)).max() <= 2
        old = scenes.draw(scene, width, height)[..., 0] > 127
        assert (new != old).sum() > 0.03 * old.sum()


@pytest.mark.parametrize("word", sorted(SHAPES))
def test_outlines_lie_on_the_edge_clockwise_from_the_top(word):
    shape = SHAPES[word]
    points = np.asarray(shape.outline)
    assert np.abs(shape.distance(np, points[:, 0], points[:, 1])).max() < 0.01
    assert points[0, 1] == points[:, 1].min() and np.ptp(points, axis=0).min() > 1.95
    following = np.roll(points, -1, 0)
    assert (points[:, 0] * following[:, 1] - points[:, 1] * following[:, 0]).sum() > 0
    pieces, vocabulary = shape.outline_text(), Vocabulary()
    assert pieces[0] == "M" and pieces[3] == "L" and pieces[-1] == "Z"
    assert all(len(vocabulary.encode(piece)) == 1 for piece in pieces)


@pytest.mark.parametrize("word", sorted(SHAPES))
def test_outlines_use_numbers_that_glint_has_learnt_and_still_fit(word):
    shape = SHAPES[word]
    known = {n for kind in range(8) for point in contour(kind) for n in point}
    numbers = [int(piece) for piece in shape.outline_text() if piece.isdigit()]
    assert set(numbers) <= known
    image = Image.new("1", (480, 480))
    ImageDraw.Draw(image).polygon([n / 2 for n in numbers], fill=1)
    grid = (np.arange(480) + 0.5) / 240 - 1
    drawn, true = np.asarray(image), shape.distance(np, grid[None, :], grid[:, None]) <= 0
    assert (drawn & true).sum() / (drawn | true).sum() > 0.9


def test_without_a_part_the_picture_is_the_scene(stage):
    scene = scenes.make_scene(random.Random(2), 1.5)
    absent = next(k for k in PARTS if all(t.kind != k for t in scene.things))
    for part in (-1, absent):
        assert np.array_equal(np.asarray(stage.picture(Cast(scene, part), 90, 60, 5)), scenes.draw(scene, 90, 60, 5))


def test_names_are_exchanged_both_ways_in_any_capitals():
    v = Vocabulary()
    words = Exchanged(v, ("heart", "hearts"), ("moon", "moons"))
    assert words.exchange("How many hearts and Moons?") == "How many moons and Hearts?"
    assert words.exchange("IS THERE A HEART ABOVE 12 moons") == "IS THERE A MOON ABOVE 12 hearts"
    assert words.encode("Each red heart") == v.encode("Each red moon")


def test_what_takes_part_has_an_article_and_is_never_printed():
    assert all(phrases.article(SHAPES[w].word) == "a " + w and phrases.KINDS[k][0] not in "aeiou"
               for w in SHAPES for k in PARTS)  # fmt: skip
    names = {*phrases.KINDS, *phrases.PLURALS, *SHAPES, *(s.plural for s in SHAPES.values())}
    assert not names & {text.lower() for text in phrases.WORDS}


def test_requests_are_about_the_new_shape_and_true(stage):
    text, counted = stage.vocabulary.tokenizer, 0
    for cast in casts(stage, 100):
        name, new = phrases.KINDS[cast.part], cast.new_things()
        streams = stage.streams(cast, random.Random(7), 300, 0.0)
        assert sum(len(s) for s in streams) <= 300
        for s in streams:
            question, answer = (text.decode(ids).lower() for ids in (s.ids[: s.prompt_length], s.answer_ids()))
            if s.skill.startswith(("caption", "overview", "here", "extreme", "at_place")):
                assert not re.search(rf"\b{name}s?\b", answer)
            if s.skill == "count" and re.search(r"(how many|count|count the) moons\b", question):
                counted += 1
                assert answer == str(len(new))
            if s.skill == "point" and re.fullmatch(r"point (the )?moons?\.?", question):
                counted += 1
                assert [s.coord[s.prompt_length + 2 * i] for i in range(len(new))] == pytest.approx(
                    [t.x for t in new], abs=1e-3
                )
    assert counted > 3


def test_segment_answers_have_the_new_outline(stage):
    outline = [i for piece in stage.shape.outline_text() for i in stage.vocabulary.encode(piece)]
    found = 0
    for cast in casts(stage, 60):
        for s in stage.streams(cast, random.Random(1), 383, 0.0):
            if s.skill != "segment" or SIZE not in s.answer_ids():
                continue
            chosen = next(i for i in s.aim if i >= 0)
            new = chosen < len(cast.scene.things) and cast.scene.things[chosen].kind == cast.part
            assert (s.answer_ids()[3:] == outline) == new
            assert s.target[s.prompt_length - 1 :] == [*s.answer_ids(), 0] and len(s.aim) == len(s.ids) == len(s.weight)
            found += new
    assert found > 5


class Shown:
    """A cast whose picture nobody needs."""

    image = None

    def __init__(self, cast: Cast) -> None:
        self.cast = cast


def test_only_requests_with_the_word_are_about_it(stage):
    asked = requests(stage, [Shown(c) for c in casts(stage, 6)], 0, 1)
    kept = about(stage, asked)
    texts = [stage.vocabulary.tokenizer.decode(s.ids).lower() for rows in kept.values() for _, s in rows]
    rest = [stage.vocabulary.tokenizer.decode(s.ids).lower() for rows in asked.values() for _, s in rows]
    assert len(texts) > 20 and all("moon" in text for text in texts)
    assert sum("moon" in text for text in rest) == len(texts)


def test_a_reply_is_right_as_a_whole():
    s = Stream("detect").feed([1]).point(0.5, 0.25).extent(0.2, 0.1).end()
    size = s.size[-1]
    assert right(Reply([COORD, COORD, SIZE], [0.51, 0.25], [size]), s)
    assert not right(Reply([COORD, COORD, SIZE], [0.54, 0.25], [size]), s)
    assert not right(Reply([COORD, COORD, SIZE], [0.5, 0.25], [(0.2, 0.3)]), s)
    assert not right(Reply([], [], []), s)
