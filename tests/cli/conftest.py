"""A picture folder to work in, and a fake model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.cli.fake_vlm import FakeVLM
from tests.fakes.micro import write_micro

import gapless
from gapless.weights import hub


@pytest.fixture
def vlm(monkeypatch: pytest.MonkeyPatch) -> FakeVLM:
    fake = FakeVLM()
    monkeypatch.setattr(gapless, "load", fake.load, raising=False)
    return fake


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, made the current one, with a.png (dark grey), b.png (light grey), night.png (black), broken.png."""
    monkeypatch.chdir(tmp_path)
    for name, grey in (("a", 40), ("b", 200), ("night", 0)):
        Image.fromarray(np.full((30, 40, 3), grey, np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "a.png").read_bytes()[:60])
    return tmp_path


@pytest.fixture
def bundled(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the model that the name glint stands for in these tests: a micro one, for speed."""
    home = tmp_path_factory.mktemp("assets")
    monkeypatch.setattr(hub, "ASSETS", home)
    return write_micro(home / "glint")
