"""What JPEG files do to pictures, on crops: rounded cosine coefficients of 8 x 8 blocks, colours most coarsely."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 8
LUMA = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))
COLOUR_STEP, SLOPE = 2.0, 0.4


def cosines() -> Tensor:
    """The orthonormal DCT-II of eight samples, ``[frequency, sample]``."""
    k = torch.arange(BLOCK, dtype=torch.float64)
    table = torch.cos(math.pi / BLOCK * (k[None, :] + 0.5) * k[:, None]) * math.sqrt(2 / BLOCK)
    table[0] /= math.sqrt(2)
    return table.float()


BASIS, TURN = cosines(), torch.tensor(LUMA)
BACK = TURN.inverse()


def _blocks(crops: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """``left @ block @ right`` for every block of ``[N, 3, h, w]``."""
    rows = crops.unflatten(-1, (-1, BLOCK)) @ right
    return (rows.flatten(-2).unflatten(-2, (-1, BLOCK)).transpose(-1, -2) @ left.T).transpose(-1, -2).flatten(-3, -2)


def compress(crops: Tensor, step: Tensor) -> Tensor:
    """Crops ``[N, 3, h, w]`` in -1..1 (sides are multiples of 8), with a quantisation step ``[N]`` for each.

    Coefficient (u, v) of the light is rounded to multiples of ``step * (1 + 0.4 (u + v))``, of the two colour planes
    (ITU-R BT.601) to multiples of twice that. 0.01 is a very good picture, 0.06 one with visible rings.
    """
    basis, turn, back = (table.to(crops.device) for table in (BASIS, TURN, BACK))
    side = torch.arange(BLOCK, device=crops.device)
    steps = (1 + SLOPE * (side[:, None] + side[None, :])).tile(crops.shape[-2] // BLOCK, crops.shape[-1] // BLOCK)
    planes = torch.tensor([1.0, COLOUR_STEP, COLOUR_STEP], device=crops.device)
    size = step[:, None, None, None] * planes[:, None, None] * steps
    with torch.autocast(crops.device.type, enabled=False):
        coefficients = _blocks(torch.einsum("kc,nchw->nkhw", turn, crops), basis, basis.T)
        light = _blocks((coefficients / size).round() * size, basis.T, basis)
        return torch.einsum("ck,nkhw->nchw", back, light).clamp(-1, 1)
