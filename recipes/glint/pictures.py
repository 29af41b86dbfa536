"""Real pictures through the real preprocessing: Pillow's Lanczos resize, tiling, crops."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from recipes.glint.data import MARGIN, SIDE, WINDOW
from recipes.glint.model import Glint
from recipes.glint.scenes import tiling
from torch import Tensor


def crops_of(image: Image.Image) -> tuple[Tensor, tuple[int, int]]:
    """Global crop, then local crops (none when there is one tile), ``[n, 3, 224, 224]`` in -1..1, and the tiling."""
    rgb = image.convert("RGB")
    rows, cols = tiling(*rgb.size)
    parts = [rgb.resize((SIDE, SIDE), Image.Resampling.LANCZOS)]
    if rows * cols > 1:
        big = rgb.resize((WINDOW * cols + MARGIN, WINDOW * rows + MARGIN), Image.Resampling.LANCZOS)
        parts += [
            big.crop((WINDOW * j, WINDOW * i, WINDOW * j + SIDE, WINDOW * i + SIDE))
            for i in range(rows)
            for j in range(cols)
        ]
    pixels = np.stack([np.asarray(p) for p in parts])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1, (rows, cols)


@torch.no_grad()
def embed_pictures(net: Glint, images: list[Image.Image]) -> Tensor:
    """Image embeddings ``[B, patches, dim]``, one picture at a time."""
    device = next(net.parameters()).device
    out = []
    for image in images:
        crops, (rows, cols) = crops_of(image)
        out.append(net.features(crops.to(device, net.text.wte.dtype), [(1, rows, cols)]))
    return torch.cat(out)
