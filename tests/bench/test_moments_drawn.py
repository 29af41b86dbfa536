"""The figures of the pipeline's page are drawn by real steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from gapless.bench.moments import FIGURES, main


@pytest.mark.slow
def test_every_moment_happens_and_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("llguidance", reason="pip install 'gapless[structured]'")
    assert main([str(tmp_path / "figures")]) == 0
    for name in FIGURES:
        with Image.open(tmp_path / "figures" / f"{name}.png") as picture:
            assert picture.width == 1600 and picture.height > 400
