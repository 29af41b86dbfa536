"""gaze: prompts of both generations, what is checked, where it is asked from, and how hits become one answer."""

from dataclasses import replace
from random import Random

import pytest
from tests.skills.skill_contexts import config_of

from gapless.constrain.table import Walker, build_table
from gapless.errors import InvalidRequest, UnsupportedSkill
from gapless.models.moondream.templates import Templates
from gapless.records import Flags, Token, ValueHead
from gapless.skills.gaze import EYES, gathered, gaze, looks, without_outliers

FACE = {"x_min": 0.25, "y_min": 0.125, "x_max": 0.5, "y_max": 0.375}
CAREFUL = {"prioritize_accuracy": True}


def found(*points):
    return [{"gaze": None if p is None else {"x": p[0], "y": p[1]}} for p in points]


def test_moondream_2_has_words_around_two_coordinates(md2, picture):
    ask = gaze(md2, picture, (0.25, 0.5))
    before, after = md2.tokenizer.encode("\n\nPoint:"), md2.tokenizer.encode(" gaze\n\n")
    assert ask.prompt.ids == (*before, 5, 5, *after)
    assert ask.prompt.values == ((),) * len(before) + ((0.25,), (0.5,)) + ((),) * len(after)
    assert ask.prompt.picture is picture
    assert (ask.program, ask.sampling.max_tokens, ask.sampling.max_objects) == ("point", 2, 1)
    assert ask.sampling.temperature == 0.0


def test_moondream_3_points_at_gaze_with_the_eye_as_a_reference(md3, picture):
    ask = gaze(md3, picture, (0.25, 0.5), force=True)
    point = md3.templates.point
    assert ask.prompt.ids == (*point.prefix, 5, 5, *md3.tokenizer.encode(" gaze"), *point.suffix)
    assert ask.prompt.values[len(point.prefix) :][:3] == ((0.25,), (0.5,), ())
    assert (ask.program, ask.adapter) == ("forced-point", None)
    assert gaze(md3, picture, (0.25, 0.5), settings={"adapter": "moon"}).adapter == "moon"


def test_what_cannot_be_asked(md2, picture):
    with pytest.raises(InvalidRequest, match="needs a picture"):
        gaze(md2, None, (0.5, 0.5))
    with pytest.raises(UnsupportedSkill, match="gaze"):
        gaze(replace(md2, templates=replace(md2.templates, point=None)), picture, (0.5, 0.5))
    with pytest.raises(InvalidRequest, match="uses no adapter"):
        gaze(md2, picture, (0.5, 0.5), settings={"adapter": "moon"})
    with pytest.raises(InvalidRequest, match="stop"):
        gaze(md2, picture, (0.5, 0.5), settings={"stop": "x"})


@pytest.mark.parametrize("eye", [None, "ab", [0.5], [0.5, 0.5, 0.5], [1.5, 0], [-0.1, 0], [True, 0], ["0", 0],
                                 [float("nan"), 0.5], [10**400, 0.5], 3, {"x": 1, "y": 0}])  # fmt: skip
def test_eyes_that_are_none(eye):
    with pytest.raises(InvalidRequest) as raised:
        looks(eye, None, None, None)
    assert raised.value.param == "eye"


@pytest.mark.parametrize("face", [None, [0, 0, 1, 1], {}, FACE | {"x_max": 0.1}, FACE | {"y_min": 0.5},
                                  FACE | {"x_max": 1.01}, FACE | {"x_min": "a"}, FACE | {"y_max": None}])  # fmt: skip
def test_faces_that_are_none(face):
    with pytest.raises(InvalidRequest) as raised:
        looks([0.5, 0.5], face, CAREFUL, None)
    assert raised.value.param == "face"


@pytest.mark.parametrize("switches", [[], "force_detect", {"flip_enc_img": 1}, {"force_detect": 1}, {3: True}])
def test_switches_that_are_none(switches):
    with pytest.raises(InvalidRequest) as raised:
        looks([0.5, 0.5], FACE, switches, None)
    assert raised.value.param == "unstable_settings"


def test_an_eye_is_asked_about_once_a_face_twenty_times():
    one = looks((0, 1), None, {"force_detect": True}, None)
    assert (one.eyes, one.mirrored, one.force) == (((0.0, 1.0),), (), True)
    many = looks(None, FACE, CAREFUL, {"seed": 7})
    draw = Random(7)
    places = [(draw.uniform(0.25, 0.5), draw.uniform(0.125, 0.375)) for _ in range(20)]
    assert many.eyes == tuple(places[:10])
    assert many.mirrored == tuple((1 - x, y) for x, y in places[10:])
    assert not many.force
    assert looks(None, FACE, CAREFUL, None) != looks(None, FACE, CAREFUL, None)
    assert looks(None, FACE, CAREFUL, {"seed": 7}) == many


def test_outliers_by_hand():
    """On a line at 0, 1, 3, 6, 16: nearest others are 1, 1, 2, 3, 10 away, which are averaged with the own nought. The
    median of 0.5, 0.5, 1, 1.5, 5 is 1, so what is over 2 goes."""
    line = [(float(x), 0.0) for x in (0, 1, 3, 6, 16)]
    assert without_outliers(line) == line[:4]
    assert without_outliers(line[::-1]) == line[3::-1]
    assert without_outliers([(0.0, 0.0), (3.0, 4.0)]) == [(0.0, 0.0), (3.0, 4.0)]
    assert without_outliers([(0.5, 0.5)]) == [(0.5, 0.5)]
    assert without_outliers([]) == []
    same = [(0.5, 0.5)] * 3
    assert without_outliers([*same, (0.6, 0.5)]) == same  # a median of nought keeps what coincides
    edge = [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (4.0, 0.0)]  # 0.5, 0.5, 0.5, and 1.0: twice the median is not over it
    assert without_outliers(edge) == edge


def test_hits_become_their_mean_with_the_mirrored_ones_turned_back():
    """Five at (0.25, 0.5) and, mirrored, five at 1 - 0.25: ten that coincide; one hit far off is left out."""
    straight = [(0.25, 0.5)] * 5 + [None] * 5
    other = [(0.75, 0.5)] * 5 + [(0.0, 1.0)] + [None] * 4
    assert gathered(found(*straight, *other)) == {"gaze": {"x": 0.25, "y": 0.5}}
    spread = [(0.25, 0.5), (0.5, 0.5)] * 5
    assert gathered(found(*spread, *[None] * 10)) == {"gaze": {"x": 0.375, "y": 0.5}}


def test_fewer_than_ten_hits_are_no_answer():
    assert gathered(found(*[(0.5, 0.5)] * 9, *[None] * 11)) == {"gaze": None}
    assert gathered(found(*[None] * 20)) == {"gaze": None}
    assert gathered(found(*[None] * 10, *[(0.5, 0.5)] * EYES)) == {"gaze": {"x": 0.5, "y": 0.5}}


def test_the_reader_gives_the_first_point_or_none(md2, picture):
    def read(*tokens):
        reader = gaze(md2, picture, (0.5, 0.5)).reader
        pieces = reader.feed(tokens) + reader.finish()
        return pieces, reader.result()

    point = {"x": 0.25, "y": 0.75}
    assert read(Token(5, (0.25,)), Token(5, (0.75,))) == ((point,), {"gaze": point})
    assert read(Token(0)) == ((), {"gaze": None})
    assert read(Token(5, (0.25,))) == ((), {"gaze": None})
    assert read(Token(5, (float("nan"),)), Token(5, (0.75,))) == ((), {"gaze": None})


@pytest.mark.parametrize("any_opens", [False, True])
def test_a_forced_point_has_no_way_out_before_it(any_opens):
    rules = replace(Templates.of(config_of("moondream2-2025-06-21-a")).rules(), any_opens=any_opens)
    table = build_table(rules)
    free, forced = (Walker.start(table, program, 2, 1) for program in ("point", "forced-point"))
    assert free.mask()[rules.end] and not forced.mask()[rules.end]
    assert forced.mask().sum() == (rules.vocab - 2 if any_opens else 1) and not forced.mask()[rules.size]
    assert forced.remaining() == 2
    assert forced.advance(rules.coord) == (ValueHead.COORD, Flags.NONE)
    assert forced.advance(rules.coord) == (ValueHead.COORD, Flags.LENGTH)
