"""The fixed mix: 24 requests of all skills over 4 small pictures, the same on every machine.

Pure data. Short and long answers, greedy and seeded sampling, with and without reasoning ride together, so that
prefills meet decodes and rows end at different times. Every answer depends on its request alone.
"""

from __future__ import annotations

from pathlib import Path

from gapless.bench.asks import Ask

FOLDER = Path(__file__).resolve().parent.parent / "assets" / "samples"
PICTURES = ("small_0", "small_1", "small_2", "small_3")
"""Drawings like those the bundled model learned from, at most 224 pixels a side: stars and a square on teal, three
squares, a heart and a square, and a tiny ring."""

GREEDY = {"temperature": 0.0, "max_tokens": 48}


def _sampled(seed: int) -> dict[str, float | int]:
    return {"temperature": 0.5, "top_p": 0.9, "seed": seed, "max_tokens": 48}


MIX: tuple[tuple[str, Ask], ...] = (
    ("small_0", Ask("caption", "short", GREEDY)),
    ("small_1", Ask("caption", "normal", GREEDY)),
    ("small_2", Ask("caption", "long", GREEDY)),
    ("small_3", Ask("caption", "normal", _sampled(1))),
    ("small_0", Ask("query", "How many stars are there?", GREEDY)),
    ("small_1", Ask("query", "How many squares are there?", GREEDY)),
    ("small_2", Ask("query", "How many hearts are there?", GREEDY, reasoning=True)),
    ("small_3", Ask("query", "How many shapes are there?", GREEDY, reasoning=True)),
    ("small_0", Ask("query", "What color is the square?", GREEDY)),
    ("small_1", Ask("query", "What is in the picture?", _sampled(2))),
    ("small_2", Ask("query", "Where is the heart?", GREEDY)),
    ("small_3", Ask("query", "What color is the ring?", _sampled(3))),
    ("small_0", Ask("point", "star")),
    ("small_1", Ask("point", "green square")),
    ("small_2", Ask("point", "shape")),
    ("small_3", Ask("point", "ring")),
    ("small_0", Ask("detect", "yellow star")),
    ("small_1", Ask("detect", "square")),
    ("small_2", Ask("detect", "circle")),
    ("small_3", Ask("detect", "red ring")),
    ("small_0", Ask("segment", "pink star")),
    ("small_1", Ask("segment", "square")),
    ("small_2", Ask("segment", "heart")),
    ("small_3", Ask("segment", "ring")),
)
"""(picture, what is asked about it), in the order they are submitted."""


def picture_path(name: str) -> Path:
    """The file of one of the mix's pictures."""
    return FOLDER / f"{name}.png"
