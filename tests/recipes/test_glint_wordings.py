"""Wordings of questions: no two alike, some held out of training, all within the tokenizer's reach."""

from __future__ import annotations

import random

import pytest
from recipes.glint import phrases as say
from recipes.glint import prompts, wordings
from recipes.glint.ask import Ask
from recipes.glint.exam import question_of
from recipes.glint.scenes import make_scene
from recipes.glint.streams import Vocabulary


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary()


def test_held_out_wordings_are_asked_only_when_unseen(vocabulary):
    scene = make_scene(random.Random(4))
    for unseen in (False, True):
        ask = Ask(scene, random.Random(1), vocabulary, unseen=unseen)
        for wording in wordings.all_wordings().values():
            some = {ask.pick(wording) for _ in range(40)}
            assert some <= set(wording.held_out if unseen else wording.trained)


def test_every_worded_skill_has_unseen_questions(vocabulary):
    for maker in prompts.WORDED:
        made = [maker(Ask(make_scene(random.Random(i)), random.Random(i), vocabulary, unseen=True)) for i in range(12)]
        assert any(made), maker.__name__


def test_wordings_are_unique_and_held_out_ones_are_never_trained(vocabulary):
    for name, wording in wordings.all_wordings().items():
        both = wording.trained + wording.held_out
        assert len({text.lower().rstrip("?.") for text in both}) == len(both), name
        assert wording.held_out and 0.04 < len(wording.held_out) / len(both) < 0.26, name
        assert all(vocabulary.tokenizer.decode(vocabulary.encode(text)) == text for text in both)
    assert set(say.HELD_OUT) == {*wordings.all_wordings(), "FAR_AFIELD"}


@pytest.mark.slow
def test_no_question_of_training_is_worded_as_a_held_out_one(vocabulary):
    """A wording held out of one kind of question must not come up in another: "Can you find {any text}?" once did."""

    def asked(maker, seed, unseen):
        rng = random.Random(seed)
        scene = make_scene(rng)
        s = maker(Ask(scene, rng, vocabulary, unseen=unseen))
        return s and question_of(s, scene, vocabulary).text.lower().rstrip("?.")

    trained, unseen = (
        {asked(maker, seed, held_out) for maker in prompts.WORDED for seed in range(500)} - {None}
        for held_out in (False, True)
    )
    assert len(trained) > 3000 and len(unseen) > 2000
    assert not trained & unseen


def test_words_and_numbers_are_answered_as_they_are_printed(vocabulary):
    for text in [*say.WORDS, *map(str, range(1000))]:
        ids = vocabulary.tokenizer.encode(text).ids
        assert ids == vocabulary.encode(text) and vocabulary.tokenizer.decode(ids) == text
        assert len(ids) <= len(text)
