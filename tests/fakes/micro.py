"""A micro Moondream with random weights: 2 text layers, a 4x4 grid (17 prefix positions), 128 ids.

`micro_config()` is the parsed config.json, `write_micro(folder)` a loadable model folder, `micro_model()` a model in
memory, `micro_crops()` a picture's crops. The same seed always gives the same weights. Typed text is printable ASCII;
its tokenizer drops other characters. Answers end by themselves now and then (the end token's bias is raised).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.weights_map import PREFIX, tensor_shapes

PREFIX_POSITIONS = 17
CROP_SIZE = 56
RESERVED = 21
VOCAB = 128


def micro_config(max_context: int = 192, third: bool = False) -> dict[str, Any]:
    """The content of its config.json. `third`: of the third generation, with a dense layer and one of experts."""
    config = _micro_config(max_context)
    if third:
        config["model_type"] = "moondream3"
        moe = {"num_experts": 6, "start_layer": 1, "experts_per_token": 2, "expert_inner_dim": 24}
        config["text"] |= {"moe": moe, "rope_theta": 1_500_000.0}
    return config


def _micro_config(max_context: int) -> dict[str, Any]:
    return {
        "text": {
            "dim": 64,
            "ff_dim": 96,
            "n_layers": 2,
            "vocab_size": VOCAB,
            "max_context": max_context,
            "n_heads": 4,
            "n_kv_heads": 4,
            "prefix_attn": PREFIX_POSITIONS,
        },
        "vision": {
            "enc_dim": 32,
            "enc_patch_size": 14,
            "enc_n_layers": 2,
            "enc_ff_dim": 48,
            "enc_n_heads": 2,
            "proj_out_dim": 64,
            "proj_inner_dim": 64,
            "crop_size": CROP_SIZE,
            "in_channels": 3,
            "max_crops": 4,
            "overlap_margin": 1,
        },
        "region": {
            "dim": 64,
            "coord_feat_dim": 32,
            "coord_out_dim": 1024,
            "size_feat_dim": 32,
            "size_out_dim": 2048,
            "inner_dim": 64,
        },
        "tokenizer": {
            "bos_id": 0,
            "eos_id": 0,
            "answer_id": 3,
            "thinking_id": 4,
            "coord_id": 5,
            "size_id": 6,
            "start_ground_points_id": 7,
            "end_ground_id": 9,
            "templates": {
                "caption": {length: [1, 30, 2, *_spelled(length), 3] for length in ("short", "normal", "long")},
                "query": {"prefix": [1, 34, 2], "suffix": [3]},
                "detect": {"prefix": [1, 35, 2], "suffix": [3]},
                "point": {"prefix": [1, 36, 2], "suffix": [3]},
                "segment": {"prefix": [1, 37, 2], "suffix": [3]},
            },
        },
    }


def _spelled(word: str) -> list[int]:
    """A word's letters as ids of `micro_tokenizer`."""
    return [RESERVED + ord(letter) - 33 for letter in word]


def micro_tensors(config: dict[str, Any], seed: int = 0, end_bias: float = 2.0) -> dict[str, Tensor]:
    """Random float32 weights by name, without the `model.` prefix."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(read_config(config)).items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith(("ln.weight", "ln1.weight", "ln2.weight")):
            tensors[name] = 1.0 + 0.1 * noise
        elif name.endswith("bias"):
            tensors[name] = 0.1 * noise
        elif name.endswith(("wte", "features", "pos_emb", "alpha")):
            tensors[name] = noise
        else:
            tensors[name] = noise * (1.5 / shape[-1] ** 0.5)
    tensors["text.lm_head.bias"][0] += end_bias
    return tensors


def micro_model(
    seed: int = 0, dtype: torch.dtype = torch.float32, max_context: int = 192, third: bool = False
) -> Moondream:
    """A model on the CPU."""
    config = micro_config(max_context, third)
    tensors = {name: tensor.to(dtype) for name, tensor in micro_tensors(config, seed).items()}
    return Moondream(read_config(config), tensors)


def micro_crops(seed: int = 0, tiling: tuple[int, int] = (1, 2)) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Random crops of a picture: uint8 [1 + rows * columns, 56, 56, 3]."""
    count = 1 + tiling[0] * tiling[1]
    return np.random.default_rng(seed).integers(0, 256, (count, CROP_SIZE, CROP_SIZE, 3), dtype=np.uint8)


def micro_tokenizer() -> Tokenizer:
    """Ids 0..20 are reserved; then printable ASCII and newline, one id each; then a few pairs up to 127."""
    reserved = ["<|endoftext|>", *(f"<|md_reserved_{i}|>" for i in range(RESERVED - 1))]
    letters = [*(chr(c) for c in range(33, 127)), "Ġ", "Ċ"]
    pairs = ["th", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es"]
    words = reserved + letters + pairs
    bpe = models.BPE({word: i for i, word in enumerate(words)}, [(a, b) for a, b in pairs])
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in reserved])
    assert tokenizer.get_vocab_size() == VOCAB
    return tokenizer


def write_micro(
    folder: Path,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    max_context: int = 192,
    end_bias: float = 2.0,
    third: bool = False,
) -> Path:
    """Write config.json, tokenizer.json and model.safetensors into `folder`, which is made; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = micro_config(max_context, third)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    micro_tokenizer().save(str(folder / "tokenizer.json"))
    tensors = {PREFIX + name: t.to(dtype) for name, t in micro_tensors(config, seed, end_bias).items()}
    save_file(tensors, folder / "model.safetensors")
    return folder
