"""How keys and values are kept in a cache: in the model's dtype, or in FP8 with a scale a head.

In FP8 (e4m3fn) a kept number times its head's scale is the key or value. Scales are powers of two, so multiplying by
one is exact: when a kernel does so changes no bit. A key or value is rounded once, when it is made, to the model's
dtype and then to FP8; all who see it, its own token first, see what is kept. So it does not matter what was computed
together with it, before it, or a second time.

Shapes: keys, values [pages, H, page, D] of one layer; scales float32 [2, H], of its keys and of its values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.kernels.stacks import FP8

LARGEST = torch.finfo(FP8).max
"""Of FP8: 448. What is larger is kept as this; it has no infinity."""
NAN = 0x7F
"""FP8's byte for no number."""
_EVERY = torch.arange(256, dtype=torch.uint8).view(FP8).float()
"""What each byte says."""


def scales_of(bounds: Tensor) -> Tensor:
    """Float [...], the largest that keys or values of a head can be -> its scale float32 [...]: the least power of two
    with which they are kept without cutting. Heads whose numbers are all zero, or not finite, have scale 1."""
    bounds = bounds.float()
    exponents = (bounds / LARGEST).log2().ceil()
    return torch.where(exponents.isfinite(), exponents.clamp(-100.0, 100.0).exp2(), 1.0)


def narrowed(x: Tensor, scales: Tensor) -> Tensor:
    """x [T, H, D] by scales [H] -> FP8 [T, H, D], rounded to the nearest, of two equally near to the even."""
    return (x.float() / scales[:, None]).clamp(-LARGEST, LARGEST).to(FP8)


def widened(kept: Tensor, scales: Tensor) -> Tensor:
    """FP8 [T, H, D] by scales [H] -> float32 [T, H, D]."""
    return plain(kept) * scales[:, None]


def plain(kept: Tensor) -> Tensor:
    """A cache's numbers without scales, float32; any shape. A CPU looks FP8 up, which takes a tenth of the time that
    torch takes to convert it number by number."""
    if kept.dtype is not FP8 or kept.device.type != "cpu":
        return kept.float()
    return torch.index_select(_EVERY, 0, kept.view(torch.uint8).flatten().int()).view(kept.shape)


def as_stored(cache: Tensor) -> Tensor:
    """The same memory as numbers that everything can move: FP8 as bytes."""
    return cache.view(torch.uint8) if cache.dtype is FP8 else cache
