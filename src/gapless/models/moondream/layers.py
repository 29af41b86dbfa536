"""The layers everything is made of: each picks its tensors by name and is called on activations.

They compute with the kernels they are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gapless.kernels.base import Kernels
from gapless.kernels.stacks import Stack
from gapless.models.moondream.adapters import LayerAdapters


@dataclass(frozen=True, slots=True)
class Linear:
    """weight [out, in], bias [out]."""

    weight: Tensor
    bias: Tensor
    kernels: Kernels[Any]

    @classmethod
    def take(cls, tensors: Mapping[str, Tensor], name: str, kernels: Kernels[Any]) -> Linear:
        """Pick `name.weight` and `name.bias`."""
        return cls(tensors[f"{name}.weight"], tensors[f"{name}.bias"], kernels)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return self.kernels.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Norm:
    """A LayerNorm: weight [D], bias [D]."""

    weight: Tensor
    bias: Tensor
    kernels: Kernels[Any]

    @classmethod
    def take(cls, tensors: Mapping[str, Tensor], name: str, kernels: Kernels[Any]) -> Norm:
        """Pick `name.weight` and `name.bias`."""
        return cls(tensors[f"{name}.weight"], tensors[f"{name}.bias"], kernels)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return self.kernels.layer_norm(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Mlp:
    """fc2(gelu_tanh(fc1 x))."""

    fc1: Linear
    fc2: Linear
    kernels: Kernels[Any]

    @classmethod
    def take(cls, tensors: Mapping[str, Tensor], name: str, kernels: Kernels[Any]) -> Mlp:
        """Pick `name.fc1` and `name.fc2`."""
        fc1, fc2 = (Linear.take(tensors, f"{name}.{part}", kernels) for part in ("fc1", "fc2"))
        return cls(fc1, fc2, kernels)

    def __call__(self, x: Tensor, lora: LayerAdapters | None = None, raw: Tensor | None = None) -> Tensor:
        """[..., in] -> [..., out]; with adapters [T, in] -> [T, out]. `raw`: what adapters take, if that is not x."""
        if lora is None:
            return self.fc2(self.kernels.gelu_tanh(self.fc1(x)))
        inner = self.kernels.gelu_tanh(lora.add("mlp.fc1", self.fc1(x), x if raw is None else raw))
        return lora.add("mlp.fc2", self.fc2(inner), inner)


@dataclass(frozen=True, slots=True)
class Experts:
    """Gated feed-forwards of which each token takes the `count` likeliest, weighted by the router.

    up [E, 2 inner, D], down [E, D, inner], without biases, in FP8 if the checkpoint is.
    """

    router: Linear
    up: Stack
    down: Stack
    count: int
    kernels: Kernels[Any]

    @classmethod
    def take(cls, tensors: Mapping[str, Tensor], name: str, count: int, kernels: Kernels[Any]) -> Experts:
        """Pick `name.router`, and of `name.fc1` and `name.fc2` the `weight` and, if it is FP8, the `scale`."""
        router = Linear.take(tensors, f"{name}.router", kernels)
        up, down = (Stack(tensors[f"{name}.{fc}.weight"], tensors.get(f"{name}.{fc}.scale")) for fc in ("fc1", "fc2"))
        return cls(router, up, down, count, kernels)

    def __call__(self, x: Tensor, lora: LayerAdapters | None = None) -> Tensor:
        """[T, D] -> [T, D]."""
        weights, chosen = self.kernels.route(self.router(x), self.count)
        adapters = None if lora is None else lora.experts()
        return self.kernels.experts(x, weights, chosen, self.up, self.down, adapters)


@dataclass(frozen=True, slots=True)
class Tau:
    """How far each head's queries and values are scaled: by what the token is, and by where it stands.

    weight [2 H, 3 D]: rows for queries, then for values. levels [positions, H]. `gelu`: "erf" or "tanh".
    """

    weight: Tensor
    levels: Tensor
    gelu: str
    kernels: Kernels[Any]

    @classmethod
    def take(cls, tensors: Mapping[str, Tensor], name: str, gelu: str, length: int, kernels: Kernels[Any]) -> Tau:
        """Pick `name.wq`, `name.wv` and `name.alpha`, for positions below `length`."""
        weight = torch.cat((tensors[f"{name}.wq"], tensors[f"{name}.wv"]))
        return cls(weight, kernels.tau_levels(tensors[f"{name}.alpha"], length), gelu, kernels)

    def __call__(self, qkv: Tensor, positions: Tensor) -> Tensor:
        """[T, 3 D] at positions int64 [T] -> [T, 3 D], keys as they were."""
        return self.kernels.tau(qkv, self.weight, self.levels[positions], self.gelu)
