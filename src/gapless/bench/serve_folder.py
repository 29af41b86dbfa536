"""A model folder whose answers end by their length alone, for a server to load: it can name no random weights.

In: a model's name, a folder, a device. Out: the same model on disk, but it says nothing except words with a space
before them: no answer ends by itself, and a stream, which sends whole words, has something to send for every token.
Random weights have the bundled model's tokenizer and templates, and the published model's dimensions.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from gapless.bench.load import BUNDLED, RANDOM
from gapless.errors import InvalidRequest
from gapless.models.moondream.config import MoondreamConfig, read_config
from gapless.models.moondream.random_weights import random_tensors
from gapless.models.moondream.reading import read_weights
from gapless.models.moondream.templates import Templates
from gapless.models.moondream.weights_map import PREFIX
from gapless.skills.tokenizer import Tokenizer
from gapless.weights.folder import CONFIG, TOKENIZER, WEIGHTS, find_files, read_json
from gapless.weights.hub import locate

NEVER = -1e4
"""Added to the logit of an id that is not to be said; every half type holds it."""
FOLDER = "random-moondream-2"


def write_folder(model: str, into: Path, device: str) -> Path:
    """Write the model's folder below `into` and return it: bfloat16 for a GPU, float32 for a CPU. Raises as loading it
    would."""
    located = locate(BUNDLED if model == RANDOM else model)
    files = find_files(located.folder)
    raw = read_json(files.config)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    if model == RANDOM:
        raw = {"tokenizer": raw["tokenizer"]}  # all else is what the published model has
        config = read_config(raw)
        tensors = random_tensors(config, torch.device(device), dtype)
    else:
        config = read_config(raw)
        tensors = read_weights(files.weights, config, dtype, torch.device("cpu"))
    tensors["text.lm_head.bias"].add_(_muted(config, files.tokenizer).to(tensors["text.lm_head.bias"]))
    folder = into / (FOLDER if model == RANDOM else Path(located.name).name)
    folder.mkdir(parents=True)
    save_file({PREFIX + name: tensor.cpu() for name, tensor in tensors.items()}, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(raw), encoding="utf-8")
    shutil.copy(files.tokenizer, folder / TOKENIZER)
    return folder


def _muted(config: MoondreamConfig, tokenizer: Path) -> Tensor:
    """What is added to each id's logit: nothing for words, `NEVER` for all else; float32 [vocabulary]."""
    words = Tokenizer.from_file(tokenizer, Templates.of(config).ids.all())
    added = torch.full((config.text.vocab_size,), NEVER)
    for word in range(config.text.vocab_size):
        if word not in words.special and _is_word(words.piece(word)):
            added[word] = 0.0
    if not (added == 0).any():
        raise InvalidRequest(
            f"{tokenizer} has no words with a space before them, so nothing could be said", param="model"
        )
    return added


def _is_word(piece: bytes) -> bool:
    return piece.startswith(b" ") and piece[1:].isalnum()
