"""Adapters of a Moondream 3 through the library: files under their own names, loaded again while the model runs."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tests.fakes.micro import micro_config, write_micro

import gapless
from gapless.errors import InvalidAdapter

GREEDY = {"temperature": 0, "max_tokens": 16}
WITH = GREEDY | {"adapter": "fine@12"}


def finetune(path, seed, own=1):
    """Two experts a token of rank `own` each, in the second of two blocks; its number counts layers of experts."""
    g, rank = torch.Generator().manual_seed(seed), 2 * own
    shapes = {
        "dense.0.up_a": (rank, 64), "dense.0.up_b": (96, rank), "dense.0.down_a": (rank, 96),
        "dense.0.down_b": (64, rank), "moe.0.up_a": (6, own, 64), "moe.0.up_b": (6, 48, own),
        "moe.0.down_a": (6, own, 24), "moe.0.down_b": (6, 64, own),
    }  # fmt: skip
    save_file({f"text_lora.{name}": torch.randn(shape, generator=g) / 3 for name, shape in shapes.items()}, path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    assert micro_config(third=True)["text"]["moe"]["start_layer"] == 1
    return write_micro(tmp_path_factory.mktemp("models") / "third", third=True, end_bias=-3.0)


def test_it_answers_with_its_adapter_and_a_new_version_replaces_it(folder, tmp_path):
    shown = Image.new("RGB", (50, 40), (200, 30, 90))
    asked = {"image": shown, "question": "what is it"}
    first, second = finetune(tmp_path / "a.safetensors", 1), finetune(tmp_path / "b.safetensors", 2)
    with gapless.load(folder, device="cpu") as bare:
        plain = bare.query(**asked, settings=GREEDY)["answer"]
    with gapless.load(folder, device="cpu", adapters={"fine@12": second}) as cold:
        right = cold.query(**asked, settings=WITH)["answer"]
    with gapless.load(folder, device="cpu", adapters={"fine@12": first}) as vlm:
        before = vlm.query(**asked, settings=WITH)["answer"]
        assert vlm.query(**asked, settings=GREEDY)["answer"] == plain
        with pytest.raises(InvalidAdapter, match="max_adapter_rank=4"):
            vlm.load_adapter("fine@12", finetune(tmp_path / "wide.safetensors", 3, own=2))
        assert vlm.query(**asked, settings=WITH)["answer"] == before
        held = vlm.query(**asked, settings=WITH, stream=True)["answer"]  # keeps the old version, and its block, alive
        vlm.load_adapter("fine@12", second)
        assert vlm.query(**asked, settings=WITH)["answer"] == right
        assert "".join(held) == before
        assert vlm.query(**asked, settings=GREEDY)["answer"] == plain
    assert len({plain, before, right}) == 3
