"""Answers with stop strings, however tokens and bytes are cut: text, what is held back, the tokens that are listed."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.records import Token
from gapless.skills.answer import AnswerText

WHOLE = ["a", "b", " ", "\n", "é", "漢", "🙂", "\ufffd"]
PIECES = [b"", *(text.encode() for text in WHOLE), *(bytes([byte]) for byte in "é漢🙂".encode()), b"ab", b"b a"]
PIECES += [b"\xa9a", "字".encode()[:2], b"\x82 ", b"\xff", b"a\xf0", "x🙂".encode()[:-1], b"\xe0", b"\x80"]
STOPS = ["a", "ab", "b a", "🙂", "é", "a\ufffd", "\ufffd", "\ufffda", "ab\n", "漢a", "aba"]


class Table:
    """A tokenizer whose ids stand for `PIECES`."""

    def piece(self, token_id: int) -> bytes:
        return PIECES[token_id]


def spans(data: bytes) -> list[tuple[str, int]]:
    """Characters with the byte at which each begins; what is none is U+FFFD, as `bytes.decode` has it."""
    found, at = [], 0
    while at < len(data):
        try:
            data[at:].decode()
            good, bad = len(data), len(data)
        except UnicodeDecodeError as error:
            good, bad = at + error.start, at + error.end
        for char in data[at:good].decode():
            found.append((char, at))
            at += len(char.encode())
        if good < bad:
            found.append(("\ufffd", good))
        at = bad
    return found


def expected(ids: Sequence[int], stops: Sequence[str]) -> tuple[str, list[int]]:
    """The text up to the earliest stop, and the ids whose first byte is of one of its characters."""
    data = b"".join(PIECES[id] for id in ids)
    chars = spans(data)
    text = "".join(char for char, _ in chars)
    assert text == data.decode("utf-8", "replace")
    text = text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]
    listed, place = [], 0
    for id in ids:
        began = sum(start <= place for _, start in chars) - 1
        if PIECES[id] and began < len(text):
            listed.append(id)
        place += len(PIECES[id])
    return text, listed


ids = st.lists(st.integers(0, len(PIECES) - 1), max_size=14)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(ids, st.lists(st.sampled_from(STOPS), max_size=3), st.lists(st.integers(1, 5), max_size=14))
def test_text_and_tokens_do_not_depend_on_the_cut(ids, stops, sizes):
    """Whole, token by token, and in groups; never a character too many, and never one taken back."""
    text, listed = expected(ids, stops)
    groups, rest = [], ids
    for size in sizes:
        groups, rest = [*groups, rest[:size]], rest[size:]
    ways = [[ids], [[id] for id in ids], [*groups, rest]]
    overs = set()
    for way in ways:
        answer, given, told, before = AnswerText(Table(), stops, scored=True), "", [], 0
        for group in way:
            before += 0 if answer.over else len(group)
            given += "".join(answer.feed([Token(id, logprob=-id) for id in group]))
            told += answer.scores_from(len(told), len(given))
            assert text.startswith(given)
        given += "".join(answer.finish())
        told += answer.scores_from(len(told), len(given))
        assert given == text == answer.text
        assert [one["logprob"] for one in told] == [-id for id in listed]
        assert answer.scores()["logprobs"] == told
        overs.add(answer.over)
    assert len(overs) == 1, "whether it stopped depends on the cut"
