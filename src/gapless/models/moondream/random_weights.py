"""Random weights for any dimensions, made where they will be used: for timings and trials without a checkpoint.

In: a config, a device, a dtype, a seed. Out: the tensors of `weights_map`, in seconds at full size on a GPU. The same
seed gives the same weights on the same kind of device. Invariants: activations keep their size through all layers
(weights by 1/sqrt(inputs), what is added to the residual stream by 1/sqrt(2 layers) more), so half types stay finite;
logits are about standard normal, so `end_bias` alone says how soon answers end.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gapless.kernels.stacks import FP8
from gapless.models.moondream.config import MoondreamConfig, read_config
from gapless.models.moondream.weights_map import tensor_shapes

NEVER_ENDS = -100.0
"""An `end_bias` with which no answer ends by itself; 0 makes the end an id like any other."""

SIZES = ("moondream-2", "moondream-3", "moondream-3.1", "small", "small-3", "small-3.1")
"""Dimensions by name: the published models', and ones of either generation that a laptop's CPU runs in no time."""


def random_config(size: str) -> MoondreamConfig:
    """The config of one of `SIZES`. Raises `KeyError` for another."""
    third = {"model_type": "moondream3"}
    published = {"moondream-2": {}, "moondream-3": third, "moondream-3.1": third}
    return read_config((published | {"small": _SMALL, "small-3": _SMALL_3, "small-3.1": _SMALL_3})[size])


def has_fp8(size: str) -> bool:
    """Whether the experts of this one of `SIZES` are FP8."""
    return size.endswith("-3.1")


def random_bytes(size: str, itemsize: int) -> int:
    """What `random_tensors` of one of `SIZES` take with so many bytes a number, scales left out."""
    narrow = has_fp8(size)
    shapes = tensor_shapes(random_config(size)).items()
    return sum(math.prod(shape) * (1 if narrow and _is_stack(name, shape) else itemsize) for name, shape in shapes)


def random_tensors(
    config: MoondreamConfig,
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
    end_bias: float = NEVER_ENDS,
    *,
    fp8: bool = False,
) -> dict[str, Tensor]:
    """Every tensor of the model, drawn on `device` in `dtype`; with `fp8` experts then rounded to FP8, with scales."""
    generator = torch.Generator(device).manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        tensor = torch.empty(shape, dtype=dtype, device=device)
        if name.endswith(".bias"):
            tensors[name] = tensor.zero_()
        elif name.endswith(("ln.weight", "ln1.weight", "ln2.weight")):
            tensors[name] = tensor.fill_(1.0)
        else:
            tensors[name] = tensor.normal_(0.0, _scale(name, shape, config), generator=generator)
        if fp8 and _is_stack(name, shape):
            tensors[name], tensors[name.replace(".weight", ".scale")] = _narrowed(tensor)
    tensors["text.lm_head.bias"][config.tokenizer.eos_id] = end_bias
    return tensors


def _is_stack(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is one matrix for each expert."""
    return ".mlp.fc" in name and len(shape) == 3


def _narrowed(stack: Tensor) -> tuple[Tensor, Tensor]:
    """Experts [E, out, in] in FP8, and their scales float32 [E, out]: each row's largest becomes FP8's largest."""
    narrow, scales = torch.empty_like(stack, dtype=FP8), stack.abs().amax(-1).float() / torch.finfo(FP8).max
    for expert, own in enumerate(stack):
        narrow[expert] = (own.float() / scales[expert, :, None]).to(FP8)
    return narrow, scales


def _scale(name: str, shape: tuple[int, ...], config: MoondreamConfig) -> float:
    """Standard deviation of a tensor's elements."""
    if not name.endswith((".weight", ".wq", ".wv")):
        return 1.0  # the word table, position embeddings and frequencies
    scale = 1.0 / math.sqrt(shape[-1])
    if ".blocks." in name and name.endswith(("attn.proj.weight", "mlp.fc2.weight")):
        layers = config.text.n_layers if name.startswith("text.") else config.vision.enc_n_layers
        scale /= math.sqrt(2 * layers)
    return scale


_SMALL: dict[str, Any] = {
    "text": {
        "dim": 128,
        "ff_dim": 256,
        "n_layers": 2,
        "vocab_size": 2048,
        "max_context": 512,
        "n_heads": 4,
        "n_kv_heads": 4,
        "prefix_attn": 17,
    },
    "vision": {
        "enc_dim": 32,
        "enc_n_layers": 2,
        "enc_ff_dim": 64,
        "enc_n_heads": 2,
        "proj_inner_dim": 128,
        "proj_out_dim": 128,
        "crop_size": 56,
        "max_crops": 4,
        "overlap_margin": 1,
    },
    "region": {"dim": 128, "coord_feat_dim": 64, "size_feat_dim": 64, "inner_dim": 128},
    "tokenizer": {
        "templates": {
            "caption": {"short": [1, 30, 2, 31, 3], "normal": [1, 30, 2, 32, 3], "long": [1, 30, 2, 33, 3]},
            "query": {"prefix": [1, 34, 2], "suffix": [3]},
            "detect": {"prefix": [1, 35, 2], "suffix": [3]},
            "point": {"prefix": [1, 36, 2], "suffix": [3]},
            "segment": {"prefix": [1, 37, 2], "suffix": [3]},
        },
    },
}
_MOE = {"num_experts": 8, "start_layer": 1, "experts_per_token": 2, "expert_inner_dim": 64}
_SMALL_3 = {**_SMALL, "model_type": "moondream3", "text": {**_SMALL["text"], "moe": _MOE}}
