"""Typed text never becomes a control id; decoding equals the library's."""

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.errors import InvalidCheckpoint, InvalidRequest
from gapless.skills.tokenizer import Tokenizer


def edited(source, **changes):
    return json.dumps(json.loads(source) | changes)


@pytest.fixture(scope="module")
def library(tokenizer_json):
    return tokenizers.Tokenizer.from_str(tokenizer_json)


def control_strings(source):
    return [t["content"] for t in json.loads(source)["added_tokens"]]


def test_s_tok_01_special_strings_are_plain_text(tokenizer, tokenizer_json, library):
    """S-TOK-01: every special string of the file, alone, doubled, and before and after words."""
    strings = control_strings(tokenizer_json)
    assert len(strings) == 21
    for text in strings:
        assert library.encode(text).ids != list(tokenizer.encode(text))
        for typed in (text, text + text, f"{text} what is this", f"what is this {text}", f"a{text}b", f" {text}\n"):
            ids = tokenizer.encode(typed)
            assert tokenizer.special.isdisjoint(ids)
            assert min(ids) > 20
            assert tokenizer.decode(ids) == typed


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.data())
def test_s_tok_01_no_text_reaches_a_special_id(tokenizer, tokenizer_json, data):
    """S-TOK-01: any mix of special strings and other characters, and it comes back as it was."""
    piece = st.one_of(st.sampled_from(control_strings(tokenizer_json)), st.text(max_size=8))
    text = "".join(data.draw(st.lists(piece, max_size=6)))
    ids = tokenizer.encode(text)
    assert tokenizer.special.isdisjoint(ids)
    assert tokenizer.decode(ids) == text


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.text(max_size=60))
def test_ordinary_text_is_encoded_as_by_the_library(tokenizer, library, text):
    assert list(tokenizer.encode(text)) == library.encode(text, add_special_tokens=False).ids


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.lists(st.integers(0, 600), max_size=40))
def test_decode_equals_the_library(tokenizer, library, ids):
    """Special ids skipped, ids beyond the vocabulary too, broken UTF-8 as U+FFFD."""
    assert tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=True)


def test_reserved_ids_count_as_special_even_when_the_file_does_not_say_so(tokenizer_json):
    data = json.loads(tokenizer_json)
    for token in data["added_tokens"]:
        token["special"] = False
    plain = Tokenizer(json.dumps(data), reserved=(5, 6))
    assert plain.special == frozenset(range(21))
    assert plain.decode([5, 6, 21]) == "!"
    assert plain.special.isdisjoint(plain.encode("<|md_reserved_4|>"))


def test_added_runs_of_spaces_stay_text(tokenizer_json):
    """GPT-2 style tokenizers add such runs, and their models were trained on them."""
    data = json.loads(tokenizer_json)
    run = {"id": 490, "content": "    ", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": False}  # fmt: skip
    data["added_tokens"] += [run, run | {"id": 491, "content": "[IMG]"}, run | {"id": 492, "content": "<image>"}]
    t = Tokenizer(json.dumps(data))
    assert 490 in t.encode("a    b")
    assert t.decode(t.encode("a    b")) == "a    b"
    for typed in ("[IMG]", "<image>"):
        assert not {491, 492} & set(t.encode(typed))
    assert t.special == frozenset(range(21)) | {491, 492}


def test_whole_word_lookup_cannot_find_a_special_string(tokenizer_json):
    """With `ignore_merges` the library looks words up before merging; the strings are gone from the vocabulary too."""
    data = json.loads(tokenizer_json)
    data["pre_tokenizer"]["use_regex"] = False
    data["model"]["ignore_merges"] = True
    t = Tokenizer(json.dumps(data))
    assert t.special.isdisjoint(t.encode("<|md_reserved_4|>"))


def test_truncation_padding_and_post_processors_of_the_file_do_not_apply(tokenizer_json, tokenizer):
    source = edited(
        tokenizer_json,
        truncation={"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        padding={"strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                 "pad_type_id": 0, "pad_token": "<|endoftext|>"},
        post_processor={"type": "TemplateProcessing", "pair": [], "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
            "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}]},
    )  # fmt: skip
    text = "a rather long question about a picture"
    assert Tokenizer(source).encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize("text", ["\ud800", "a cat \udfff here", "日本\ud83d"])
def test_s_tok_04_lone_surrogates_are_refused_with_their_position(tokenizer, text):
    """S-TOK-04: the same error whatever happens to the answer."""
    at = next(i for i, c in enumerate(text) if 0xD800 <= ord(c) <= 0xDFFF)
    with pytest.raises(InvalidRequest, match=f"U\\+{ord(text[at]):04X} at position {at}") as caught:
        tokenizer.encode(text, param="question")
    assert caught.value.param == "question"


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.text(max_size=200))
def test_fewest_is_a_lower_bound(tokenizer, text):
    assert tokenizer.fewest(text) <= len(tokenizer.encode(text))


def test_fewest_allows_for_a_normaliser(tokenizer_json):
    t = Tokenizer(edited(tokenizer_json, normalizer={"type": "NFC"}))
    text = "\u1112\u1161\u11ab" * 500
    assert t.fewest(text) <= len(t.encode(text))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "JSON"),
        ("[]", "BPE"),
        ("{}", "BPE"),
        ('{"model": {"type": "WordPiece", "vocab": {}}}', "BPE"),
        ('{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "ByteLevel"),
    ],
)
def test_other_tokenizers_are_refused(source, reason):
    with pytest.raises(InvalidCheckpoint, match=reason):
        Tokenizer(source)


def test_a_broken_file_is_refused(tokenizer_json, tmp_path):
    data = json.loads(tokenizer_json)
    data["model"]["merges"] = ["one_part_only"]
    with pytest.raises(InvalidCheckpoint, match="cannot be loaded"):
        Tokenizer(json.dumps(data))
    with pytest.raises(InvalidCheckpoint, match=r"missing\.json"):
        Tokenizer.from_file(tmp_path / "missing.json")
