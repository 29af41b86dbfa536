"""Outlines from tokens: box, path, mask, and their stream."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.images.path import commands
from gapless.records import Token
from gapless.skills.base import SkillContext
from gapless.skills.outline import PathWriter
from gapless.skills.segment import segment

BOX = [Token(5, (0.5,)), Token(5, (0.5,)), Token(6, (0.4, 0.2))]
EXPECTED_BOX = {"x_min": 0.3, "y_min": 0.4, "x_max": 0.7, "y_max": 0.6}


class Words:
    """Stands in for a tokenizer whose ids 100.. are whole words."""

    def __init__(self, words):
        self.words = list(words)

    def decode(self, ids):
        return "".join(self.words[i - 100] if i >= 100 else "junk" for i in ids)


def reader_of(context, picture, words, mask=False):
    reader = segment(context, picture, "dog", mask=mask).reader
    reader._tokenizer = Words(words)
    return reader


def run(context: SkillContext, picture, text, box=BOX, mask=False):
    words = text.split("|") if text else []
    reader = reader_of(context, picture, words, mask)
    tokens = [*box, *(Token(100 + i) for i in range(len(words))), Token(0)]
    pieces = [p for t in tokens for p in reader.feed([t])] + list(reader.finish())
    return reader.result(), pieces


def test_a_plain_outline(md3, picture):
    result, pieces = run(md3, picture, "M|0|0|L|960|0|480|960|Z")
    assert result == {"path": "M 0 0 L 1 0 0.5 1 Z", "bbox": pytest.approx(EXPECTED_BOX)}
    assert [list(p) for p in pieces] == [["bbox"], *[["chunk"]] * 4, ["path", "bbox", "completed"]]
    assert "".join(p["chunk"] for p in pieces[1:-1]) == result["path"]
    assert pieces[-1] == result | {"completed": True}
    assert pieces[0]["bbox"] == result["bbox"]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("M| 480| 240| L|-| 320|1", "M 0.5 0.25 L -0.333 0.001"),
        ("M|1|2|L|3|4|5|6", "M 0.001 0.002 L 0.003 0.004 0.005 0.006"),
        ("m|480|480|l|48|-|48|z|M|0|0", "m 0.5 0.5 l 0.05 -0.05 z M 0 0"),
        ("M|0|0|H|960|V|480|h|-|96|v|-|9", "M 0 0 H 1 V 0.5 h -0.1 v -0.009"),
        ("M|0|0|C|96|96|192|192|288|288|S|1|1|2|2", "M 0 0 C 0.1 0.1 0.2 0.2 0.3 0.3 S 0.001 0.001 0.002 0.002"),
        ("M|0|0|Q|96|96|192|192|T|288|288", "M 0 0 Q 0.1 0.1 0.2 0.2 T 0.3 0.3"),
        ("M|0|0|A|480|240|90|0|1|960|960", "M 0 0 A 0.5 0.25 90 0 1 1 1"),
        ("M|0|0|L|-|0|960", "M 0 0 L 0 1"),
        ("M|0|0|L|-5|960", "M 0 0 L -0.005 1"),
        ("  M \n|  0|0 | |\t|L|1|1", "M 0 0 L 0.001 0.001"),
        ("M|9600|0", "M 10 0"),
    ],
)
def test_numbers_commands_and_signs(md3, picture, text, path):
    """Each whole number is a 960th, up to three decimals, zeros trimmed; repeated commands are not spelled out."""
    assert run(md3, picture, text)[0]["path"] == path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", ""),
        ("hello", ""),
        ("1|2|3", ""),
        ("-", ""),
        ("L|1|1", ""),
        ("Z", ""),
        ("M", ""),
        ("M|960", ""),
        ("M|0|0|L", "M 0 0"),
        ("M|0|0|L|960", "M 0 0"),
        ("M|0|0|L|960|960|junk|L|1|1", "M 0 0 L 1 1"),
        ("M|0|0|L|960|L|1|1", "M 0 0"),
        ("M|0|0|L|-|-|1|1", "M 0 0"),
        ("M|0|0|L|-|Z", "M 0 0"),
        ("M|0|0|Z|5|5", "M 0 0 Z"),
        ("M|0|0|L|²|1", "M 0 0"),
        ("M|0|0|L|" + "9" * 5000 + "|1", "M 0 0"),
        ("M|0|0|L|0.5|1", "M 0 0"),
        ("M|0|0|E|1|1", "M 0 0"),
        ("M|0|0|ML|1|1", "M 0 0"),
        ("M|0|0|L|\ufffd|1", "M 0 0"),
    ],
)
def test_s_con_11_junk_ends_the_path_and_keeps_what_came_before(md3, picture, text, path):
    """S-CON-11: a partial path, never an exception, and always one that can be drawn."""
    result, pieces = run(md3, picture, text)
    assert result == {"path": path, "bbox": pytest.approx(EXPECTED_BOX)}
    assert "".join(p["chunk"] for p in pieces if "chunk" in p) == path


@pytest.mark.parametrize("box", [[], BOX[:1], BOX[:2], BOX[2:], [Token(100)], [BOX[0], BOX[2], BOX[1]]], ids=str)
def test_s_con_11_without_a_whole_box_there_is_nothing(md3, picture, box):
    """S-CON-11: cut off in a pair, or a size without its centre; text before the box does not count."""
    result, pieces = run(md3, picture, "M|0|0|L|960|960", box)
    assert result == {"path": "", "bbox": None}
    assert pieces == [{"path": "", "bbox": None, "completed": True}]


def test_reserved_ids_and_later_places_are_no_text(md3, picture):
    reader = reader_of(md3, picture, ["M", "0", "0"])
    reader.feed([*BOX, Token(100), Token(5, (0.9,)), Token(6, (0.1, 0.1)), Token(20), Token(101), Token(3), Token(102)])
    assert reader.result() == {"path": "M 0 0", "bbox": pytest.approx(EXPECTED_BOX)}


def test_the_outline_is_relative_to_the_clamped_box(md3, picture):
    """A box that reaches over the left edge is clamped; the drawn outline stays where the model put it."""
    over = [Token(5, (0.1,)), Token(5, (0.5,)), Token(6, (0.4, 0.2))]
    result, _ = run(md3, picture, "M|480|0|L|960|0|480|960|H|0|Z", over)
    assert result["bbox"] == pytest.approx({"x_min": 0.0, "y_min": 0.4, "x_max": 0.3, "y_max": 0.6})
    assert result["path"] == "M 0.333 0 L 1 0 0.333 1 H -0.333 Z"
    box, xs = result["bbox"], (0.333, 1.0)
    found = [box["x_min"] + x * (box["x_max"] - box["x_min"]) for x in xs]
    assert found == pytest.approx([0.1, 0.3], abs=1e-3)
    relative, _ = run(md3, picture, "M|480|0|l|480|0|v|960|A|96|96|0|0|1|960|960", over)
    assert relative["path"] == "M 0.333 0 l 0.667 0 v 1 A 0.133 0.1 0 0 1 1 1"


def test_masks_on_request(md3, picture):
    result, pieces = run(md3, picture, "M|0|0|H|960|V|960|H|0|Z", mask=True)
    assert result["mask"].shape == (picture.height, picture.width)
    expected = np.zeros((20, 40), dtype=bool)
    expected[8:12, 12:28] = True
    assert np.array_equal(result["mask"], expected)
    assert np.array_equal(pieces[-1]["mask"], expected)
    nothing, _ = run(md3, picture, "", box=[], mask=True)
    assert nothing["bbox"] is None
    assert not nothing["mask"].any()
    assert "mask" not in run(md3, picture, "M|0|0")[0]


def test_the_real_tokenizer_reads_the_same(md3, picture):
    """With a tokenizer of single characters the numbers are single digits."""
    reader = segment(md3, picture, "dog").reader
    ids = [md3.tokenizer.encode(c)[0] for c in "M12L-34Z"]
    reader.feed([*BOX, *map(Token, ids), Token(0)])
    assert reader.result()["path"] == "M 0.001 0.002 L -0.003 0.004 Z"


PARTS = st.sampled_from([*"MmLlHhVvCcSsQqTtAaZz", "-", "0", "960", "17", "480", " 5", "", "x", "12345678901"])


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.lists(PARTS, max_size=40))
def test_any_tokens_give_a_path_that_reads_back_whole(parts):
    """What is written is valid path data to its last character."""
    writer = PathWriter((1.25, -0.125), (1.0, 0.0))
    chunks = [writer.take(p) for p in parts]
    path = writer.path
    assert "".join(chunks) == path
    assert re.fullmatch(r"(?:(?:^| )(?:[MLHVCSQTAZmlhvcsqtaz]|-?\d+(?:\.\d{1,3})?))*", path)
    found = list(commands(path))
    assert sum(len(numbers) for _, numbers in found) == len(re.findall(r"\d+(?:\.\d+)?", path))
    assert sum(letter in "Zz" for letter, _ in found) == path.upper().count("Z")
    json.dumps(path)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.builds(Token, st.integers(0, 520)), max_size=30), st.integers(1, 5))
def test_stream_equals_result_for_any_tokens_after_the_box(md3, picture, tokens, group):
    whole, parts = (segment(md3, picture, "dog", mask=True).reader for _ in range(2))
    tokens = [*BOX, *tokens]
    whole.feed(tokens)
    pieces = [p for at in range(0, len(tokens), group) for p in parts.feed(tokens[at : at + group])]
    pieces += parts.finish()
    assert pieces[-1]["path"] == whole.result()["path"] == "".join(p.get("chunk", "") for p in pieces[:-1])
    assert np.array_equal(pieces[-1]["mask"], whole.result()["mask"])
