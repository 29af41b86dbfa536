"""Both generations in float32 against independent implementations: every picture of the golden checkpoints.

The crops are made here by a few lines of Pillow, so that `models/` is tested by itself.
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from gapless.models.base import KVCache, Model
from gapless.models.registry import load_model

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
FOLDERS = ("moondream2-2025-06-21-a", "moondream2-2025-06-21-b")
THIRD = ("moondream3-a", "moondream3-b")
PICTURES = ("small_100x80", "square_378", "photo_640x480", "tall_700x1600")
QUICK = [(FOLDERS[i % 2], p) for i, p in enumerate(PICTURES)] + list(zip(THIRD, PICTURES[1:3], strict=True))
"""Each folder and each picture of a generation, but not each with each."""
EVERY = [(f, p) for f in FOLDERS for p in PICTURES] + [(f, p) for f in THIRD for p in PICTURES[1:3]]
EVERY = [pytest.param(*one, marks=() if one in QUICK else pytest.mark.slow) for one in EVERY]
TILES = {"small_100x80": (1, 1), "square_378": (1, 1), "photo_640x480": (2, 4), "tall_700x1600": (4, 2)}
TOLERANCE = 5e-6
PREFIX = 730
COORD, SIZE, END = 5, 6, 0
PLAIN = (-1.0, -1.0)


@dataclass
class Golden:
    model: Model
    numbers: dict[str, Tensor]
    answers: dict[str, Any]
    folder: Path


@cache
def golden(name: str) -> Golden:
    folder = GOLDEN / name
    answers = json.loads((folder / "expected.json").read_text())
    return Golden(load_model(folder).model, load_file(folder / "expected.safetensors"), answers, folder)


@cache
def encoded(name: str, picture: str) -> Tensor:
    g = golden(name)
    rows, columns = TILES[picture]
    with torch.inference_mode():
        return g.model.encode_picture(cut(g.folder / f"{picture}.png", rows, columns), (rows, columns))


def cut(path: Path, rows: int, columns: int) -> Tensor:
    image = Image.open(path).convert("RGB")
    side, margin, window = 378, 56, 266
    size = (window * columns + 2 * margin, window * rows + 2 * margin)
    local = np.asarray(image.resize(size, Image.Resampling.LANCZOS))
    crops = [np.asarray(image.resize((side, side), Image.Resampling.LANCZOS))]
    for top in range(0, rows * window, window):
        crops += [local[top : top + side, left : left + side] for left in range(0, columns * window, window)]
    return torch.from_numpy(np.stack(crops))


class Sequence:
    """One sequence behind a picture, decoded greedily by hand."""

    def __init__(self, m: Model, picture: Tensor | None) -> None:
        pages = 56
        self.m = m
        self.cache: KVCache = m.new_cache(1 + pages, 16)
        self.cache.poison(tuple(range(1, 1 + pages)))
        self.table = (torch.randperm(pages, generator=torch.Generator().manual_seed(1)) + 1)[None]
        self.position = 0
        if picture is not None:
            m.prefill_prefix(picture, self.cache, self.table[0])
            self.position = PREFIX

    def feed(self, ids: list[int], values: list[tuple[float, float]] | None = None) -> Tensor:
        """Hidden state [1, dim] of the last of `ids`."""
        x = self.m.embed(torch.tensor(ids), torch.tensor(values or [PLAIN] * len(ids)))
        positions = torch.arange(self.position, self.position + len(ids))
        self.position += len(ids)
        return self.m.forward(x, positions, self.table.expand(len(ids), -1), self.cache)[-1:]

    def choose(self, hidden: Tensor, banned: int | None = None) -> int:
        logits = self.m.logits(hidden)[0]
        if banned is not None:
            logits[banned] = -math.inf
        return int(logits.argmax())


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def prompt(g: Golden, skill: str, text: str) -> list[int]:
    template = json.loads((g.folder / "config.json").read_text())["tokenizer"]["templates"][skill]
    ids = Tokenizer.from_file(str(g.folder / "tokenizer.json")).encode(text).ids
    return [*template["prefix"], *ids, *template["suffix"]]


def difference(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def query_ids(g: Golden, picture: str) -> list[int]:
    named = g.answers[picture]
    ids: list[int] = named.get("query_prompt_ids") or named["query"]["prompt_ids"]
    return ids


@pytest.mark.parametrize(("name", "picture"), EVERY)
def test_embeddings_hidden_and_logits(name: str, picture: str) -> None:
    g = golden(name)
    assert list(TILES[picture]) == g.answers[picture].get("tiling", list(TILES[picture]))
    embeddings = encoded(name, picture)
    assert difference(embeddings, g.numbers[f"{picture}.image_embeds"]) < TOLERANCE
    hidden = Sequence(g.model, embeddings).feed(query_ids(g, picture))
    assert difference(hidden[0], g.numbers[f"{picture}.query_prefill_hidden_last"]) < TOLERANCE
    logits = g.model.logits(hidden)[0]
    assert difference(logits, g.numbers[f"{picture}.query_prefill_logits"]) < TOLERANCE


@pytest.mark.parametrize("name", FOLDERS)
def test_a_greedy_answer_token_by_token(name: str) -> None:
    g, picture = golden(name), "small_100x80"
    expected = g.answers[picture]["query"]["token_ids"]
    s = Sequence(g.model, encoded(name, picture))
    ids = [s.choose(s.feed(g.answers[picture]["query_prompt_ids"]))]
    while len(ids) < len(expected):
        ids.append(s.choose(s.feed(ids[-1:]), banned=3))
    assert ids == expected


@pytest.mark.parametrize("name", THIRD)
def test_an_answer_of_the_third_generation_goes_on_past_the_answer_id(name: str) -> None:
    g, picture = golden(name), "square_378"
    expected = g.answers[picture]["query"]["token_ids"]
    s = Sequence(g.model, encoded(name, picture))
    ids = [s.choose(s.feed(query_ids(g, picture)))]
    while len(ids) < len(expected):
        ids.append(s.choose(s.feed(ids[-1:])))
    assert ids == expected


@pytest.mark.parametrize("name", [*FOLDERS, *THIRD])
def test_boxes_by_the_region_heads(name: str) -> None:
    g, picture = golden(name), "square_378"
    expected = g.answers[picture]["detect_constrained"]
    s = Sequence(g.model, encoded(name, picture))
    hidden = s.feed(prompt(g, "detect", " " + expected["object"]))
    boxes: list[dict[str, float]] = []
    while len(boxes) < expected["max_objects"]:
        logits = g.model.logits(hidden)[0]
        if logits[COORD] < logits[END]:
            break
        x = float(g.model.coord_value(hidden))
        hidden = s.feed([COORD], [(x, -1.0)])
        y = float(g.model.coord_value(hidden))
        hidden = s.feed([COORD], [(y, -1.0)])
        w, h = g.model.size_value(hidden)[0].tolist()
        hidden = s.feed([SIZE], [(w, h)])
        boxes.append({"x_min": x - w / 2, "y_min": y - h / 2, "x_max": x + w / 2, "y_max": y + h / 2})
    assert len(boxes) == len(expected["objects"])
    for box, right in zip(boxes, expected["objects"], strict=True):
        assert box == pytest.approx(right, abs=1e-7)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_question_without_a_picture(name: str) -> None:
    g = golden(name)
    entry = g.answers["text_only"]["query"]
    s = Sequence(g.model, None)
    ids = [s.choose(s.feed([0, *prompt(g, "query", entry["question"]), 3]))]
    while len(ids) < len(entry["token_ids"]):
        ids.append(s.choose(s.feed(ids[-1:]), banned=3))
    assert ids == entry["token_ids"]
