"""Answers and reasonings from tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.records import Token
from gapless.skills.query import query


def words(context, text):
    return [Token(i) for i in context.tokenizer.encode(text)]


def place(*values):
    return [Token(5, (v,)) for v in values]


GROUND, UNGROUND, ANSWER, END = Token(7), Token(9), Token(3), Token(0)


def test_reasoning_and_answer_are_told_apart(md2, picture):
    reader = query(md2, picture, "how many?", reasoning=True).reader
    assert reader.reasoning is None
    assert reader.feed(words(md2, "one dog and a cat")) == ()
    assert reader.reasoning is None
    assert reader.feed([ANSWER]) == ()
    assert reader.reasoning == {"text": "one dog and a cat", "grounding": []}
    assert reader.feed(words(md2, " two ani")) == (" two ",)
    assert reader.feed([*words(md2, "mals"), END]) == ()
    assert reader.finish() == ("animals",)
    assert reader.result() == {
        "answer": " two animals",
        "reasoning": {"text": "one dog and a cat", "grounding": []},
    }


def test_one_group_of_tokens_may_hold_both_phases(md2, picture):
    reader = query(md2, picture, "how many?", reasoning=True).reader
    reader.feed([*words(md2, "thinking"), ANSWER, *words(md2, "answer "), END])
    reader.finish()
    assert reader.result() == {"answer": "answer ", "reasoning": {"text": "thinking", "grounding": []}}


def test_a_second_answer_id_belongs_to_the_answer_and_shows_nothing(md3, picture):
    """Moondream 3 may say it again; generation goes on."""
    reader = query(md3, picture, "how many?", reasoning=True).reader
    reader.feed([*words(md3, "hm"), ANSWER, *words(md3, "two"), ANSWER, *words(md3, " cats"), END])
    reader.finish()
    assert reader.result()["answer"] == "two cats"
    plain = query(md3, picture, "how many?").reader
    plain.feed([ANSWER, *words(md3, "two"), ANSWER, END])
    plain.finish()
    assert plain.result() == {"answer": "two"}
    assert plain.reasoning is None


def test_groundings_by_stretch(md2, picture):
    """A stretch begins at each ground and unground id; its text and its pairs of coordinates belong together."""
    reader = query(md2, picture, "how many?", reasoning=True).reader
    reader.feed([
        *words(md2, "see"), GROUND, *words(md2, " two dogs"), *place(0.1, 0.2, 0.3, 0.4, 0.9), UNGROUND,
        *words(md2, " and"), GROUND, *words(md2, " a cat"), *place(0.5), UNGROUND, *place(0.6, 0.7), *words(md2, "."),
        ANSWER, *words(md2, "3"), END,
    ])  # fmt: skip
    reader.finish()
    text = "see two dogs and a cat."
    assert reader.result() == {
        "answer": "3",
        "reasoning": {
            "text": text,
            "grounding": [
                {"start_idx": 3, "end_idx": 12, "points": [[0.1, 0.2], [0.3, 0.4]]},
                {"start_idx": 22, "end_idx": 23, "points": [[0.6, 0.7]]},
            ],
        },
    }
    assert text[3:12] == " two dogs"


def test_offsets_count_characters(md2, picture):
    reader = query(md2, picture, "?", reasoning=True).reader
    reader.feed([*words(md2, "日本 🙂"), GROUND, *words(md2, "🙂"), *place(0.1, 0.2), UNGROUND, ANSWER, END])
    (found,) = reader.reasoning["grounding"]
    assert (found["start_idx"], found["end_idx"]) == (4, 5)


@pytest.mark.parametrize("tokens", [[], [END], [GROUND], place(0.5, 0.5), [ANSWER], [ANSWER, END]], ids=str)
def test_a_reasoning_cut_anywhere_has_a_result(md2, picture, tokens):
    reader = query(md2, picture, "?", reasoning=True).reader
    reader.feed(tokens)
    assert reader.finish() == ()
    result = reader.result()
    assert result["answer"] == ""
    assert set(result["reasoning"]) == {"text", "grounding"}
    assert reader.reasoning == result["reasoning"]


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.lists(st.integers(0, 520), max_size=50), st.booleans(), st.integers(1, 6))
def test_stream_equals_result_for_any_tokens(md2, picture, ids, reasoning, group):
    tokens = [Token(i, (0.5,) if i == 5 else ()) for i in ids]
    whole, parts = (query(md2, picture, "?", reasoning=reasoning).reader for _ in range(2))
    whole.feed(tokens)
    whole.finish()
    pieces = [p for at in range(0, len(tokens), group) for p in parts.feed(tokens[at : at + group])]
    pieces += parts.finish()
    assert parts.result() == whole.result()
    assert "".join(pieces) == whole.result()["answer"]
    assert all(pieces)
    answer = ids[ids.index(3) + 1 :] if reasoning and 3 in ids else [] if reasoning else ids
    assert whole.result()["answer"] == md2.tokenizer.decode(answer)
