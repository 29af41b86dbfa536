"""SVG paths as polygons and masks, against shapes whose area is known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.images.path import commands, polygons, rasterise

WHOLE = {"x_min": 0.0, "y_min": 0.0, "x_max": 1.0, "y_max": 1.0}


def area(path, bbox=WHOLE, side=400):
    return rasterise(path, bbox, side, side).mean()


def test_commands_spell_repetitions_out():
    assert list(commands("M0 0 1,1-2 3l.5.5 1e-1 2z")) == [
        ("M", (0, 0)), ("L", (1, 1)), ("L", (-2, 3)), ("l", (0.5, 0.5)), ("l", (0.1, 2)), ("z", ()),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "count"),
    [("", 0), ("hello", 0), ("1 2 3", 0), ("L 1 1", 0), ("Z", 0), ("M 1", 0), ("M 0 0 L 1 1 L 2", 2),
     ("M 0 0 L x 1", 1), ("M 0 0 L 1 L 2 2", 1), ("M 0 0 Z 5 5", 2), ("M 0 0 L 1e99 0", 1), ("M 0 0 L nan 0 Z", 1)],
)  # fmt: skip
def test_what_follows_a_malformed_place_is_left_out(path, count):
    assert len(list(commands(path))) == count


def test_lines_relative_and_absolute_draw_the_same():
    square = "M 0.25 0.25 L 0.75 0.25 L 0.75 0.75 L 0.25 0.75 Z"
    for same in ("M .25 .25 H .75 V .75 H .25 Z", "m .25 .25 h .5 v .5 h -.5 z", "M.25.25.75.25.75.75.25.75",
                 "m.25.25l.5 0 0 .5-.5 0z"):  # fmt: skip
        assert np.array_equal(rasterise(same, WHOLE, 64, 64), rasterise(square, WHOLE, 64, 64))
    mask = rasterise(square, WHOLE, 64, 64)
    expected = np.zeros((64, 64), dtype=bool)
    expected[16:48, 16:48] = True
    assert np.array_equal(mask, expected)


def test_a_mask_covers_exactly_the_pixels_whose_centre_is_inside():
    mask = rasterise("M 0 0 H 1 V 1 H 0 Z", {"x_min": 0.26, "y_min": 0.5, "x_max": 0.74, "y_max": 0.9}, 10, 5)
    expected = np.zeros((5, 10), dtype=bool)
    expected[2:4, 3:7] = True  # centres 0.35..0.65 across and 0.5, 0.7 down; 0.9 is the open edge
    assert np.array_equal(mask, expected)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("M 0.1 0.5 A 0.4 0.4 0 0 1 0.9 0.5 A 0.4 0.4 0 0 1 0.1 0.5 Z", math.pi * 0.16),
        ("M 0.1 0.5 a 0.4 0.2 0 1 0 0.8 0 a 0.4 0.2 0 1 0 -0.8 0 z", math.pi * 0.08),
        ("M 0.1 0.5 A 0.01 0.01 0 0 1 0.9 0.5 Z", math.pi * 0.08),  # radii too small grow to reach the end
        ("M 0.5 0.1 A 0.2 0.4 90 0 1 0.5 0.5 Z", None),
        ("M 0 0 A 0 1 0 0 1 1 0 L 1 1 Z", 0.5),  # a radius of zero is a line
        ("M 0 1 Q 0.5 0 1 1 Z", 1 / 3),
        ("M 0 1 C 0 0 1 0 1 1 Z", 0.6),
        ("M 0 0.5 Q 0.25 0 0.5 0.5 T 1 0.5 Z", 1 / 6),
        ("M 0 0.5 C 0 0 0.5 0 0.5 0.5 S 1 1 1 0.5 Z", 0.3),
        ("M 0 0.5 C 0 0 .5 0 .5 .5 s .5 .5 .5 0 Z", 0.3),
    ],
)  # fmt: skip
def test_areas_of_curves(path, expected):
    found = area(path)
    if expected is None:
        assert 0 < found < 0.2
    else:
        assert found == pytest.approx(expected, abs=0.004)


def test_winding_holes_and_overlaps():
    outer, inner, reverse = "M0 0H1V1H0Z", "M.25.25H.75V.75H.25Z", "M.25.25V.75H.75V.25Z"
    assert area(outer + inner) == 1.0
    assert area(outer + reverse) == pytest.approx(0.75, abs=0.01)
    assert area("M0 0H.6V1H0ZM.4 0H1V1H.4Z") == 1.0


def test_after_closing_the_next_relative_move_starts_at_the_subpath_begin():
    found = polygons("M .2 .2 h .1 v .1 z l .3 0 0 .3 z")
    assert found[1][:2].tolist() == [[0.2, 0.2], [0.5, 0.2]]


def test_parts_outside_the_picture_are_cut_off():
    mask = rasterise("M -3 -3 H 9 V 9 H -3 Z", {"x_min": 0.5, "y_min": 0.5, "x_max": 0.6, "y_max": 0.6}, 7, 5)
    expected = np.zeros((5, 7), dtype=bool)
    expected[1:, 1:] = True  # from 0.2 on, over the right and lower edge
    assert np.array_equal(mask, expected)
    assert rasterise("M 2 2 H 3 V 3 Z", WHOLE, 7, 5).sum() == 0


def test_no_box_and_no_path_are_empty_masks():
    for mask in (rasterise("M0 0H1V1Z", None, 6, 4), rasterise("", WHOLE, 6, 4)):
        assert mask.shape == (4, 6)
        assert mask.dtype == np.bool_
        assert not mask.any()


@pytest.mark.parametrize(
    "arc", ["A1 1 0 0 0 1e-200 0", "A1e-200 1 0 0 0 1 1", "A1e-160 1e-160 0 0 1 1 1", "A0 0 0 0 1 1 1"]
)
def test_arcs_that_are_too_thin_to_be_measured_are_lines(arc):
    (drawn,) = polygons(f"M0 0{arc}")
    assert len(drawn) == 2 and drawn[-1].tolist() == [float(number) for number in arc.split()[-2:]]


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.text(alphabet="MmLlHhVvCcSsQqTtAaZz0123456789.-+e, x", max_size=60), st.floats(0, 1), st.floats(0, 1))
def test_any_text_gives_a_mask(path, x, y):
    box = {"x_min": min(x, y), "y_min": 0.0, "x_max": max(x, y), "y_max": y}
    mask = rasterise(path, box, 9, 7)
    assert mask.shape == (7, 9)
    assert mask.dtype == np.bool_
