"""The bundled adapter belongs to the bundled weights, and with it glint names a shape that it does not know without."""

from __future__ import annotations

import json
import random

import pytest
import torch
from recipes.glint.ask import Ask
from recipes.glint.decode import greedy
from recipes.glint.lora import digest, fresh_net
from recipes.glint.low_rank import load_adapter
from recipes.glint.model import Glint
from recipes.glint.new_word import SHAPES, Cast, Stage
from recipes.glint.phrases import COLOURS, KINDS
from recipes.glint.pictures import embed_pictures
from recipes.glint.streams import ASSETS, Vocabulary

FOLDER = ASSETS / "adapters" / "moon"
ASKED = 6


@pytest.fixture(scope="module")
def card() -> dict:
    return json.loads((FOLDER / "adapter.json").read_text(encoding="utf-8"))


def test_it_was_trained_for_the_bundled_weights_and_forgets_less_than_a_point(card):
    assert card["base"]["sha256"] == digest(ASSETS / "model.safetensors")
    assert (FOLDER / "adapter.safetensors").stat().st_size < 500_000
    new, old = card["scores"]["new"]["all"], card["scores"]["old"]["all"]
    assert new["after"] > 0.85 and new["before"] < 0.3 and old["after"] > old["before"] - 0.01


def lone(stage: Stage, seed: int) -> tuple[Cast, str]:
    """A cast with one new thing, and its colour, which no other thing has."""
    rng = random.Random(seed)
    while True:
        cast = stage.cast(rng, 4 / 3, 1.0)
        colours = [t.colour for t in cast.scene.things]
        new = cast.new_things()
        if len(new) == 1 and new[0].size and colours.count(new[0].colour) == 1:
            return cast, COLOURS[new[0].colour]


def answers(net: Glint, stage: Stage, casts: list[tuple[Cast, str]], question: str) -> list[str]:
    image = embed_pictures(net, [stage.picture(cast, 224, 168, 1) for cast, _ in casts])
    streams = []
    for cast, colour in casts:
        ask = Ask(cast.scene, random.Random(0), stage.vocabulary)
        ask.vary = str  # the question as it stands
        streams.append(ask.query("shape", question.format(colour=colour)))
    replies = greedy(net, image, range(len(casts)), streams, 12)
    return [stage.vocabulary.tokenizer.decode(r.ids) for r in replies]


def test_it_names_the_new_shape_and_without_it_glint_does_not(card):
    stage, cpu = Stage(SHAPES[card["word"]], Vocabulary()), torch.device("cpu")
    casts = [lone(stage, seed) for seed in range(ASKED)]
    plain, adapted = (fresh_net(ASSETS / "model.safetensors", cpu) for _ in range(2))
    load_adapter(adapted, FOLDER / "adapter.safetensors")
    shape, there = "What shape is the {colour} object?", f"Is there a {card['word']}?"
    assert answers(adapted, stage, casts, shape) == [card["word"]] * ASKED
    assert answers(adapted, stage, casts, there) == ["yes"] * ASKED
    assert set(answers(plain, stage, casts, shape)) <= {*KINDS, *(f"There is no {c} shape." for c in COLOURS)}
    assert answers(plain, stage, casts, there) == ["no"] * ASKED
