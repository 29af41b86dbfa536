"""Checkpoints of random weights in the layouts that are published, at full size or micro: whole folders, on disk.

In: a kind, a folder, a device on which the tensors are drawn. Out: config.json, tokenizer.json (a stand-in, see
`tests.fakes.starmie`), weights under the published names, shapes, dtypes and file names, and eight adapters in the
published forms. Published files give no dimension in their config.json; micro ones must.

The best of many equally likely words are close to one another, much closer than a trained model's. So the words' logits
are made unlike in spread, a few reaching far; those of the ids that end or steer an answer are raised instead, so that
answers end, lists have objects and reasonings point at places.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tests.fakes.adapters import random_pairs
from tests.fakes.starmie import write_tokenizer
from tests.weights.adapter_writers import write_adapter
from tests.weights.layout_writers import Tensors, fp8, prefixed

from gapless.models.moondream.config import MoondreamConfig, read_config
from gapless.models.moondream.random_weights import random_tensors
from gapless.weights.adapters import Pair
from gapless.weights.catalogue import CATALOGUE

SHARD = 5_000_000_000
"""Bytes of a shard, at most, as the hub's library cuts them."""
RAISED = {0: 2.5, 3: 2.5, 5: 3.2, 7: 2.0, 9: 2.0}
"""End, answer, coordinate, and the two around a place that is pointed at."""
TAIL = 5.0
"""Exponent of how the spreads of the words' logits are distributed; smaller ones set fewer words apart."""
BEST = 4.5
"""The best word's logit, about."""
STRENGTH = 0.25
"""What an adapter adds to a linear, as a part of what it says. More than training leaves there, but if it were as much,
adapters of experts, of rank 1 to 4, would carry roundings on to logits at four times their size: median 0.11 instead of
0.03 in a model of 24 layers and 512 dimensions."""
MICRO: dict[str, Any] = {
    "text": {"dim": 64, "ff_dim": 96, "n_layers": 3, "n_heads": 4, "n_kv_heads": 4, "prefix_attn": 17},
    "vision": {
        "enc_dim": 32,
        "enc_n_layers": 2,
        "enc_ff_dim": 48,
        "enc_n_heads": 2,
        "proj_out_dim": 64,
        "proj_inner_dim": 64,
        "crop_size": 56,
        "max_crops": 4,
        "overlap_margin": 1,
    },
    "region": {"dim": 64, "coord_feat_dim": 32, "size_feat_dim": 32, "inner_dim": 64},
}
MICRO_MOE = {"num_experts": 16, "start_layer": 1, "experts_per_token": 8, "expert_inner_dim": 24}


@dataclass(frozen=True)
class Kind:
    """A published checkpoint. `raw`: its config.json; `files`: of its weights; `layout` and `tensors` as inspecting it
    must find them; `ranks` of its adapters, which are multiples of the experts that a token takes."""

    name: str
    published: str
    behaves: str
    raw: Mapping[str, Any]
    layout: str
    tensors: int
    ranks: tuple[int, ...]
    third: bool = False
    quantised: bool = False

    def config(self, micro: bool) -> dict[str, Any]:
        """config.json."""
        if not micro:
            return dict(self.raw)
        text = {**MICRO["text"], **({"moe": MICRO_MOE} if self.third else {})}
        return {**self.raw, "config": {**self.raw["config"], **MICRO, "text": text}}

    @property
    def size(self) -> int:
        """Bytes of the published weights."""
        edition = CATALOGUE[self.published]
        return edition.editions[edition.latest].size


_SECOND = {"architectures": ["HfMoondream"], "config": {}, "model_type": "moondream1", "torch_dtype": "bfloat16"}
_SKILLS = {"skills": ["query", "caption", "detect", "point"]}
_THIRD = {"architectures": ["HfMoondream"], "config": _SKILLS, "model_type": "moondream3", "torch_dtype": "bfloat16"}
_RANKS_2, _RANKS_3 = (8, 16, 16, 24, 32, 48, 64, 64), (8, 8, 16, 16, 24, 24, 32, 32)
_FUSED, _SCALES = 24, 40
"""Of the internal layout: a tensor less in each layer, and two more in each layer of experts."""
KINDS = {
    kind.name: kind
    for kind in (
        Kind("moondream2", "vikhyatk/moondream2", "2025-06-21", _SECOND, "hugging face", 592, _RANKS_2),
        Kind("moondream3", "moondream/moondream3-preview", "moondream3", _THIRD, "hugging face", 662, _RANKS_3, True),
        Kind(
            "moondream3.1",
            "moondream/moondream3.1-9B-A2B",
            "moondream3.1",
            _THIRD,
            "internal",
            662 - _FUSED + _SCALES,
            _RANKS_3,
            True,
            True,
        ),
    )
}


@torch.inference_mode()
def write_checkpoint(kind: Kind, folder: Path, device: str, micro: bool, shard: int = SHARD) -> dict[str, Any]:
    """Write the folder; what was written. `shard`: bytes of a file at most, where it is published in shards."""
    began, where = time.perf_counter(), torch.device(device)
    folder.mkdir(parents=True, exist_ok=True)
    raw = kind.config(micro)
    (folder / "config.json").write_text(json.dumps(raw, indent=2), encoding="utf-8")
    write_tokenizer(folder)
    config = read_config(raw, kind.behaves)
    tensors = random_tensors(config, where, torch.bfloat16, seed=len(kind.name), end_bias=0.0)
    _set_apart(tensors, where)
    parameters = sum(tensor.numel() for tensor in tensors.values())
    if kind.third and not kind.quantised:
        files = _write_shards(prefixed(tensors), folder, shard)
    else:
        weights = dict(_quantised(tensors)) if kind.quantised else prefixed(tensors)
        files = [_write_file(weights, folder / "model.safetensors")]
    return {
        "files": files,
        "tensors": sum(file["tensors"] for file in files),
        "bytes": sum(file["bytes"] for file in files),
        "parameters": parameters,
        "seconds": round(time.perf_counter() - began, 1),
    }


def write_adapters(kind: Kind, config: MoondreamConfig, folder: Path, device: str) -> dict[str, Path]:
    """Eight adapters below `folder`, by name."""
    where = torch.device(device)
    return {
        f"tune{i}": write_adapter(folder / f"tune{i}", _pairs(config, rank, i, where), i)
        for i, rank in enumerate(kind.ranks, start=1)
    }


def _pairs(config: MoondreamConfig, rank: int, seed: int, where: torch.device) -> dict[str, Pair]:
    return random_pairs(config.text, rank, seed, where, torch.bfloat16, STRENGTH)


def _set_apart(tensors: Tensors, where: torch.device) -> None:
    """Spread the logits; see the module."""
    head, generator = tensors["text.lm_head.weight"], torch.Generator(where).manual_seed(1)
    spread = torch.rand(len(head), generator=generator, device=where).clamp(min=1e-5) ** (-1 / TAIL)
    best = (torch.randn((64, len(head)), generator=generator, device=where) * spread).amax(1).mean()
    spread *= BEST / best
    spread[list(RAISED)] = 1.0
    head.copy_(head.float() * spread[:, None])
    for id, more in RAISED.items():
        tensors["text.lm_head.bias"][id] = more


def _quantised(tensors: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    """The internal layout with FP8 experts, block by block: what is quantised is held in float32 meanwhile."""
    for _, group in groupby(sorted(tensors), key=_block):
        made, _ = fp8({name: tensors.pop(name) for name in group})
        yield from ((name, tensor.cpu()) for name, tensor in made.items())


def _block(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:3]) if parts[1] == "blocks" else parts[0]


def _write_shards(tensors: Tensors, folder: Path, limit: int) -> list[dict[str, Any]]:
    """Files of at most `limit` bytes, filled in order of name, and their index."""
    filled: list[list[str]] = [[]]
    held = 0
    for name in sorted(tensors):
        size = tensors[name].numel() * tensors[name].element_size()
        if filled[-1] and held + size > limit:
            filled.append([])
            held = 0
        filled[-1].append(name)
        held += size
    files = [f"model-{i:05}-of-{len(filled):05}.safetensors" for i in range(1, len(filled) + 1)]
    index = {name: file for file, names in zip(files, filled, strict=True) for name in names}
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    written = [
        _write_file({name: tensors.pop(name) for name in names}, folder / file)
        for file, names in zip(files, filled, strict=True)
    ]
    content = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content, indent=2), encoding="utf-8")
    return written


def _write_file(tensors: Tensors, path: Path) -> dict[str, Any]:
    on_host = {name: tensors[name].cpu().contiguous() for name in sorted(tensors)}
    save_file(on_host, path, metadata={"format": "pt"})
    size = sum(tensor.numel() * tensor.element_size() for tensor in on_host.values())
    return {"name": path.name, "tensors": len(on_host), "bytes": size}
