"""Models that run inside graphs on a GPU ask the device for nothing: shapes alone show it."""

from __future__ import annotations

import pytest
import torch
from tests.fakes.capture_watch import DEVICE, CaptureWatch
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel

from gapless.bench.ending import EndingModel
from gapless.kernels.choose import choose
from gapless.models.base import Model
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.random_weights import random_config
from gapless.models.moondream.weights_map import tensor_shapes

ROWS = 16


def ending() -> Model:
    config = random_config("small")
    tensors = {
        name: torch.empty(shape, dtype=torch.bfloat16, device=DEVICE) for name, shape in tensor_shapes(config).items()
    }
    return EndingModel(Moondream(config, tensors, choose(DEVICE)), 0, 50, 60)


@pytest.mark.parametrize("tables", [ROWS, 1])
@pytest.mark.parametrize("kind", ["ending", "hash"])
def test_a_forward_and_a_tail_can_be_captured(kind: str, tables: int) -> None:
    model = ending() if kind == "ending" else HashModel(HashSpec(), device=DEVICE)
    cache = model.new_cache(40, 16)
    ids = torch.zeros(ROWS, dtype=torch.int64, device=DEVICE)
    pages = torch.zeros(tables, 20, dtype=torch.int64, device=DEVICE)
    with torch.inference_mode(), CaptureWatch() as watch:
        x = model.embed(ids, torch.zeros(ROWS, 2, device=DEVICE))
        hidden = model.forward(x, ids, pages, cache)
        scores = model.logits(hidden)
        model.coord_value(hidden)
        model.size_value(hidden)
    assert scores.shape == (ROWS, model.vocab) and scores.dtype is torch.float32
    assert watch.operations > 50


def test_a_picture_of_the_hash_model_asks_for_nothing() -> None:
    model = HashModel(HashSpec(), device=DEVICE)
    cache, pages = model.new_cache(40, 16), torch.zeros(8, dtype=torch.int64, device=DEVICE)
    crops = torch.zeros(2, 4, 4, 3, dtype=torch.uint8, device=DEVICE)
    with torch.inference_mode(), CaptureWatch() as watch:
        model.prefill_prefix(model.encode_picture(crops, (1, 1)), cache, pages)
    assert watch.operations > 10
