"""The three layers everything is made of: each picks its tensors by name and is called on activations.

They compute with the kernels they are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gapless.kernels.base import Kernels


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

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return self.fc2(self.kernels.gelu_tanh(self.fc1(x)))
