"""Muon for the blocks' matrices (orthogonalised momentum, batched by shape), AdamW for everything else."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration: wide ``[n, a, b]`` (a <= b) to nearly orthogonal matrices of the same shape."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(s, s, s, beta=b, alpha=c), x, beta=a)
    return x


def wide_parts(p: Tensor) -> list[Tensor]:
    """Views of a matrix that Muon treats as one each: fused qkv is three, tall matrices are transposed."""
    parts = list(p.chunk(3)) if p.shape[0] == 3 * p.shape[1] else [p]
    return [part.mT if part.shape[0] > part.shape[1] else part for part in parts]


class Muon:
    """Momentum whose update is orthogonalised, one batched iteration for all parts of a shape."""

    def __init__(self, params: list[Tensor], decay: float = 0.02, momentum: float = 0.95) -> None:
        self.params, self.decay, self.momentum = params, decay, momentum
        self.momenta: dict[tuple[int, ...], Tensor] = {}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update from the gradients."""
        weights, grads = defaultdict(list), defaultdict(list)
        for p in self.params:
            if p.grad is not None:
                for w, g in zip(wide_parts(p), wide_parts(p.grad), strict=True):
                    weights[tuple(w.shape)].append(w)
                    grads[tuple(w.shape)].append(g)
        torch._foreach_mul_(self.params, 1 - lr * self.decay)
        for shape, parts in grads.items():
            g = torch.stack(parts)
            if shape not in self.momenta:
                self.momenta[shape] = torch.zeros_like(g)
            m = self.momenta[shape].lerp_(g, 1 - self.momentum)
            update = orthogonalise(g.lerp(m, self.momentum)).float() * (-lr * (shape[1] / shape[0]) ** 0.5)
            torch._foreach_add_(weights[shape], list(update.unbind(0)))


def split_parameters(net: nn.Module) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Trainable parameters as (Muon matrices, decayed AdamW matrices, the rest)."""
    muon: list[Tensor] = []
    matrices: list[Tensor] = []
    rest: list[Tensor] = []
    for name, p in net.named_parameters():
        if not p.requires_grad:
            continue
        block = name.endswith("weight") and p.dim() == 2 and ("blocks." in name or "proj_mlp" in name)
        (muon if block else matrices if p.dim() == 2 and name.endswith("weight") else rest).append(p)
    return muon, matrices, rest
