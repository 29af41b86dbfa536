"""A region module of random numbers, and what its values are by plain lines."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.kernels import reference
from gapless.kernels.fused import Affine
from gapless.kernels.region import Head, Heads


def draw(seed: int, *, dim=64, inner=128, bins=64, wide=(32, 64), dtype=torch.float32, device="cpu") -> Heads:
    g = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=g, device=device) * scale).to(dtype)

    def linear(out: int, into: int) -> Affine:
        return Affine(normal(out, into, scale=into**-0.5), normal(out, scale=0.1))

    def head(numbers: int, features: int) -> Head:
        levels = torch.rand(bins, generator=g, device=device)
        return Head(normal(numbers, features, scale=3.0), linear(dim, 2 * features), linear(inner, dim),
                    linear(numbers * bins, inner), levels)  # fmt: skip

    return Heads(head(1, wide[0]), head(2, wide[1]))


def embedded(heads: Heads, ids: Tensor, values: Tensor, words: Tensor, size_id: int) -> Tensor:
    """[T, D] in float64, but for the features, whose roundings are those of their dtype."""
    coords, sizes = (
        reference.fourier_features(values[:, :numbers], head.features).double() @ head.encoder.weight.double().T
        + head.encoder.bias.double()
        for head, numbers in ((heads.coord, 1), (heads.size, 2))
    )
    given = torch.where((ids == size_id)[:, None], sizes, coords)
    return torch.where(values[:, :1] < 0, words[ids].double(), given)


def scores(heads: Heads, hidden: Tensor) -> Tensor:
    """[B, 3, bins] in float64: of the coordinate, of width and height."""
    said = []
    for head in heads.both:
        inner = hidden.double() @ head.fc1.weight.double().T + head.fc1.bias.double()
        inner = torch.nn.functional.gelu(inner, approximate="tanh")
        said.append(inner @ head.fc2.weight.double().T + head.fc2.bias.double())
    return torch.cat(said, dim=1).view(len(hidden), 3, -1)
