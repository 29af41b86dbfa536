"""Streams follow the templates of config.json and answer truthfully."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from recipes.glint import prompts
from recipes.glint.ask import Ask
from recipes.glint.scenes import Printed, make_scene
from recipes.glint.streams import (
    COORD,
    EOS,
    SIZE,
    Stream,
    Vocabulary,
    bin_size,
    blank,
    coord_bin,
    pack_streams,
    size_bin,
)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary()


@pytest.fixture(scope="module")
def streams(vocabulary) -> list[Stream]:
    out = []
    for seed in range(60):
        rng = random.Random(seed)
        out += prompts.fill(make_scene(rng), rng, vocabulary, 383, 0.0)
    return out


def test_every_prompt_is_a_template(vocabulary, streams):
    templates = vocabulary.templates
    for s in streams:
        prompt = s.ids[: s.prompt_length]
        if s.skill.startswith("caption"):
            assert prompt == templates["caption"][s.skill.split("_")[1]]
            continue
        name = s.skill if s.skill in ("point", "detect", "segment") else "query"
        if not s.picture:
            assert prompt.pop(0) == EOS
        prefix, suffix = templates[name]["prefix"], templates[name]["suffix"]
        assert prompt[: len(prefix)] == prefix
        extra = [] if name != "query" else [4] if s.skill.startswith("reason") else [3]
        assert prompt[-len(suffix + extra) :] == suffix + extra


def test_targets_are_the_next_ids_and_the_last_one_ends(streams):
    for s in streams:
        n = s.prompt_length
        assert s.target[: n - 1] == [-1] * (n - 1)
        assert s.target[n - 1 :] == [*s.ids[n:], EOS]


def test_point_and_detect_streams_have_their_pattern(streams):
    for s in streams:
        if s.skill in ("point", "detect"):
            unit = [COORD, COORD] if s.skill == "point" else [COORD, COORD, SIZE]
            answer = s.answer_ids()
            assert answer == unit * (len(answer) // len(unit))
            xs = [s.coord[s.prompt_length + i] for i in range(0, len(answer), len(unit))]
            assert xs == sorted(xs)


def test_reasoning_has_one_answer_id_between_thought_and_answer(streams):
    thoughts = [s for s in streams if s.skill.startswith("reason")]
    assert thoughts
    for s in thoughts:
        assert s.answer_ids().count(3) == 1 and s.answer_ids().count(7) == s.answer_ids().count(9)


def test_outline_pieces_are_single_tokens(vocabulary):
    for kind in range(8):
        pieces = prompts.outline_text(kind)
        assert pieces[0] == "M" and pieces[3] == "L" and pieces[-1] == "Z"
        assert all(len(vocabulary.encode(piece)) == 1 for piece in pieces)


def test_captions_are_what_the_grammar_says(vocabulary):
    written = {"short": prompts.short_caption, "normal": prompts.normal_caption, "long": prompts.long_caption}
    for seed in range(90):
        scene = make_scene(random.Random(seed))
        if seed % 3 == 0:
            scene = replace(scene, printed=Printed(("STOP", "417")[seed % 2], 0.5, 0.2, 0.3, 0.1, (0.0, 0.0, 0.0)))
        s = prompts.caption(Ask(scene, random.Random(seed), vocabulary))
        text = written[s.skill.split("_")[1]](scene)
        assert vocabulary.tokenizer.encode(text).ids == s.answer_ids()


def test_captions_mention_the_text_last():
    one = replace(make_scene(random.Random(3)), printed=Printed("417", 0.5, 0.2, 0.3, 0.1, (0.0, 0.0, 0.0)))
    one = replace(one, things=one.things[:1], ground=5)
    assert " and the number 417 on a navy background." in prompts.short_caption(one)
    assert prompts.normal_caption(one).endswith(" and the number 417.")
    assert prompts.long_caption(one).endswith(" and the number 417 at the top.")


def test_the_longest_caption_is_far_from_the_limit(vocabulary):
    scene = make_scene(random.Random(3))
    thing = replace(scene.things[0], size=1, colour=7, kind=7, x=0.9, y=0.9)
    printed = Printed("SCHOOL", 0.5, 0.2, 0.3, 0.1, (0.0, 0.0, 0.0))
    full = replace(scene, things=(thing,) * 8, ground=7, pattern=4, printed=printed)
    assert len(vocabulary.encode(prompts.long_caption(full))) < 128


def test_streams_fit_the_context(vocabulary):
    for seed in range(30):
        rng = random.Random(seed)
        assert all(len(s) < 200 for s in prompts.fill(make_scene(rng), rng, vocabulary, 700, 0.0))


def test_counts_are_true(vocabulary):
    for seed in range(60):
        scene = make_scene(random.Random(seed))
        s = prompts.questions.count(Ask(scene, random.Random(seed), vocabulary))
        assert int(vocabulary.tokenizer.decode(s.answer_ids())) <= len(scene.things)


def test_bins():
    assert coord_bin(0.5) == 512 and coord_bin(1.0) == 1023
    assert size_bin(1.0) == 1023 and bin_size(size_bin(0.25)) == pytest.approx(0.25)


def test_packing_keeps_streams_apart(vocabulary):
    rng = random.Random(5)
    scene = make_scene(rng)
    some = prompts.fill(scene, rng, vocabulary, 200, 3.0)
    packed = blank(1, 200)
    pack_streams(packed, 0, some, [0] * len(scene.things))
    used = sum(len(s) for s in some)
    assert (packed["slot"][0] > 0).sum() == used and packed["slot"][0].max() == len(some)
    assert packed["ids"][0, : len(some[0])].tolist() == some[0].ids
    assert packed["position"][0, 0] == (257 if some[0].picture else 0)
