"""How one tensor that a model wants is made of what a file has: as it is, turned, cut out, kept narrow, or dequantised.

In: views of the mapped file. Out: tensors of their own memory on the device, in the dtype computed in. What is large
goes piece by piece, so the host never holds more than one tensor beside the map. Shapes and dtypes of the parts are
checked before anything is made (`weights.checkpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor

FLOATS = ("F32", "BF16", "F16")
GROUP = 128
"""Weights of an int4 checkpoint that share a scale."""

Shape = tuple[int, ...]
Read = Callable[[str], Tensor]


@dataclass(frozen=True, slots=True)
class Part:
    """What a recipe needs from the file. `finite`: a NaN or infinity in it would show late, or not at all."""

    shape: Shape
    dtypes: tuple[str, ...] = FLOATS
    finite: bool = False


class Recipe(Protocol):
    """How to make one tensor."""

    def parts(self) -> Mapping[str, Part]:
        """What it is made of, by the name in the file."""
        ...

    def make(self, read: Read, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Make it."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """As it is in the file; `finite` as in `Part`."""

    name: str
    shape: Shape
    finite: bool = False

    def parts(self) -> Mapping[str, Part]:
        """See `Recipe`."""
        return {self.name: Part(self.shape, finite=self.finite)}

    def make(self, read: Read, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `Recipe`."""
        return _own(read(self.name), dtype, device)


@dataclass(frozen=True, slots=True)
class Turned:
    """[in, out] in the file, `shape` [out, in] for the model."""

    name: str
    shape: Shape

    def parts(self) -> Mapping[str, Part]:
        """See `Recipe`."""
        return {self.name: Part(self.shape[::-1])}

    def make(self, read: Read, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `Recipe`."""
        return _own(read(self.name).t(), dtype, device)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a tensor that holds `whole` rows in the file: several of the model's, one below the other."""

    name: str
    shape: Shape
    first: int
    whole: int

    def parts(self) -> Mapping[str, Part]:
        """See `Recipe`."""
        return {self.name: Part((self.whole, *self.shape[1:]))}

    def make(self, read: Read, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `Recipe`."""
        return _own(read(self.name)[self.first : self.first + self.shape[0]], dtype, device)


@dataclass(frozen=True, slots=True)
class Kept:
    """In the file's own dtype: FP8 weights, which kernels widen as they read them, and their scales."""

    name: str
    part: Part

    def parts(self) -> Mapping[str, Part]:
        """See `Recipe`."""
        return {self.name: self.part}

    def make(self, read: Read, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `Recipe`."""
        return read(self.name).to(device=device, copy=True).contiguous()


@dataclass(frozen=True, slots=True)
class Nibbles:
    """Four bits a weight, two in a byte: `shape` [out, in] in groups of `GROUP` with a scale and a zero each.

    Groups 0..n/2-1 are the high halves of the bytes, in order, the others the low halves: (q - zero) * scale,
    computed in bfloat16 as the checkpoint's own code does.
    """

    name: str
    shape: Shape

    def parts(self) -> Mapping[str, Part]:
        """See `Recipe`."""
        groups = prod(self.shape) // GROUP
        ends = Part((groups, 1), FLOATS, finite=True)
        packed = Part((groups // 2, GROUP), ("U8",))
        return {f"{self.name}.packed": packed, f"{self.name}.scale": ends, f"{self.name}.zero_point": ends}

    def make(self, read: Read, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `Recipe`."""
        packed = read(f"{self.name}.packed").to(device)
        scale, zero = (
            read(f"{self.name}.{end}").to(device=device, dtype=torch.bfloat16) for end in ("scale", "zero_point")
        )
        halves = torch.cat((packed >> 4, packed & 0xF)).to(torch.bfloat16)
        return ((halves - zero) * scale).reshape(self.shape).to(dtype)


def scale_part(shape: Shape) -> Part:
    """The scales of FP8 experts of `shape` [E, out, in]: [E, out], in float32."""
    return Part(shape[:2], ("F32",), finite=True)


def _own(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Copy out of the map: a converted, aligned tensor that outlives the file."""
    return tensor.to(device=device, dtype=dtype, copy=True).contiguous()
