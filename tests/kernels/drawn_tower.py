"""A small picture tower with drawn weights, and what it says in the widest arithmetic."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from gapless.kernels.fused import Affine, Tower, TowerBlock
from gapless.kernels.reference import adaptive_average
from gapless.models.moondream.vision import pixel_levels, stitch


def draw(
    seed: int,
    *,
    dim: int = 48,
    heads: int = 2,
    inner: int = 70,
    layers: int = 2,
    grid: int = 5,
    size: int = 3,
    margin: int = 1,
    text: int = 32,
    wide: int = 64,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Tower:
    """Weights about as large as trained ones make them: every part shows in what comes out."""
    source = torch.Generator(device).manual_seed(seed)

    def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=source, device=device) * scale).to(dtype)

    def affine(out: int, into: int) -> Affine:
        return Affine(drawn(out, into, scale=into**-0.5), drawn(out, scale=0.3))

    def norm(width: int) -> Affine:
        return Affine(1 + drawn(width, scale=0.2), drawn(width, scale=0.2))

    def block() -> TowerBlock:
        attention = norm(dim), affine(3 * dim, dim), affine(dim, dim)
        return TowerBlock(*attention, norm(dim), affine(inner, dim), affine(dim, inner))

    return Tower(
        levels=pixel_levels(dtype).to(device),
        patches=affine(dim, 3 * size * size),
        positions=drawn(1, grid * grid, dim, scale=0.5),
        blocks=[block() for _ in range(layers)],
        ln=norm(dim),
        inner=affine(wide, 2 * dim),
        out=affine(text, wide),
        heads=heads,
        grid=grid,
        size=size,
        margin=margin,
    )


def draw_crops(seed: int, count: int, tower: Tower) -> torch.Tensor:
    side = tower.grid * tower.size
    crops = torch.randint(0, 256, (count, side, side, 3), generator=torch.Generator().manual_seed(seed))
    return crops.to(torch.uint8).to(tower.levels.device)


def encoded(tower: Tower, crops: torch.Tensor) -> torch.Tensor:
    """[n, side, side, 3] -> float64 [n, grid grid, D]."""
    n, grid, size = crops.shape[0], tower.grid, tower.size
    cut = crops.view(n, grid, size, grid, size, 3).permute(0, 1, 3, 5, 2, 4).reshape(n, grid * grid, -1).int()
    x = _linear(tower.levels[cut], tower.patches) + tower.positions.double()
    for block in tower.blocks:
        q, k, v = (
            _linear(_norm(x, block.ln1), block.qkv).view(n, grid * grid, 3, tower.heads, -1).permute(2, 0, 3, 1, 4)
        )
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        x = x + _linear((weights @ v).transpose(1, 2).flatten(2), block.proj)
        x = x + _linear(F.gelu(_linear(_norm(x, block.ln2), block.fc1), approximate="tanh"), block.fc2)
    return _norm(x, tower.ln)


def projected(tower: Tower, features: torch.Tensor, tiling: tuple[int, int]) -> torch.Tensor:
    """float64 [1 + rows * columns, grid grid, D] -> [grid grid, out]."""
    features = features.double().view(features.shape[0], tower.grid, tower.grid, -1)
    local = adaptive_average(stitch(features[1:], tiling, tower.margin), tower.grid)
    both = torch.cat((features[0], local), dim=-1).flatten(0, 1)
    return _linear(F.gelu(_linear(both, tower.inner), approximate="tanh"), tower.out)


def _linear(x: torch.Tensor, of: Affine) -> torch.Tensor:
    return F.linear(x.double(), of.weight.double(), of.bias.double())


def _norm(x: torch.Tensor, of: Affine) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], of.weight.double(), of.bias.double(), 1e-5)
