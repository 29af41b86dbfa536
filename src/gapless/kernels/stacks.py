"""The weights of a layer's experts: one matrix an expert, in the dtype computed in, or in FP8 with scales.

What a checkpoint has in FP8 stays so: a byte an element on the device, and whoever computes widens what it reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Stack:
    """E matrices. values [E, out, in]; in FP8 with scales float32 [E, out], by which each row is multiplied."""

    values: Tensor
    scales: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.values.dtype is FP8) is (self.scales is None):
            need = "need scales" if self.scales is None else "take no scales"
            raise ValueError(f"values of {self.values.dtype} {need}: only {FP8} has them")
        if self.scales is not None and self.scales.shape != self.values.shape[:2]:
            raise ValueError(f"scales {list(self.scales.shape)} are not a row's of values {list(self.values.shape)}")

    @property
    def count(self) -> int:
        """E."""
        return self.values.shape[0]

    def wide(self, expert: int, dtype: torch.dtype) -> Tensor:
        """One expert's matrix [out, in] in `dtype`: multiplied in float32 and rounded once, if it is FP8."""
        own = self.values[expert]
        return own if self.scales is None else (own.float() * self.scales[expert, :, None]).to(dtype)
