"""The library against an independent implementation: all entries of a golden folder at once, at depth 2, in float32.

Text, token ids, points and boxes are equal, not close. Boxes are expected clamped to the picture, as the library
returns them; point and detect by the constrained rule. The adapter's entries are not asked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import gapless
from gapless.api.channel import Channel
from gapless.skills.base import Ask

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
FOLDERS = ("moondream2-2025-06-21-a", "moondream2-2025-06-21-b", "moondream3-a", "moondream3-b")
SLOW = ("moondream2-2025-06-21-b", "moondream3-b")
UNASKED = ("point", "detect")  # by the reference's rule over the whole vocabulary


@dataclass
class Outcome:
    """What the engine said to every entry, and how it was run."""

    answers: dict[tuple[str, str], tuple[list[int], dict[str, Any]]] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)


def entries(folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    expected = json.loads((GOLDEN / folder / "expected.json").read_text())
    return {
        (picture, name): entry
        for picture, named in expected.items()
        for name, entry in named.items()
        if isinstance(entry, dict) and name not in UNASKED and "lora" not in name and "sha256" not in name
    }


def asking(vlm: gapless.VLM, name: str, entry: dict[str, Any]) -> Any:
    settings = {"temperature": 0} | {k: entry[k] for k in ("max_tokens", "max_objects") if k in entry}
    skill, _, kind = name.partition("_")
    if skill == "caption":
        return vlm.desk.caption(kind, settings)
    if skill == "query":
        return vlm.desk.query(entry["question"], settings, kind == "reasoning", entry.get("spatial_refs"))
    assert kind == "constrained"
    if skill == "point":
        return vlm.desk.point(entry["object"], settings, None)
    return vlm.desk.detect(entry["object"], settings)


@cache
def outcome(folder: str) -> Outcome:
    """Ask everything, then read everything."""
    out = Outcome()
    with gapless.load(GOLDEN / folder, dtype="float32", depth=2, max_rows=40) as vlm:
        asks: dict[tuple[str, str], tuple[Ask, Channel]] = {}
        for key, entry in entries(folder).items():
            image = None if key[0] == "text_only" else GOLDEN / folder / f"{key[0]}.png"
            ask, channel = vlm.desk.ask(image, asking(vlm, key[1], entry)), Channel(whole=True)
            asks[key] = (ask, channel)
        for ask, channel in asks.values():
            vlm.desk.runner.submit(ask.prompt, ask.program, ask.sampling, None, channel)
        for key, (ask, channel) in asks.items():
            emission = channel.get()
            assert emission.finish is not None and emission.finish.error is None
            ask.reader.feed(emission.tokens)
            ask.reader.finish()
            out.answers[key] = ([t.id for t in emission.tokens], ask.reader.result())
        out.stats = vlm.stats()
    return out


def marks(folder: str) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.slow,) if folder in SLOW else ()


def clamped(box: dict[str, float]) -> dict[str, float]:
    return {side: min(1.0, max(0.0, value)) for side, value in box.items()}


@pytest.mark.parametrize(
    ("folder", "picture", "name"),
    [pytest.param(folder, *key, marks=marks(folder)) for folder in FOLDERS for key in entries(folder)],
)
def test_every_golden_entry(folder: str, picture: str, name: str) -> None:
    ids, result = outcome(folder).answers[picture, name]
    expected = entries(folder)[picture, name]
    checked = 0
    for key in ("answer", "reasoning", "caption", "points", "objects"):
        if key in expected:
            right = [clamped(box) for box in expected[key]] if key == "objects" else expected[key]
            assert result[key] == right
            checked += 1
    if "text" in expected:
        assert result["caption" if name.startswith("caption") else "answer"] == expected["text"]
        checked += 1
    if "token_ids" in expected:
        assert ids[: len(expected["token_ids"])] == expected["token_ids"]
        assert ids[len(expected["token_ids"]) :] in ([], [0]), "more than the end token"
    assert checked


@pytest.mark.parametrize("folder", [pytest.param(folder, marks=marks(folder)) for folder in FOLDERS])
def test_they_were_all_in_flight_and_overlapped(folder: str) -> None:
    stats = outcome(folder).stats
    assert (
        stats["finished"] == len(entries(folder)) >= (15 if folder.startswith("moondream3") else 30)
        and stats["failed"] == 0
    )
    assert stats["overlapped"] > 0.8 * (stats["prefill_steps"] + stats["decode_steps"])
    assert stats["decode_committed_during_prefill"] > 0 and stats["prefill_committed_during_decode"] > 0
