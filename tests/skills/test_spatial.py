"""Points and boxes from tokens, references from callers: ranges, order, and what to do with nonsense."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.errors import InvalidRequest, PromptTooLong
from gapless.records import Token
from gapless.skills.detect import detect
from gapless.skills.point import point
from gapless.skills.query import query
from gapless.skills.segment import segment
from gapless.skills.spatial import box_of, references

EDGES = ("x_min", "y_min", "x_max", "y_max")


def coord(value):
    return Token(5, (value,))


def size(width, height):
    return Token(6, (width, height))


END = Token(0)


def read(ask, *tokens):
    pieces = [p for t in tokens for p in ask.reader.feed([t])] + list(ask.reader.finish())
    return ask.reader.result(), pieces


def test_points(md2, picture):
    result, pieces = read(point(md2, picture, "dog"), coord(0.25), coord(0.5), coord(0.0), coord(1023 / 1024), END)
    assert result == {"points": [{"x": 0.25, "y": 0.5}, {"x": 0.0, "y": 1023 / 1024}]}
    assert pieces == result["points"]


def test_boxes(md2, picture):
    result, pieces = read(detect(md2, picture, "dog"), coord(0.5), coord(0.25), size(0.5, 0.25), END)
    assert result == {"objects": [{"x_min": 0.25, "y_min": 0.125, "x_max": 0.75, "y_max": 0.375}]}
    assert pieces == result["objects"]


def test_golden_boxes_are_the_clamped_ones(md2, picture):
    """The recorded box of a Moondream 3 model: centre and size that reach over the left edge."""
    x_min, y_min, x_max, y_max = -0.09207555651664734, 0.38110768038313836, 0.5784036815166473, 0.38256419461686164
    tokens = [coord((x_min + x_max) / 2), coord((y_min + y_max) / 2), size(x_max - x_min, y_max - y_min)]
    result, _ = read(detect(md2, picture, "dog"), *tokens)
    assert list(result["objects"][0].values()) == pytest.approx([0.0, y_min, x_max, y_max])
    assert result["objects"][0]["x_min"] == 0.0


def test_s_det_01_all_bins_stay_in_the_picture():
    """S-DET-01: every centre bin with every 8th size bin, clipped after decoding, min <= max."""
    extents = [2.0 ** (b / 1023 * 10 - 10) for b in [*range(0, 1024, 8), 1023]]
    for centre in (b / 1024 for b in range(1024)):
        for extent in extents:
            box = box_of(centre, centre, extent, extent)
            assert 0.0 <= box["x_min"] <= box["x_max"] <= 1.0
    assert box_of(0.98, 0.5, 0.2, 0.2)["x_max"] == 1.0


def test_s_det_04_nothing_found_is_an_empty_list(md2, md3, picture):
    """S-DET-04: never null."""
    assert read(point(md2, picture, "dog"), END)[0] == {"points": []}
    assert read(detect(md2, picture, "dog"), END)[0] == {"objects": []}
    assert read(point(md2, picture, "dog"))[0] == {"points": []}
    assert read(segment(md3, picture, "dog"), END)[0] == {"path": "", "bbox": None}


@pytest.mark.parametrize(
    ("tokens", "boxes", "points"),
    [
        ([coord(0.5)], 0, 0),
        ([coord(0.5), coord(0.5)], 0, 1),
        ([coord(0.5), coord(0.5), END], 0, 1),
        ([coord(0.5), END], 0, 0),
        ([size(0.1, 0.1)], 0, 0),
        ([size(0.1, 0.1), coord(0.5), coord(0.5), size(0.2, 0.2)], 1, 1),
        ([coord(0.5), size(0.1, 0.1), coord(0.5), coord(0.5), size(0.1, 0.1)], 1, 1),
        ([coord(0.1), coord(0.2), coord(0.3), coord(0.4), size(0.1, 0.1)], 1, 2),
        ([coord(math.nan), coord(0.5), coord(0.5), size(0.1, 0.1)], 1, 1),
        ([coord(0.5), coord(0.5), size(math.inf, 0.1)], 0, 1),
        ([Token(5), Token(5, (0.1, 0.2)), Token(6, (0.1,))], 0, 0),
        ([Token(30), Token(3), Token(511), Token(10**6)], 0, 0),
    ],
    ids=range(12),
)
def test_s_con_11_malformed_ends_leave_out_the_incomplete_object(md2, picture, tokens, boxes, points):
    """S-CON-11: cut off in a pair, a size without a centre, only the end: a defined partial result."""
    assert len(read(detect(md2, picture, "dog"), *tokens)[0]["objects"]) == boxes
    assert len(read(point(md2, picture, "dog"), *tokens)[0]["points"]) == points


TOKENS = st.one_of(
    st.builds(Token, st.integers(0, 520)),
    st.builds(lambda v: Token(5, (v,)), st.floats(allow_nan=True, allow_infinity=True, width=32)),
    st.builds(lambda v, w: Token(6, (v, w)), st.floats(0, 2), st.floats(-1, 1)),
    st.builds(lambda v: Token(5, (v,)), st.floats(0, 1)),
)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(TOKENS, max_size=30), st.integers(1, 7))
def test_s_det_08_any_tokens_give_plain_json_of_the_same_shape(md2, md3, picture, tokens, group):
    """S-DET-08, S-DET-05: stable keys, plain floats in 0..1, no NaN; grouping of the tokens changes nothing."""
    for make in (point, detect):
        ask, again = make(md2, picture, "dog"), make(md2, picture, "dog")
        result, pieces = read(ask, *tokens)
        streamed = [p for at in range(0, len(tokens), group) for p in again.reader.feed(tokens[at : at + group])]
        (key,) = result
        assert pieces == streamed == result[key]
        json.dumps(result, allow_nan=False)
        for found in result[key]:
            assert list(found) == (["x", "y"] if key == "points" else list(EDGES))
            assert all(type(v) is float for v in found.values())
            if key == "objects":
                assert all(0.0 <= v <= 1.0 for v in found.values())


def test_results_are_copies(md2, picture):
    ask = detect(md2, picture, "dog")
    result, _ = read(ask, coord(0.5), coord(0.5), size(0.1, 0.1))
    result["objects"][0]["x_min"] = 99.0
    result["objects"].append({})
    assert len(ask.reader.result()["objects"]) == 1
    assert ask.reader.result()["objects"][0]["x_min"] != 99.0


@pytest.mark.parametrize(
    "refs",
    [None, [], (), [[0.1, 0.2]], ((0.1, 0.2),), np.array([[0.1, 0.2]]), [np.array([0.1, 0.2])], [(0, 1)],
     [[0, 0, 1, 1]], [[0.5, 0.5, 0.5, 0.5]], np.zeros((2, 4)), [[0.1, 0.2], [0.1, 0.2, 0.3, 0.4]]],
    ids=str,
)  # fmt: skip
def test_references_that_are_fine(md2, picture, refs):
    body = references(md2, refs)
    count = 0 if refs is None else len(refs)
    assert body.ids.count(6) == sum(len(r) == 4 for r in (refs if count else ()))
    assert body.ids.count(5) == 2 * count
    assert all(type(v) is float for values in body.values for v in values)
    assert query(md2, picture, "x", spatial_refs=refs).program == "text"


@pytest.mark.parametrize(
    ("refs", "reason"),
    [
        ([0.5, 0.5], "list of lists"),
        ("0.5,0.5", "list of points"),
        (5, "list of points"),
        ({"x": 0.5, "y": 0.5}, "list of points"),
        ([{"x": 0.5, "y": 0.5}], "points"),
        (["ab"], "points"),
        ([None], "points"),
        ([[]], "2 or 4 numbers each, not 0"),
        ([[0.5]], "2 or 4 numbers each, not 1"),
        ([[0.1, 0.2, 0.3]], "2 or 4 numbers each, not 3"),
        ([[0.1] * 5], "2 or 4"),
        ([["0.1", "0.2"]], "numbers"),
        ([[True, False]], "numbers"),
        ([[None, 0.5]], "numbers"),
        ([[math.nan, 0.5]], "0..1"),
        ([[math.inf, 0.5]], "0..1"),
        ([[-0.01, 0.5]], "0..1"),
        ([[320, 240]], "divide x by the picture's width"),
        ([[0.9, 0.1, 0.2, 0.3]], "x_min <= x_max"),
        ([[0.1, 0.9, 0.2, 0.3]], "y_min <= y_max"),
        ([[0.5, 0.5], [0.5, 2.0]], "0..1"),
    ],
    ids=str,
)
def test_references_that_are_refused(md3, picture, refs, reason):
    for make in (query, point, segment):
        with pytest.raises(InvalidRequest, match=reason) as caught:
            make(md3, picture, "dog", spatial_refs=refs)
        assert caught.value.param == "spatial_refs"


def test_more_references_than_the_context_holds(md2, picture):
    with pytest.raises(InvalidRequest, match="do not fit"):
        query(md2, picture, "x", spatial_refs=[[0.5, 0.5]] * 5000)
    with pytest.raises(PromptTooLong):
        query(md2, picture, "x", spatial_refs=[[0.5, 0.5]] * 1000)
