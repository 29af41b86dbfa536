"""Answers in words: stop strings and logprobs, however the tokens come."""

import json
import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.skills.test_detokenize import byte_ids

from gapless.errors import InvalidRequest
from gapless.records import Token
from gapless.skills.answer import LEAST, AnswerText
from gapless.skills.caption import caption
from gapless.skills.detect import detect
from gapless.skills.point import point
from gapless.skills.segment import segment
from gapless.skills.settings import MAX_STOP_LENGTH, MAX_STOPS, Settings
from gapless.skills.stopping import StopFilter


def cut(text, stops):
    """What a filter must give out: everything before the earliest match."""
    return text[: min((p for s in stops if (p := text.find(s)) >= 0), default=len(text))]


def filtered(pieces, stops):
    """Pieces given out, each checked against what is certain at that moment."""
    keeper, out = StopFilter(stops), []
    for piece in pieces:
        out.append(keeper.feed(piece))
    out.append(keeper.finish())
    return out, keeper.found


QUICK = "The quick brown fox"


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        (QUICK, ["own fox"]),
        (QUICK, ["brown", "own f", "wn"]),
        (QUICK, ["wn", "brown fax", "own fox!"]),
        (QUICK, ["T"]),
        (QUICK, [QUICK]),
        (QUICK, ["nowhere", "foxes"]),
        (QUICK, []),
        ("aaaab", ["aab"]),
        ("abcabcabd", ["abcabd", "cabx"]),
        ("one\n\ntwo", ["\n\n"]),
        ("a🙂b漢c", ["🙂b"]),
    ],
)
def test_s_str_02_every_way_of_cutting_the_text_gives_the_same(text, stops):
    """S-STR-02: a match across pieces, stops that overlap, one at the very beginning, one that comes to nothing."""
    for cuts in product([False, True], repeat=min(len(text) - 1, 9)):
        pieces, start = [], 0
        for place, cuts_here in enumerate(cuts, 1):
            if cuts_here:
                pieces.append(text[start:place])
                start = place
        out, found = filtered([*pieces, text[start:]], stops)
        assert "".join(out) == cut(text, stops) and found == any(s in text for s in stops)
    assert "".join(filtered(text, stops)[0]) == cut(text, stops)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
)
def test_s_str_02_any_text_and_any_stops(pieces, stops):
    """S-STR-02: never a character too many on the way, and nothing held back for longer than a match may take."""
    keeper, seen, out = StopFilter(stops), "", ""
    for piece in pieces:
        seen, out = seen + piece, out + keeper.feed(piece)
        assert cut(seen, stops).startswith(out)
        assert keeper.found or len(seen) - len(out) < max(map(len, stops), default=1)
    assert out + keeper.finish() == cut(seen, stops)


@pytest.mark.parametrize("stop", ["🙂", "x🙂", "字", "\ufffd", "é"])
@pytest.mark.parametrize("at_once", [False, True])
def test_s_str_02_stops_of_several_bytes(tokenizer, stop, at_once):
    """S-STR-02: a character of several byte tokens is compared as a character, never in the middle."""
    text = f"see 漢 {stop}🙂 there"
    answer = AnswerText(tokenizer, [stop])
    ids = [Token(i) for i in byte_ids(tokenizer, text)]
    groups = [ids] if at_once else [[i] for i in ids]
    assert "".join(p for group in groups for p in answer.feed(group)) == "see 漢 " == answer.text
    assert answer.over and answer.finish() == () and answer.feed(ids) == ()


def test_a_stop_is_seen_before_the_word_is_complete(tokenizer):
    answer = AnswerText(tokenizer, ["brown"])
    said = [answer.feed([Token(i)]) for i in byte_ids(tokenizer, "The quickbrow")]
    assert not answer.over and said.count(("The ",)) == 1
    assert answer.feed([Token(i) for i in byte_ids(tokenizer, "n")]) == ("quick",) and answer.over


def test_a_match_that_only_the_end_decides(tokenizer):
    answer = AnswerText(tokenizer, ["bcde", "c"])
    assert answer.feed([Token(i) for i in byte_ids(tokenizer, "a bcd")]) == ("a ",)
    assert not answer.over
    assert answer.finish() == ("b",) and answer.over


def scored(tokenizer, text, **options):
    answer = AnswerText(tokenizer, scored=True, **options)
    tokens = [Token(i, logprob=-0.5, top=((i, -0.5), (0, -math.inf))) for i in byte_ids(tokenizer, text)]
    return answer, tokens


@pytest.mark.parametrize("text", ["hi 🙂 there", "漢字", "a b"])
def test_s_api_07_tokens_are_listed_with_the_text_they_begin(tokenizer, text):
    """S-API-07: bytes joined are the text, in pieces too; half characters have their bytes; no infinity is written."""
    answer, tokens = scored(tokenizer, text)
    told, given = [], ""
    for pieces in [*(answer.feed([token]) for token in tokens), answer.feed([Token(0)]), answer.finish()]:
        given += "".join(pieces)
        told += answer.scores_from(len(told), len(given))
        assert b"".join(bytes(one["bytes"]) for one in told).decode(errors="ignore") == given
    assert answer.scores() == {"logprobs": told} and len(told) == len(tokens)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told[0]["top_logprobs"][1] == {"token": "<|0|>", "bytes": None, "logprob": LEAST}


def test_logprobs_end_where_the_text_does(tokenizer):
    answer, tokens = scored(tokenizer, "The quick brown", stops=["k b"])
    answer.feed(tokens)
    assert answer.text == "The quic"
    assert "".join(one["token"] for one in answer.scores()["logprobs"]) == "The quic"
    assert AnswerText(tokenizer).scores() == {}


@pytest.mark.parametrize(
    "stop",
    [
        "",
        [""],
        ["a", ""],
        3,
        [3],
        {"a": 1},
        ["a"] * (MAX_STOPS + 1),
        "a" * (MAX_STOP_LENGTH + 1),
        ["\ud800"],
        True,
        b"a",
    ],
    ids=lambda value: repr(value)[:20],
)
def test_stops_that_are_refused(stop):
    """S-TOK-04 too: half a surrogate pair is no text."""
    with pytest.raises(InvalidRequest) as caught:
        Settings.parse({"stop": stop})
    assert caught.value.param == "stop" and len(str(caught.value)) < 400


@pytest.mark.parametrize(("stop", "stops"), [(None, ()), ([], ()), ("a", ("a",)), (["a", "b"], ("a", "b"))])
def test_stops_that_are_taken(stop, stops):
    assert Settings.parse({"stop": stop}).stop == stops


@pytest.mark.parametrize("logprobs", [-1, 21, 1.5, True, "3"])
def test_logprobs_are_bounded(md3, picture, logprobs):
    with pytest.raises(InvalidRequest, match="whole number from 0 to 20"):
        caption(md3, picture, settings={"logprobs": logprobs})


def test_settings_reach_the_sampler_and_the_reader(md3, picture):
    ask = caption(md3, picture, settings={"logprobs": 3, "stop": "."})
    assert ask.sampling.top_logprobs == 3 and ask.text.stoppable
    plain = caption(md3, picture)
    assert plain.sampling.top_logprobs == -1 and not plain.text.stoppable


@pytest.mark.parametrize("skill", [detect, point, segment])
@pytest.mark.parametrize("name", ["stop", "logprobs"])
def test_answers_that_are_no_words_take_neither(md3, picture, skill, name):
    with pytest.raises(InvalidRequest, match="answers in words") as caught:
        skill(md3, picture, "dog", settings={name: 0 if name == "logprobs" else "a"})
    assert caught.value.param == name
