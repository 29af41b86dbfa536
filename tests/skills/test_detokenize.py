"""Streams of text: whole words, no half characters, and joined they are the whole."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.records import Token
from gapless.skills.answer import AnswerText
from gapless.skills.tokenizer import Tokenizer

FAMILY = "👨‍👩‍👧‍👦"


def byte_ids(tokenizer, text):
    """One id per UTF-8 byte."""
    single = {tokenizer.piece(i): i for i in range(512) if len(tokenizer.piece(i)) == 1}
    return [single[bytes([b])] for b in text.encode()]


class Detokenizer:
    """The way of a user's text, told ids alone."""

    def __init__(self, tokenizer):
        self.answer = AnswerText(tokenizer)

    def feed(self, ids):
        return "".join(self.answer.feed([Token(i) for i in ids]))

    def finish(self):
        return "".join(self.answer.finish())


def stream(tokenizer, ids):
    """Pieces after each single id, and the last one."""
    d = Detokenizer(tokenizer)
    return [d.feed([i]) for i in ids], d.finish()


@pytest.mark.parametrize(
    "text",
    ["hi 🙂", f"a {FAMILY} b {FAMILY}", "漢字かな交じり文", "naïve cafés", "𠮷野家 𝕏", "\u200d", "", " ", "\n",
     "a\n\nb", "ไทย", "e\u0301", "\ufffd really in the text \ufffd"],
)  # fmt: skip
def test_s_str_01_no_piece_holds_half_a_character(tokenizer, text):
    """S-STR-01: characters of several byte tokens come whole, and the pieces joined are the text."""
    pieces, last = stream(tokenizer, byte_ids(tokenizer, text))
    assert "".join(pieces) + last == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in [*pieces, last])


def test_s_str_01_an_emoji_in_the_making_delays_no_word_before_it(tokenizer):
    """S-STR-01: "hi " is out at its space, while the four bytes of the emoji arrive one by one."""
    pieces, last = stream(tokenizer, byte_ids(tokenizer, "hi 🙂 there"))
    assert pieces[:7] == ["", "", "hi ", "", "", "", ""]
    assert pieces[7] == "🙂 "
    assert last == "there"


def test_words_newlines_and_ideographs_end_a_piece(tokenizer):
    d = Detokenizer(tokenizer)
    assert d.feed(byte_ids(tokenizer, "a cat and a do")) == "a cat and a "
    assert d.feed(byte_ids(tokenizer, "g")) == ""
    assert d.feed(byte_ids(tokenizer, "\n")) == "dog\n"
    assert d.feed(byte_ids(tokenizer, "one\ntwo")) == "one\n"
    assert d.feed(byte_ids(tokenizer, "漢")) == "two漢"
    assert d.feed(byte_ids(tokenizer, "x")) == ""
    assert d.finish() == "x"
    assert d.finish() == ""


def test_an_ideograph_is_not_held_back_by_the_next_one(tokenizer):
    pieces, last = stream(tokenizer, byte_ids(tokenizer, "漢字𠮷"))
    assert [p for p in pieces if p] == ["漢", "字"]
    assert last == "𠮷"


def test_a_final_invalid_sequence_comes_out_at_the_end_as_in_the_whole(tokenizer):
    ids = [*byte_ids(tokenizer, "ok "), *byte_ids(tokenizer, "🙂")[:3]]
    pieces, last = stream(tokenizer, ids)
    assert "".join(pieces) == "ok "
    assert last == "\ufffd"
    assert tokenizer.decode(ids) == "ok \ufffd"


def test_invalid_bytes_in_the_middle_come_out_once_nothing_can_complete_them(tokenizer):
    half = byte_ids(tokenizer, "🙂")[:2]
    pieces, last = stream(tokenizer, [*half, *byte_ids(tokenizer, " x ")])
    assert pieces[:2] == ["", ""]
    assert "".join(pieces) + last == "\ufffd x "


def test_s_str_01_eight_interleaved_streams(tokenizer):
    """S-STR-01: streams share nothing."""
    texts = [f"{n} {FAMILY} 漢字 naïve {'🙂' * n} end" for n in range(8)]
    ids = [byte_ids(tokenizer, t) for t in texts]
    streams, out = [Detokenizer(tokenizer) for _ in texts], [""] * 8
    for step in range(max(map(len, ids))):
        for n in range(8):
            piece = streams[n].feed(ids[n][step : step + 1])
            assert "\ufffd" not in piece
            out[n] += piece
    assert [out[n] + streams[n].finish() for n in range(8)] == texts


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.lists(st.integers(0, 520), max_size=60), st.data())
def test_any_ids_in_any_grouping_join_to_the_whole(tokenizer, ids, data):
    d, out, at = Detokenizer(tokenizer), "", 0
    while at < len(ids):
        step = data.draw(st.integers(1, 5))
        out += d.feed(ids[at : at + step])
        at += step
    assert out + d.finish() == tokenizer.decode(ids)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.text(max_size=60))
def test_any_text_streams_without_replacement_characters(tokenizer, text):
    pieces, last = stream(tokenizer, byte_ids(tokenizer, text))
    assert "".join(pieces) + last == text
    assert sum(p.count("\ufffd") for p in [*pieces, last]) == text.count("\ufffd")


def test_a_long_stream_costs_linear_work(tokenizer_json):
    """Each id is looked up once, also when no space ever comes."""

    class Counting(Tokenizer):
        looked_up = 0

        def piece(self, token_id):
            Counting.looked_up += 1
            return super().piece(token_id)

    tokenizer = Counting(tokenizer_json)
    d, total = Detokenizer(tokenizer), 0
    for _ in range(20_000):
        total += len(d.feed([30]))
        assert total == 0
    assert len(d.finish()) == 20_000
    assert Counting.looked_up == 20_000
