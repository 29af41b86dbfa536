"""`gapless tune` on a GPU, at small sizes and for a few seconds: what it keeps is what a model takes, and right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.kernels.drawn_decoder import draw, step
from tests.kernels.drawn_sparse import Sizes
from tests.kernels.drawn_sparse import draw as draw_sparse
from tests.kernels.drawn_sparse import step as step_sparse

pytest.importorskip("triton")

from gapless.bench.tune_run import Tuning
from gapless.bench.tune_trial import ERROR, error_of
from gapless.kernels.choose import choose
from gapless.kernels.triton import tuned
from gapless.models.moondream.config import MoeConfig, TextConfig

pytestmark = pytest.mark.gpu

GLINT = TextConfig(dim=256, ff_dim=512, n_layers=2, vocab_size=2048, n_heads=4, n_kv_heads=4)
GLINT_3 = replace(GLINT, moe=MoeConfig(num_experts=8, start_layer=1, experts_per_token=2, expert_inner_dim=64))
SECONDS = 5.0


def test_what_is_kept_of_steps_with_experts_is_what_a_model_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuned.forget()
    steps, experts = Tuning.of(GLINT_3, "bfloat16", "cuda:0", [8], 4 * SECONDS, ["float8"]).run(lambda *_: None)[
        "parts"
    ]
    assert [row["rows"] for row in steps["rows"]] == [8] and experts["file"] != steps["file"]
    (row,) = steps["rows"]
    assert row["wrong"] == 0 and 0 < row["after_us"] <= row["before_us"]
    sizes = Sizes(dim=256, ff=512, heads=4, vocab=2048, experts=8, share=2, inner=64)
    scene = draw_sparse(8, 1, sizes, narrow=True, dtype=torch.bfloat16, device="cuda")
    fused = choose(torch.device("cuda")).fuse_sparse(scene.decoder)
    assert fused is not None and steps["file"] in fused.source
    with torch.inference_mode():
        hidden = fused.forward(scene.x, scene.positions, scene.tables, scene.keys.clone(), scene.values.clone())
    forced = [fused.taken.new_zeros(8, 0).bool(), chosen_of_last(fused, 8, sizes)]
    assert error_of(hidden, step_sparse(scene, forced)[0]) < ERROR
    tuned.forget()


def chosen_of_last(fused, rows: int, of: Sizes) -> torch.Tensor:
    """Who took which expert of the last layer, bool [rows, experts]."""
    chosen = fused._room.chosen[: rows * of.share].view(rows, of.share).long()
    return torch.zeros(rows, of.experts, dtype=torch.bool, device="cuda").scatter_(1, chosen, True)


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
