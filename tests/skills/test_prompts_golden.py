"""Prompt ids and texts of the golden models, per skill."""

import json

import pytest
from tests.skills.skill_contexts import GOLDEN, context_of

from gapless.records import Token
from gapless.skills.caption import caption
from gapless.skills.detect import detect
from gapless.skills.point import point
from gapless.skills.query import query
from gapless.skills.segment import segment

FOLDERS = ("moondream2-2025-06-21-a", "moondream2-2025-06-21-b", "moondream3-a", "moondream3-b")
WHAT = (342, 418, 370, 299, 300, 51)  # "what colour is the circle?"
REFS = [[0.25, 0.5], [0.1, 0.2, 0.6, 0.9]]


def entries(folder):
    found = json.loads((GOLDEN / folder / "expected.json").read_text())
    return [(name, skill, entry) for name, skills in found.items() for skill, entry in skills.items()
            if isinstance(entry, dict)]  # fmt: skip


def asked(context, picture, skill, entry):
    if skill.startswith("caption"):
        return caption(context, picture, skill.removeprefix("caption_"))
    return query(context, picture, entry["question"], reasoning=skill == "query_reasoning",
                 spatial_refs=entry.get("spatial_refs"))  # fmt: skip


@pytest.mark.parametrize("folder", FOLDERS)
def test_s_tok_05_prompt_ids(folder, picture):
    """S-TOK-05, S-TOK-06: prompt ids are the recorded ones, wherever any are recorded."""
    context, seen = context_of(folder), 0
    for name, skill, entry in entries(folder):
        ids = entry.get("prompt_ids")
        if ids is not None:
            ask = asked(context, None if name == "text_only" else picture, skill, entry)
            assert list(ask.prompt.ids) == ids
            seen += 1
    assert seen == (11 if folder.startswith("moondream3") else 0)


@pytest.mark.parametrize("folder", FOLDERS[:2])
def test_s_tok_05_moondream_2_query_ids(folder, picture):
    """S-TOK-05: the doubled answer id is there exactly twice."""
    context = context_of(folder)
    for skills in json.loads((GOLDEN / folder / "expected.json").read_text()).values():
        if "query_prompt_ids" in skills:
            ask = query(context, picture, skills["query"]["question"])
            assert list(ask.prompt.ids) == skills["query_prompt_ids"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_recorded_tokens_read_as_the_recorded_text(folder, picture):
    """Whole and streamed, with the pieces joined equal to the result."""
    context, seen = context_of(folder), 0
    for name, skill, entry in entries(folder):
        if "token_ids" not in entry:
            continue
        ask = asked(context, None if name == "text_only" else picture, skill, entry)
        pieces = [p for i in entry["token_ids"] for p in ask.reader.feed([Token(i)])] + list(ask.reader.finish())
        key = "caption" if skill.startswith("caption") else "answer"
        expected = entry.get(key, entry.get("text"))
        assert ask.reader.result() == {key: expected}
        assert "".join(pieces) == expected
        seen += 1
    assert seen >= 11


def test_s_tok_06_all_layouts_by_hand(md2, md3, picture):
    """S-TOK-06: per skill, model and picture: BOS first exactly once (the picture's block brings its own)."""
    q2, q3, text = (1, 294, 395, 2), (1, 294, 395, 2), "what colour is the circle?"
    refs = (5, 5, 5, 5, 6)
    dog = (410,)  # " dog"
    table = {
        ("md2", "query"): (query(md2, picture, text), (*q2, *WHAT, 3, 3)),
        ("md2", "no picture"): (query(md2, None, text), (0, *q2, *WHAT, 3, 3)),
        ("md2", "reasoning"): (query(md2, picture, text, reasoning=True), (*q2, *WHAT, 3, 4)),
        ("md2", "refs"): (query(md2, picture, text, spatial_refs=REFS), (*q2, *refs, *WHAT, 3, 3)),
        ("md2", "refs, reasoning"): (query(md2, picture, text, reasoning=True, spatial_refs=REFS),
                                   (*q2, *refs, *WHAT, 3, 4)),
        ("md3", "query"): (query(md3, picture, text), (*q3, *WHAT, 3)),
        ("md3", "no picture"): (query(md3, None, text), (0, *q3, *WHAT, 3)),
        ("md3", "reasoning"): (query(md3, picture, text, reasoning=True), (*q3, *WHAT, 4)),
        ("md3", "no picture, reasoning"): (query(md3, None, text, reasoning=True), (0, *q3, *WHAT, 4)),
        ("md3", "refs"): (query(md3, picture, text, spatial_refs=REFS), (*q3, *refs, *WHAT, 3)),
        ("md2", "detect"): (detect(md2, picture, "dog"), (1, 289, 339, 2, *dog, 3)),
        ("md2", "point"): (point(md2, picture, "dog"), (1, 100, 332, 104, 2, *dog, 3)),
        ("md2", "point, refs"): (point(md2, picture, "dog", spatial_refs=REFS), (1, 100, 332, 104, 2, *refs, *dog, 3)),
        ("md3", "segment"): (segment(md3, picture, "dog"), (1, 103, 313, 401, 2, *md3.tokenizer.encode("dog"), 3)),
        ("md2", "short"): (caption(md2, picture, "short"), (1, 426, 2, 103, 292, 334, 3)),
        ("md2", "normal"): (caption(md2, picture), (1, 426, 2, 98, 330, 326, 3)),
        ("md2", "long"): (caption(md2, picture, "long"), (1, 426, 2, 284, 327, 3)),
    }  # fmt: skip
    assert md2.tokenizer.encode("dog") != dog
    for (_, what), (ask, ids) in table.items():
        assert ask.prompt.ids == ids, what
        assert (ask.prompt.picture is None) == what.startswith("no picture")
        assert len(ask.prompt.values) == len(ids)


def test_values_ride_on_the_ids_of_references(md3, picture):
    for ask in (query(md3, picture, "what?", spatial_refs=REFS), point(md3, picture, "dog", spatial_refs=REFS),
                segment(md3, picture, "dog", spatial_refs=REFS)):  # fmt: skip
        at = ask.prompt.ids.index(5)
        assert ask.prompt.ids[at : at + 5] == (5, 5, 5, 5, 6)
        values = ask.prompt.values[at : at + 5]
        assert values[:2] == ((0.25,), (0.5,))
        assert values[2] == (pytest.approx(0.35),)
        assert values[3] == (pytest.approx(0.55),)
        assert values[4] == pytest.approx((0.5, 0.7))
        rest = ask.prompt.values[:at] + ask.prompt.values[at + 5 :]
        assert set(rest) == {()}


@pytest.mark.parametrize(
    "typed", ["what colour is the circle?", "  what colour is the circle?\n", "\u3000what colour is the circle?\t"]
)
def test_white_space_around_a_question_is_stripped(md2, picture, typed):
    assert query(md2, picture, typed).prompt.ids == (1, 294, 395, 2, *WHAT, 3, 3)
    assert point(md2, picture, "\n dog ").prompt.ids == point(md2, picture, "dog").prompt.ids


def test_programs(md2, md3, picture):
    asks = [query(md2, picture, "x"), query(md2, picture, "x", reasoning=True), caption(md2, picture),
            point(md2, picture, "x"), detect(md2, picture, "x"), segment(md3, picture, "x")]  # fmt: skip
    assert [a.program for a in asks] == ["text", "reason", "text", "point", "detect", "segment"]
