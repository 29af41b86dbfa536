"""Micro models for tests of the library: one that ends its answers soon, one that never ends them by itself."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.fakes.micro import micro_tokenizer, write_micro

import gapless
from gapless.models.moondream.weights_map import PREFIX


@pytest.fixture(scope="session")
def micro_folder(tmp_path_factory):
    return write_micro(tmp_path_factory.mktemp("models") / "micro")


@pytest.fixture(scope="session")
def endless_folder(tmp_path_factory):
    """Says many short words: spaces are likely, the end is not."""
    folder = write_micro(tmp_path_factory.mktemp("models") / "endless", max_context=8192, end_bias=-1e4)
    tensors = load_file(folder / "model.safetensors")
    tensors[PREFIX + "text.lm_head.bias"][micro_tokenizer().token_to_id("Ġ")] += 10.0
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def vlm(micro_folder):
    with gapless.load(micro_folder) as vlm:
        yield vlm


@pytest.fixture
def endless(endless_folder):
    """Answers of up to 8000 tokens, far longer than any test waits. Nothing may be left when the test ends."""
    vlm = gapless.load(endless_folder, max_rows=4)
    yield vlm
    vlm.close(drain=False)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


def noise(seed: int, height: int = 90, width: int = 130):
    """A picture of random pixels, uint8 [height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture(scope="session")
def pictures():
    return [noise(0), noise(1, 60, 40), noise(2, 200, 70), noise(3, 56, 56)]
