"""The three layers everything is made of: each picks its tensors by name and is called on activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gapless.kernels import reference as kernels


@dataclass(frozen=True, slots=True)
class Linear:
    """weight [out, in], bias [out]."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def take(cls, tensors: Mapping[str, Tensor], name: str) -> Linear:
        """Pick `name.weight` and `name.bias`."""
        return cls(tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return kernels.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Norm:
    """A LayerNorm: weight [D], bias [D]."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def take(cls, tensors: Mapping[str, Tensor], name: str) -> Norm:
        """Pick `name.weight` and `name.bias`."""
        return cls(tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def __call__(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return kernels.layer_norm(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Mlp:
    """fc2(gelu_tanh(fc1 x))."""

    fc1: Linear
    fc2: Linear

    @classmethod
    def take(cls, tensors: Mapping[str, Tensor], name: str) -> Mlp:
        """Pick `name.fc1` and `name.fc2`."""
        return cls(Linear.take(tensors, f"{name}.fc1"), Linear.take(tensors, f"{name}.fc2"))

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return self.fc2(kernels.gelu_tanh(self.fc1(x)))
