"""The fixed mix: 24 requests of all skills over 4 small pictures, the same on every machine.

Pure data. Short and long answers, greedy and seeded sampling, with and without reasoning ride together, so that
prefills meet decodes and rows end at different times. Every answer depends on its request alone.
"""

from __future__ import annotations

from pathlib import Path

from gapless.bench.asks import Ask

FOLDER = Path(__file__).resolve().parent.parent / "assets" / "mix"
PICTURES = ("stars", "circles", "triangles", "squares")
"""Drawn like the pictures the bundled model learned from; at most 256 pixels a side."""

GREEDY = {"temperature": 0.0, "max_tokens": 48}


def _sampled(seed: int) -> dict[str, float | int]:
    return {"temperature": 0.5, "top_p": 0.9, "seed": seed, "max_tokens": 48}


MIX: tuple[tuple[str, Ask], ...] = (
    ("stars", Ask("caption", "short", GREEDY)),
    ("circles", Ask("caption", "normal", GREEDY)),
    ("triangles", Ask("caption", "long", GREEDY)),
    ("squares", Ask("caption", "normal", _sampled(1))),
    ("stars", Ask("query", "How many stars are there?", GREEDY)),
    ("circles", Ask("query", "How many circles are there?", GREEDY)),
    ("triangles", Ask("query", "How many triangles are there?", GREEDY, reasoning=True)),
    ("squares", Ask("query", "How many stars are there?", GREEDY, reasoning=True)),
    ("stars", Ask("query", "What color is the circle?", GREEDY)),
    ("circles", Ask("query", "What color is the heart?", _sampled(2))),
    ("triangles", Ask("query", "Where is the heart?", GREEDY)),
    ("squares", Ask("query", "What is in the picture?", _sampled(3))),
    ("stars", Ask("point", "star")),
    ("circles", Ask("point", "blue circle")),
    ("triangles", Ask("point", "triangle")),
    ("squares", Ask("point", "star")),
    ("stars", Ask("detect", "red star")),
    ("circles", Ask("detect", "circle")),
    ("triangles", Ask("detect", "diamond")),
    ("squares", Ask("detect", "square")),
    ("stars", Ask("segment", "circle")),
    ("circles", Ask("segment", "heart")),
    ("triangles", Ask("segment", "blue star")),
    ("squares", Ask("segment", "heart")),
)
"""(picture, what is asked about it), in the order they are submitted."""


def picture_path(name: str) -> Path:
    """The file of one of the mix's pictures."""
    return FOLDER / f"{name}.png"
