"""The bundled pictures show what their listing says, and the bundled weights answer them.

The listing is checked against the pixels, not against today's generator: pictures and weights are renewed together, and
between two renewals the generator may learn to draw other scenes from the same seeds.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from recipes.glint.decode import greedy
from recipes.glint.export import load_weights
from recipes.glint.grounds import GROUND_RGB
from recipes.glint.model import Glint
from recipes.glint.phrases import COLOURS, GROUNDS, KINDS, PATTERNS, SIZES
from recipes.glint.pictures import embed_pictures
from recipes.glint.samples import NEW, SAMPLES, SMALL, suggestions
from recipes.glint.scenes import COLOUR_RGB, Printed, Scene, Thing
from recipes.glint.shapes import EXTENTS, distance
from recipes.glint.streams import ASSETS, Stream, Vocabulary

FOLDER = ASSETS.parent / "samples"


@pytest.fixture(scope="module")
def listing() -> list[dict]:
    return json.loads(Path(FOLDER / "samples.json").read_text(encoding="utf-8"))["pictures"]


def rebuilt(entry: dict) -> Scene:
    """The scene that a listing's names, boxes and captions describe; colours are those of the palette."""
    root = math.sqrt(entry["width"] / entry["height"])
    ground, pattern = (g for g in entry["captions"]["long"].split(" on a ")[1].split(" background")[0].split()[::-1])
    things = []
    for listed in entry["things"]:
        size, colour, kind = listed["name"].split()
        k, c, box = KINDS.index(kind), COLOURS.index(colour), listed["box"]
        r = (box["x_max"] - box["x_min"]) * root / 2 / EXTENTS[k][0]
        things.append(Thing(k, c, SIZES.index(size), listed["x"], listed["y"], r, COLOUR_RGB[c]))
    g = GROUNDS.index(ground)
    rgb = GROUND_RGB[g]
    listed = entry.get("printed")
    printed = None
    if listed:
        x_min, y_min, x_max, y_max = (listed["box"][edge] for edge in ("x_min", "y_min", "x_max", "y_max"))
        printed = Printed(listed["text"], listed["x"], listed["y"], x_max - x_min, y_max - y_min, (1.0, 1.0, 1.0))
    return Scene(root * root, tuple(things), g, PATTERNS.index(pattern), rgb, rgb, 0.0, 0.1, 0.0, printed)


def test_pictures_are_there_in_their_sizes():
    for name, (width, height, _) in {**SAMPLES, **SMALL, **{name: new[1:] for name, new in NEW.items()}}.items():
        with Image.open(FOLDER / name) as picture:
            assert picture.size == (width, height) and picture.mode == "RGB"


def test_pictures_show_what_the_listing_says(listing):
    assert [entry["file"] for entry in listing] == list(SAMPLES)
    for entry in listing:
        stored = np.asarray(Image.open(FOLDER / entry["file"])).astype(float) / 255
        scene = rebuilt(entry)
        root, inside = math.sqrt(scene.aspect), np.zeros(stored.shape[:2], bool)
        x = (np.arange(entry["width"]) + 0.5)[None, :] / entry["width"]
        y = (np.arange(entry["height"]) + 0.5)[:, None] / entry["height"]
        nearest = np.linalg.norm(stored[..., None, :] - np.asarray(COLOUR_RGB), axis=-1).argmin(-1)
        for t in scene.things:
            kind = np.full((1, 1), t.kind)
            away = distance(np, (x - t.x) * root / t.r, (y - t.y) / root / t.r, kind)
            assert (nearest[away < -0.1] == t.colour).mean() > 0.7  # others may hide a quarter of it
            inside |= away < 0.05
        behind = np.median(stored[~inside], axis=0)
        assert np.linalg.norm(np.asarray(GROUND_RGB) - behind, axis=1).argmin() == scene.ground


def test_samples_json_tells_the_truth(listing):
    for entry in listing:
        scene = rebuilt(entry)
        truth = suggestions(scene)
        assert {k: truth[k] for k in ("captions", "segment")} == {k: entry[k] for k in ("captions", "segment")}
        assert all(question in entry["questions"] for question in truth["questions"])
        for mine, listed in zip(truth["objects"], entry["objects"], strict=True):
            assert mine["object"] == listed["object"] and len(mine["boxes"]) == len(listed["boxes"])
            for box, other in zip(mine["boxes"], listed["boxes"], strict=True):
                assert box == pytest.approx(other, abs=5e-4)


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
