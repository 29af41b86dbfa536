"""The bundled pictures are what the generator draws, and the bundled weights answer them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from recipes.glint.decode import greedy
from recipes.glint.export import load_weights
from recipes.glint.model import Glint
from recipes.glint.pictures import embed_pictures
from recipes.glint.samples import SAMPLES, SMALL, sample_scene, suggestions
from recipes.glint.scenes import draw
from recipes.glint.streams import ASSETS, Stream, Vocabulary

FOLDER = ASSETS.parent / "samples"


@pytest.fixture(scope="module")
def listing() -> list[dict]:
    return json.loads(Path(FOLDER / "samples.json").read_text(encoding="utf-8"))["pictures"]


@pytest.mark.parametrize("name", [*SAMPLES, *SMALL])
def test_pictures_are_what_the_generator_draws(name):
    width, height, seed = {**SAMPLES, **SMALL}[name]
    drawn = draw(sample_scene(width, height, seed), width, height, seed).astype(int)
    stored = np.asarray(Image.open(FOLDER / name)).astype(int)
    assert stored.shape == drawn.shape and np.abs(stored - drawn).max() <= 1


def test_samples_json_tells_the_truth(listing):
    for entry in listing:
        truth = suggestions(sample_scene(entry["width"], entry["height"], entry["seed"]))
        assert {k: entry[k] for k in truth} == truth


def test_bundled_weights_answer_the_samples(listing):
    v = Vocabulary()
    net = Glint(v.config).eval()
    load_weights(net, ASSETS / "model.safetensors")
    image = embed_pictures(net, [Image.open(FOLDER / entry["file"]) for entry in listing])
    for i, entry in enumerate(listing):
        asked = entry["questions"]
        prompts = [v.prompt("query", v.encode(q["question"]), (3,)) for q in asked]
        replies = greedy(net, image[i : i + 1], [0] * len(asked), [Stream("query").feed(p) for p in prompts], 12)
        assert [v.tokenizer.decode(r.ids) for r in replies] == [q["answer"] for q in asked]
        wanted = entry["objects"]
        prompts = [v.prompt("detect", v.encode(" " + o["object"])) for o in wanted]
        replies = greedy(net, image[i : i + 1], [0] * len(wanted), [Stream("detect").feed(p) for p in prompts], 24)
        for reply, o in zip(replies, wanted, strict=True):
            assert len(reply.sizes) == len(o["boxes"]), o["object"]
            for x, box in zip(reply.coords[::2], o["boxes"], strict=True):
                assert abs(x - (box["x_min"] + box["x_max"]) / 2) < 0.02
    captions = [Stream("caption").feed(v.templates["caption"]["normal"]) for _ in listing]
    replies = greedy(net, image, range(len(listing)), captions, 60)
    assert [v.tokenizer.decode(r.ids) for r in replies] == [e["captions"]["normal"] for e in listing]


def test_bundled_weights_are_bfloat16():
    from safetensors.torch import load_file

    assert {t.dtype for t in load_file(str(ASSETS / "model.safetensors")).values()} == {torch.bfloat16}
