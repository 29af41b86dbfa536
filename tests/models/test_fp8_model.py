"""A Moondream 3 whose experts stay FP8 says what the dequantised one says, to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.weights.layout_writers import THIRD, config_of, fp8, plain, write

from gapless.kernels import reference
from gapless.kernels.graphed import Graphed
from gapless.models.moondream.config import read_config
from gapless.models.moondream.layers import Experts
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.reading import read_weights
from gapless.models.registry import load_model


def hidden_of(model: Moondream) -> torch.Tensor:
    """A text of 21 ids, from its beginning."""
    ids = torch.randint(21, model.vocab, (21,), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        cache, table = model.new_cache(4, 16), torch.tensor([[1, 2]])
        x = model.embed(ids, torch.full((21, 2), -1.0))
        return model.forward(x, torch.arange(21), table, cache)


@pytest.mark.parametrize("kernels", [reference, Graphed(16)], ids=["reference", "fixed rows"])
def test_what_is_loaded_in_fp8_is_what_was_dequantised_before(kernels: Any, tmp_path: Path) -> None:
    made, meant = fp8(plain(THIRD))
    folder, config = write(tmp_path / "third", made, config_of(THIRD)), read_config(config_of(THIRD))
    tensors = read_weights([folder / "model.safetensors"], config, torch.float32, torch.device("cpu"))
    narrow, wide = Moondream(config, tensors, kernels), Moondream(config, meant, kernels)
    out, truth = hidden_of(narrow), hidden_of(wide)
    assert float((out - truth).norm()) <= 1e-6 * float(truth.norm())
    assert kernels is not reference or torch.equal(out, truth)


def test_a_loaded_model_has_its_experts_in_a_byte_a_weight(tmp_path: Path) -> None:
    made, _ = fp8(plain(THIRD))
    model = load_model(write(tmp_path / "third", made, config_of(THIRD)), "cpu").model
    assert isinstance(model, Moondream)
    experts = [block.mlp for block in model.text.blocks if isinstance(block.mlp, Experts)]
    assert len(experts) == 2
    for stack in (stack for own in experts for stack in (own.up, own.down)):
        assert stack.values.dtype is torch.float8_e4m3fn
        assert stack.values.untyped_storage().nbytes() == stack.values.numel()
        assert stack.scales is not None and stack.scales.dtype is torch.float32
