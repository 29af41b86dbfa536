"""Adapter files in every published form, written from pairs named as branches in the Hugging Face layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from tests.weights.layout_writers import internal_name
from torch import Tensor

Pairs = Mapping[str, tuple[Tensor, Tensor]]
_LAYER = re.compile(r"text\.blocks\.(\d+)\.mlp\.(fc[12])")


def named(pairs: Pairs) -> dict[str, Tensor]:
    """`text.blocks.0.attn.qkv.A` and so on."""
    return {f"{name}.{side}": t for name, pair in pairs.items() for side, t in zip("AB", pair, strict=True)}


def original(pairs: Pairs) -> dict[str, Tensor]:
    """The names of the original code, as its variants of Moondream 2 have them."""
    made = {}
    for name, pair in pairs.items():
        stem = internal_name(f"{name}.").removesuffix(".")
        made |= {f"{stem}.parametrizations.weight.0.{side}": t for side, t in zip("AB", pair, strict=True)}
    return made


def finetune(pairs: Pairs, *, counted: bool = False) -> dict[str, Tensor]:
    """The names of Moondream 3's finetunes; `counted`: layers of experts are numbered from the first of them."""
    made, found = {}, {name: _LAYER.fullmatch(name) for name in pairs}
    first = min(int(m[1]) for name, m in found.items() if m and pairs[name][0].ndim == 3)
    for name, match in found.items():
        assert match is not None, f"{name} is no linear that a finetune adapts"
        kind = "moe" if pairs[name][0].ndim == 3 else "dense"
        layer = int(match[1]) - (first if counted and kind == "moe" else 0)
        way = "up" if match[2] == "fc1" else "down"
        made |= {f"text_lora.{kind}.{layer}.{way}_{side}": t for side, t in zip("ab", pairs[name], strict=True)}
    return made


def write_adapter(folder: Path, pairs: Pairs, form: int) -> Path:
    """A folder with one adapter. `form` even: safetensors with plain names (a finetune's, for Moondream 3); odd: the
    original code's `final.pt`."""
    folder.mkdir(parents=True, exist_ok=True)
    third = not any(".attn." in name for name in pairs)
    on_host = {name: (a.cpu().contiguous(), b.cpu().contiguous()) for name, (a, b) in pairs.items()}
    if form % 2 == 0:
        save_file(finetune(on_host) if third else named(on_host), folder / "adapter.safetensors")
    elif third:
        torch.save({"lora_state_dict": finetune(on_host, counted=True)}, folder / "final.pt")
    else:
        torch.save(original(on_host), folder / "final.pt")
    return folder
