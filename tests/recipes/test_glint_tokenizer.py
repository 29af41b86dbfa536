"""What the rest of the project may rely on in glint's tokenizer.json."""

from __future__ import annotations

import pytest
from recipes.glint import phrases
from recipes.glint.streams import Vocabulary
from recipes.glint.tokenizer import SPECIAL, config


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary()


def test_reserved_ids(vocabulary):
    t = vocabulary.tokenizer
    assert t.get_vocab_size() == 2048
    assert [t.id_to_token(i) for i in range(21)] == SPECIAL
    assert t.decode([*range(21), *t.encode("a star").ids]) == "a star"


def test_every_integer_and_every_path_letter_is_one_token(vocabulary):
    encode = vocabulary.tokenizer.encode
    for piece in [*map(str, range(961)), *"MmLlHhVvCcSsQqTtAaZz-"]:
        ids = encode(piece).ids
        assert len(ids) == 1 and ids[0] > 20, piece


@pytest.mark.parametrize(
    "text",
    ["héllo wörld", "漢字 и текст ☃ 🙂", "2048 1234567 007", "a\n\tb  c ", "x=3.5; y='q'", "How many STARS?!", ""],
)
def test_any_text_round_trips(vocabulary, text):
    t = vocabulary.tokenizer
    assert t.decode(t.encode(text).ids) == text


def test_words_of_the_recipe_are_single_tokens_and_the_cache_agrees(vocabulary):
    for word in [*phrases.KINDS, *phrases.PLURALS, *phrases.COLOURS, *phrases.SIZES, *phrases.GROUNDS]:
        assert len(vocabulary.encode(" " + word)) == 1
    for text in [*phrases.words(), *[t for held in phrases.HELD_OUT.values() for t in held], "What's at the top left?"]:
        assert vocabulary.encode(text) == vocabulary.tokenizer.encode(text).ids


def test_config_is_what_the_recipe_builds(vocabulary):
    assert config(vocabulary.tokenizer) == vocabulary.config
