"""A revision without coordinate ids, through the whole engine, against the reference's rule over the whole vocabulary.

The golden checkpoints run as the revision of March 2025: its points and boxes are the recorded ones of that rule.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gapless

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden" / "moondream2-2025-06-21-b"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
PICTURES = ("small_100x80", "square_378")


@pytest.fixture(scope="module", params=["device", "host"])
def vlm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[gapless.VLM]:
    folder = shutil.copytree(GOLDEN, tmp_path_factory.mktemp("march") / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"revision": "2025-03-27"}))
    with gapless.load(folder, device="cpu", max_rows=4, constraints=request.param) as vlm:
        yield vlm


def clamped(box: dict[str, float]) -> dict[str, Any]:
    return {corner: pytest.approx(min(max(value, 0.0), 1.0), abs=1e-12) for corner, value in box.items()}


def test_points_and_boxes_are_those_of_the_whole_vocabulary(vlm: gapless.VLM) -> None:
    pictures = [GOLDEN / f"{picture}.png" for picture in PICTURES]
    settings = {"max_objects": 12}
    points = vlm.point(pictures, "dog", settings=settings)
    boxes = vlm.detect(pictures, "dog", settings=settings)
    for picture, pointed, boxed in zip(PICTURES, points, boxes, strict=True):
        named = EXPECTED[picture]
        assert pointed["points"] == named["point"]["points"]
        assert boxed["objects"] == [clamped(box) for box in named["detect"]["objects"]]


def test_words_are_asked_for_without_reasoning(vlm: gapless.VLM) -> None:
    assert vlm.query(question="who?", settings={"temperature": 0, "max_tokens": 3})["answer"]
    with pytest.raises(gapless.errors.UnsupportedSkill):
        vlm.query(question="who?", reasoning=True)


@pytest.mark.slow
def test_a_gaze_is_a_point_or_none_and_a_forced_one_is_always_a_point(vlm: gapless.VLM) -> None:
    for picture in PICTURES:
        free = vlm.detect_gaze(GOLDEN / f"{picture}.png", (0.25, 0.5))["gaze"]
        forced = vlm.detect_gaze(GOLDEN / f"{picture}.png", (0.25, 0.5), None, {"force_detect": True})["gaze"]
        assert free is None or free == forced
        assert set(forced) == {"x", "y"} and all(0 <= forced[axis] <= 1 for axis in forced)
