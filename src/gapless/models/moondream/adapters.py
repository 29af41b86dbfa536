"""LoRA adapters of a Moondream: which linears they add to, how their files name them, and slots on the device.

In: an adapter's pairs of matrices. Out: `pack`: one flat tensor, padded with zeros to the slots' rank; `Slots`: as many
of those as may be resident, with each linear's matrices as views of them. One copy fills a slot.

Moondream 2 adapts qkv, proj, fc1 and fc2 of every block, and proj's branch reads the block's normed input; Moondream 3
adapts the feed-forwards, dense ones and each expert. Every matrix begins at a multiple of `ALIGNED`, so that a product
is the same bits whatever the slot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gapless.errors import InvalidAdapter
from gapless.kernels import fused
from gapless.kernels.base import ExpertAdapters, Kernels
from gapless.kernels.fused import Bank
from gapless.models.moondream.config import MoondreamConfig, TextConfig
from gapless.models.moondream.names import canonical
from gapless.weights.adapters import Branch, Pair, rank_of, read_adapter

ALIGNED = 64
"""Elements; at least 64 bytes in any dtype."""
_DENSE = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
_PARAMETRIZED = ".parametrizations.weight.0"
_PEFT = ".lora_A."
"""In the names of every adapter that the library PEFT saves."""
_FINETUNE = re.compile(r"(?:text_lora\.)?(dense|moe)\.(\d+)\.(up|down)_([ab])")

Shape = tuple[int, ...]


def branches(config: TextConfig) -> dict[str, Branch]:
    """Every linear that an adapter adds to, by its name in the Hugging Face layout."""
    found: dict[str, Branch] = {}
    for i in range(config.n_layers):
        block, moe = f"text.blocks.{i}", config.experts(i)
        if config.tau == "none":
            found[f"{block}.attn.qkv"] = Branch(config.dim, 3 * config.dim)
            found[f"{block}.attn.proj"] = Branch(config.dim, config.dim)
        if moe is None:
            found[f"{block}.mlp.fc1"] = Branch(config.dim, config.ff_dim)
            found[f"{block}.mlp.fc2"] = Branch(config.ff_dim, config.dim)
        else:
            count, inner, share = moe.num_experts, moe.expert_inner_dim, moe.experts_per_token
            found[f"{block}.mlp.fc1"] = Branch(config.dim, 2 * inner, count, share)
            found[f"{block}.mlp.fc2"] = Branch(inner, config.dim, count, share)
    return found


def read(path: Path, config: MoondreamConfig) -> dict[str, Pair]:
    """An adapter's pairs by linear. Raises `InvalidAdapter`."""

    def named(names: Iterable[str]) -> dict[str, str]:
        return names_in(names, config.text)

    return read_adapter(path, branches(config.text), named)


def names_in(names: Iterable[str], config: TextConfig) -> dict[str, str]:
    """Those of a file by their canonical ones. A layer of experts has its block's number; if one has a number that only
    a dense block has, they are counted by themselves. Raises `ValueError` with what is wrong, for an adapter of the
    other generation too."""
    matches = {name: _FINETUNE.fullmatch(name) for name in names}
    numbers = {int(match[2]) for match in matches.values() if match and match[1] == "moe"}
    experts = [i for i in range(config.n_layers) if config.experts(i) is not None]
    if numbers and not experts:
        raise ValueError(
            "was made for a model with experts (Moondream 3), and this model has none. Use one that was trained for "
            "this model."
        )
    first = experts[0] if numbers and min(numbers) < experts[0] else 0
    found: dict[str, str] = {}
    for name, match in matches.items():
        if match is None:
            new = canonical(name.replace(_PARAMETRIZED, ""))
        else:
            layer = int(match[2]) + (first if match[1] == "moe" else 0)
            new = f"text.blocks.{layer}.mlp.{'fc1' if match[3] == 'up' else 'fc2'}.{match[4].upper()}"
        if new in found:
            raise ValueError(f"has two tensors for {new}: {found[new]} and {name}. Keep one of them.")
        found[new] = name
    _check_kind(found, config)
    return found


def _check_kind(found: Mapping[str, str], config: TextConfig) -> None:
    if "text.wte" in found:
        raise ValueError(
            "holds a model's weights and is no adapter. Give it as the model, and as adapter a folder or file with "
            "matrices A and B of its linears."
        )
    foreign = next((name for name in found if _PEFT in name), None)
    if foreign:
        raise ValueError(
            f"has the names of PEFT ({foreign}), whose scale is not in the numbers yet. Save its matrices under names "
            "like text.blocks.0.attn.qkv.A and text.blocks.0.attn.qkv.B, each B multiplied by alpha / rank."
        )
    attention = [f"text.blocks.{i}.attn.qkv.A" for i in range(config.n_layers)]
    if config.tau != "none" and config.n_layers and all(name in found for name in attention):
        raise ValueError(
            "was made for a model whose attention is adapted (Moondream 2), and this model's is not. Use one that was "
            "trained for this model."
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the matrices of an adapter lie in `width` numbers: offset and shape, by `<linear>.A` and `<linear>.B`.

    At `rank_at` is the adapter's own rank, so that a GPU can leave alone what is zero.
    """

    places: Mapping[str, tuple[int, Shape]]
    rank_at: int
    width: int

    @classmethod
    def of(cls, config: TextConfig, rank: int) -> Layout:
        """For slots of `rank`."""
        places: dict[str, tuple[int, Shape]] = {}
        at = 0
        for name, branch in branches(config).items():
            own, outer = max(1, rank // branch.share), (branch.experts,) if branch.experts else ()
            for side, shape in (("A", (*outer, own, branch.into)), ("B", (*outer, branch.out, own))):
                places[f"{name}.{side}"] = (at, shape)
                at += -(-prod(shape) // ALIGNED) * ALIGNED
        return cls(places, at, at + ALIGNED)

    def view(self, flat: Tensor, name: str) -> Tensor:
        """The matrix `name` of flat [..., width]: a view."""
        at, shape = self.places[name]
        return flat[..., at : at + prod(shape)].view(*flat.shape[:-1], *shape)


def pack(pairs: Mapping[str, Pair], config: TextConfig, rank: int, dtype: torch.dtype, name: str = "") -> Tensor:
    """One adapter for slots of `rank`, [width] in `dtype`. Raises `InvalidAdapter`, with its `name`, if it does not fit
    in."""
    called = f"the adapter {name}" if name else "the adapter"
    wanted = rank_of(pairs, branches(config))
    if wanted > rank:
        raise InvalidAdapter(
            f"{called} has rank {wanted}, but the slots were made for {rank}; load the model with max_adapter_rank="
            f"{wanted}",
            param="adapter",
        )
    layout = Layout.of(config, rank)
    flat = torch.zeros(layout.width, dtype=dtype)
    flat[layout.rank_at] = wanted
    for linear, (a, b) in pairs.items():
        own = a.shape[-2]
        layout.view(flat, f"{linear}.A")[..., :own, :] = a
        layout.view(flat, f"{linear}.B")[..., :own] = b
    if not bool(flat.isfinite().all()):
        kind = str(dtype).removeprefix("torch.")
        raise InvalidAdapter(f"{called} has values beyond {kind}; load the model in float32", param="adapter")
    return flat


class Slots:
    """Resident adapters: `flat` [slots, width]. Slot 0 is zeros and is never written."""

    def __init__(
        self, config: TextConfig, slots: int, rank: int, dtype: torch.dtype, device: torch.device, kernels: Kernels[Any]
    ) -> None:
        self.layout = Layout.of(config, rank)
        self.flat = torch.zeros((slots, self.layout.width), dtype=dtype, device=device)
        self.layers = [self._layer(config, f"text.blocks.{i}.", kernels) for i in range(config.n_layers)]
        self.bank = self._bank(config, rank)

    def _layer(self, config: TextConfig, block: str, kernels: Kernels[Any]) -> dict[str, LowRank]:
        names = [name for name in branches(config) if name.startswith(block)]
        view, flat = self.layout.view, self.flat
        return {n[len(block) :]: LowRank(view(flat, f"{n}.A"), view(flat, f"{n}.B"), kernels) for n in names}

    def _bank(self, config: TextConfig, rank: int) -> Bank | None:
        """The same memory, as a fused step reads it; None where not all linears of all blocks are adapted."""

        def branch(layer: int, linear: str) -> fused.Branch:
            name = f"text.blocks.{layer}.{linear}"
            return fused.Branch(self.layout.places[f"{name}.A"][0], self.layout.places[f"{name}.B"][0])

        if any(set(layer) != set(_DENSE) for layer in self.layers):
            return None
        blocks = [fused.Branches(*(branch(i, linear) for linear in _DENSE)) for i in range(config.n_layers)]
        return Bank(self.flat, rank, self.layout.rank_at, blocks)

    def load(self, slot: int, weights: object) -> None:
        """Copy what `pack` made into a slot, in stream order; from pinned memory nobody waits for it."""
        assert isinstance(weights, Tensor) and slot > 0
        self.flat[slot].copy_(weights, non_blocking=True)


@dataclass(frozen=True, slots=True)
class LowRank:
    """One linear's matrices in all slots: a [slots, rank, in], b [slots, out, rank]; with experts [slots, E, ...]."""

    a: Tensor
    b: Tensor
    kernels: Kernels[Any]


@dataclass(frozen=True, slots=True)
class LayerAdapters:
    """One layer's linears for tokens in `slots`, int64 [T] or [1]."""

    linears: Mapping[str, LowRank]
    slots: Tensor

    def experts(self) -> ExpertAdapters:
        """Those of a layer of experts."""
        up, down = self.linears["mlp.fc1"], self.linears["mlp.fc2"]
        return ExpertAdapters((up.a, up.b), (down.a, down.b), self.slots)

    def add(self, name: str, y: Tensor, x: Tensor) -> Tensor:
        """What the linear `name` said, y [T, out], and what the adapters of tokens x [T, in] add to it."""
        own = self.linears.get(name)
        return y if own is None else own.kernels.lora(y, x, own.a, own.b, self.slots)
