"""Caches kept in FP8, for scenes of random numbers: scales, and the way there and back."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.kernels.stacks import FP8


def draw_scales(layers: int, heads: int, g: torch.Generator) -> Tensor:
    """Float32 [layers, 2, H], powers of two, with which numbers as usual use the middle of FP8's range."""
    exponents = torch.randint(-6, -2, (layers, 2, heads), generator=g, device=g.device)
    return exponents.float().exp2()


def kept(cache: Tensor, scales: Tensor | None) -> Tensor:
    """[..., pages, H, page, D] -> as it is kept with scales [..., H]; without, a copy."""
    return cache.clone() if scales is None else _cut(cache.float() / scales[..., None, :, None, None]).to(FP8)


def read(cache: Tensor, scales: Tensor | None) -> Tensor:
    """The way back, float32; without scales what it is."""
    return cache if scales is None else cache.float() * scales[..., None, :, None, None]


def rounded(cache: Tensor, scales: Tensor | None) -> Tensor:
    """There and back, in the dtype it has."""
    return cache if scales is None else read(kept(cache, scales), scales).to(cache.dtype)


def told(k: Tensor, scales: Tensor | None) -> Tensor:
    """One token's [H, D], float64, as all see it afterwards."""
    return k if scales is None else _cut(k.float() / scales[:, None]).to(FP8).double() * scales[:, None].double()


def _cut(x: Tensor) -> Tensor:
    """What is larger is kept as the largest number."""
    return x.clamp(-448.0, 448.0)
