"""Draw the bundled sample pictures and write ``samples.json``: what to ask about them, and the truth.

python -m recipes.glint.samples --out src/gapless/assets/samples
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from PIL import Image
from recipes.glint import phrases as say
from recipes.glint.ask import Box, Look, text_noun
from recipes.glint.new_word import SHAPES, Stage
from recipes.glint.prompts import long_caption, normal_caption, outline_text, short_caption
from recipes.glint.scenes import Scene, describe, draw, make_scene
from recipes.glint.streams import Vocabulary

SAMPLES = {
    "shapes_wide.png": (640, 480, 2362), "shapes_tall.png": (420, 600, 1954), "shapes_square.png": (480, 480, 9837),
}  # fmt: skip
"""Width, height and seed: a printed word; shapes that overlap, on checks; a printed number on a texture."""
SMALL = {
    "small_0.png": (224, 224, 3), "small_1.png": (200, 150, 14), "small_2.png": (150, 200, 25),
    "small_3.png": (96, 96, 36),
}  # fmt: skip

NEW = {"moon.png": ("moon", 240, 180, 7)}
"""Word, width, height and seed: a picture of what the weights alone do not know, for the adapter of that name."""


def sample_scene(width: int, height: int, seed: int) -> Scene:
    """The scene of a sample picture."""
    return make_scene(random.Random(seed), width / height)


def box_of(box: Box) -> dict[str, float]:
    """Edges of a box given as centre and extent."""
    x, y, w, h = box
    edges = {"x_min": x - w / 2, "y_min": y - h / 2, "x_max": x + w / 2, "y_max": y + h / 2}
    return {name: round(value, 4) for name, value in edges.items()}


def suggestions(scene: Scene) -> dict[str, Any]:
    """Questions with their answers, and objects with their boxes, about one scene."""
    things = scene.things
    look = Look(kind=things[0].kind)
    alone = [t for t in things if sum(o.kind == t.kind for o in things) == 1]
    absent = next(k for k in range(len(say.KINDS)) if all(t.kind != k for t in things))
    plural = look.phrase(many=True)
    questions = [
        {"question": "How many shapes are there?", "answer": str(len(things))},
        {"question": f"How many {plural} are there?", "answer": str(sum(look.matches(t) for t in things))},
        {"question": f"Is there {say.article(say.KINDS[absent])}?", "answer": "no"},
        {"question": "What color is the background?", "answer": say.GROUNDS[scene.ground]},
    ]
    for t in alone[:2]:
        name = say.KINDS[t.kind]
        questions.append({"question": f"What color is the {name}?", "answer": say.COLOURS[t.colour]})
        questions.append({"question": f"How big is the {name}?", "answer": say.SIZES[t.size]})
    objects = []
    wanted = [Look(), look, *[Look(colour=t.colour, kind=t.kind) for t in things[-2:]], Look(kind=absent)]
    for want in dict.fromkeys(wanted):
        found = [i for i, t in enumerate(things) if want.matches(t)]
        objects.append({"object": want.phrase(), "boxes": [box_of(scene.box(things[i])) for i in found]})
    last, printed = things[-1], scene.printed
    box: dict[str, float] = {}
    if printed:
        questions.append({"question": "What does it say?", "answer": printed.text})
        box = box_of((printed.x, printed.y, printed.width, printed.height))
        objects.append({"object": "the " + text_noun(printed), "boxes": [box]})
    out: dict[str, Any] = {
        "captions": {"short": short_caption(scene), "normal": normal_caption(scene), "long": long_caption(scene)},
        "questions": questions,
        "objects": objects,
        "segment": {"object": f"{say.COLOURS[last.colour]} {say.KINDS[last.kind]}",
                    "outline": " ".join(outline_text(last.kind))},
        "things": [{"name": describe(t), "x": round(t.x, 4), "y": round(t.y, 4), "box": box_of(scene.box(t))}
                   for t in things],
    }  # fmt: skip
    if printed:
        out["printed"] = {"text": printed.text, "x": round(printed.x, 4), "y": round(printed.y, 4), "box": box}
    return out


def main() -> None:
    """Write the pictures and their description."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("src/gapless/assets/samples"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    listing = []
    for name, (width, height, seed) in {**SAMPLES, **SMALL}.items():
        scene = sample_scene(width, height, seed)
        Image.fromarray(draw(scene, width, height, seed)).save(args.out / name, optimize=True)
        if name in SAMPLES:
            listing.append({"file": name, "width": width, "height": height, "seed": seed, **suggestions(scene)})
    for name, (word, width, height, seed) in NEW.items():
        stage = Stage(SHAPES[word], Vocabulary())
        cast = stage.cast(random.Random(seed), width / height, 1.0)
        stage.picture(cast, width, height, seed).save(args.out / name, optimize=True)
    text = json.dumps({"pictures": listing, "small": list(SMALL)}, indent=1)
    (args.out / "samples.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
