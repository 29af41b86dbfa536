"""`gapless tune` on a GPU, at small sizes and for a few seconds: what it keeps is what a model takes, and right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.kernels.drawn_decoder import draw, step

pytest.importorskip("triton")

from gapless.bench.tune_run import Tuning
from gapless.bench.tune_trial import ERROR, error_of
from gapless.kernels.choose import choose
from gapless.kernels.triton import tuned
from gapless.models.moondream.config import TextConfig

pytestmark = pytest.mark.gpu

GLINT = TextConfig(dim=256, ff_dim=512, n_layers=2, vocab_size=2048, n_heads=4, n_kv_heads=4)
SECONDS = 5.0


def test_what_is_kept_is_what_a_model_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuned.forget()
    told: list[str] = []
    tuning = Tuning.of(GLINT, "bfloat16", "cuda:0", [8], SECONDS)
    (part,) = tuning.run(lambda doing, done, total: told.append(doing))["parts"]
    assert told and [row["rows"] for row in part["rows"]] == [8] and Path(part["file"]).is_relative_to(tmp_path)
    (row,) = part["rows"]
    assert row["wrong"] == 0 and 0 < row["after_us"] <= row["before_us"]
    scene = draw(8, 1, dim=256, inner=512, heads=4, vocab=2048, dtype=torch.bfloat16, device="cuda")
    fused = choose(torch.device("cuda")).fuse(scene.decoder)
    assert fused is not None and part["file"] in fused.source
    with torch.inference_mode():
        keys, values = scene.keys.clone(), scene.values.clone()
        hidden = fused.forward(scene.x, scene.positions, scene.tables, keys, values)
        logits = fused.logits(hidden)
    right = step(scene)
    assert error_of(hidden, right[0]) < ERROR and error_of(logits, right[1]) < ERROR
    tuned.forget()
