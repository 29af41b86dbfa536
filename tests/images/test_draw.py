"""Drawings change the right pixels, only in a copy, and never fail on odd sizes or letters."""

import numpy as np
import pytest
from PIL import Image, ImageFont

from gapless.images.draw import COLOURS, draw_boxes, draw_gaze, draw_outline, draw_points, draw_text

BOX = {"x_min": 0.25, "y_min": 0.25, "x_max": 0.75, "y_max": 0.75}


def grey(width=300, height=200):
    return Image.new("RGB", (width, height), (90, 90, 90))


def changed(image):
    return (np.asarray(image) != 90).any(axis=2)


def test_points_are_where_they_say():
    source = grey()
    drawn = draw_points(source, [{"x": 0.5, "y": 0.5}, {"x": 0.1, "y": 0.9}])
    assert drawn.getpixel((150, 100)) == COLOURS[0]
    assert drawn.getpixel((30, 180)) == COLOURS[1]
    assert not changed(source).any()
    assert not changed(draw_points(source, [])).any()


def test_boxes_frame_their_object_and_leave_its_inside():
    drawn = draw_boxes(grey(), [BOX])
    marks = changed(drawn)
    rows, cols = np.nonzero(marks)
    assert (cols.min(), cols.max(), rows.min(), rows.max()) == (75, 224, 50, 149)
    assert not marks[60:140, 85:215].any()


def test_labels_stay_in_the_picture():
    plain, tagged = draw_boxes(grey(), [BOX]), draw_boxes(grey(), [BOX], "dog")
    assert np.asarray(plain).tobytes() != np.asarray(tagged).tobytes()
    corner = {"x_min": 0.97, "y_min": 0.97, "x_max": 1.0, "y_max": 1.0}
    marks = changed(draw_boxes(grey(), [corner], "elephant"))
    rows, cols = np.nonzero(marks)
    assert cols.min() < 280
    assert marks[:, 299].any()
    assert rows.min() > 150


def test_outlines_tint_their_inside():
    drawn = draw_outline(grey(), "M 0 0 H 1 V 1 H 0 Z", BOX)
    marks = changed(drawn)
    assert marks[55:145, 80:220].all()
    assert not marks[:45].any()
    assert not changed(draw_outline(grey(), "", None)).any()


def test_text_goes_under_the_picture_and_grows_with_its_length():
    short, long = draw_text(grey(), "a cat"), draw_text(grey(), "a cat and " * 60)
    assert short.size[0] >= 300
    assert long.size[1] > short.size[1] > 200
    assert not changed(short.crop((0, 0, 300, 200))).any()
    strip = np.asarray(short)[200:]
    assert strip.min() < 100
    assert draw_text(grey(), "").size[1] >= 200


@pytest.mark.parametrize("width", [150, 300, 480, 640])
def test_the_text_strip_is_as_wide_as_the_picture(width):
    drawn = draw_text(grey(width), "A medium purple square, a medium pink mark and a small wooden wheelbarrow. " * 3)
    assert drawn.width == width


@pytest.mark.parametrize("x", [0.01, 0.5, 0.93, 0.99])
@pytest.mark.parametrize("y", [0.01, 0.5, 0.95, 0.99])
def test_a_label_hides_no_dot(x, y):
    """The dot is the same with a label as without, in the corners of the picture too."""
    at = (round(300 * x), round(200 * y))
    drawn = draw_points(grey(), [{"x": x, "y": y}], "circle")
    plain = draw_points(grey(), [{"x": x, "y": y}])
    around = (at[0] - 1, at[1] - 1, at[0] + 2, at[1] + 2)
    assert drawn.crop(around).tobytes() == plain.crop(around).tobytes()
    assert drawn.tobytes() != plain.tobytes()


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (1, 4000), (3000, 20)])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_any_size_mode_and_letters(size, mode):
    image = Image.new(mode, size)
    for label in ("", "dog", "日本 🐕", "\ud800"):
        for drawn in (
            draw_points(image, [{"x": 0.0, "y": 1.0}], label),
            draw_boxes(image, [BOX, {"x_min": 0.0, "y_min": 0.0, "x_max": 0.0, "y_max": 0.0}], label),
            draw_outline(image, "M0 0L1 1 0 1Z", BOX, label),
        ):
            assert drawn.size == size
            assert drawn.mode == "RGB"
    assert draw_text(image, "words \ud800 日本").mode == "RGB"


def test_the_fallback_font_gets_latin_letters_only(monkeypatch):
    """Pillow without FreeType has a bitmap font that raises for anything else."""
    plain = ImageFont.load_default_imagefont()
    monkeypatch.setattr(ImageFont, "load_default", lambda size=None: plain)
    assert changed(draw_boxes(grey(), [BOX], "日本 dog")).any()
    assert draw_text(grey(), "日本 dog").size[1] > 200


def test_a_label_does_not_cover_what_it_names():
    """Above the box where there is room, else below it: the inside of the frame keeps its pixels."""
    image = Image.new("RGB", (300, 300), (10, 20, 30))
    for top in (0.5, 0.0):
        box = {"x_min": 0.4, "y_min": top, "x_max": 0.6, "y_max": top + 0.1}
        drawn = draw_boxes(image, [box], "a long name")
        inside = drawn.crop((124, round(300 * top) + 4, 176, round(300 * (top + 0.1)) - 4))
        assert inside.getcolors() == [(inside.width * inside.height, (10, 20, 30))]


def test_a_gaze_is_a_line_from_the_eye_or_the_face():
    drawn = draw_gaze(grey(), [0.25, 0.5], {"x": 0.75, "y": 0.5})
    marks = changed(drawn)
    assert drawn.getpixel((150, 100)) == drawn.getpixel((225, 100)) == COLOURS[0]
    assert not marks[:, :70].any() and not marks[:90, 80:210].any()
    face = draw_gaze(grey(), [0.25, 0.25, 0.75, 0.75], {"x": 0.9, "y": 0.5})
    assert face.getpixel((75, 50)) == COLOURS[1] and face.getpixel((200, 100)) == COLOURS[0]
    for origin in ([0.25, 0.5], [0.25, 0.25, 0.75, 0.75]):
        alone = changed(draw_gaze(grey(), origin, None))
        assert alone.any() and not alone[:, 226:].any()
