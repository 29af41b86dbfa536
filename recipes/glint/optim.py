"""Muon for the blocks' matrices (orthogonalised momentum, batched by shape), AdamW for everything else."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration: ``[n, a, b]`` to nearly orthogonal matrices of the same shape."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x.mT if tall else x


class Muon:
    """Momentum whose update is orthogonalised. Fused qkv matrices are treated as three."""

    def __init__(self, params: list[Tensor], decay: float = 0.02, momentum: float = 0.95, compiled: bool = False) -> None:
        self.shapes: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for p in params:
            self.shapes[(p.shape[0], p.shape[1])].append(p)
        self.momenta = {shape: torch.zeros(len(ps), *shape, device=ps[0].device) for shape, ps in self.shapes.items()}
        self.decay, self.momentum = decay, momentum
        self.orthogonalise = torch.compile(orthogonalise, dynamic=False) if compiled else orthogonalise

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update from the gradients."""
        for shape, params in self.shapes.items():
            g = torch.stack([p.grad for p in params if p.grad is not None])
            m = self.momenta[shape].lerp_(g, 1 - self.momentum)
            update = g.lerp(m, self.momentum)
            parts = 3 if shape[0] == 3 * shape[1] else 1
            split = update.view(-1, shape[0] // parts, shape[1])
            scale = max(1.0, split.shape[1] / split.shape[2]) ** 0.5
            whole = self.orthogonalise(split).float().view_as(update) * (-lr * scale)
            torch._foreach_mul_(params, 1 - lr * self.decay)
            torch._foreach_add_(params, list(whole.unbind(0)))


def split_parameters(net: nn.Module) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Trainable parameters as (Muon matrices, decayed AdamW matrices, the rest)."""
    muon, matrices, rest = [], [], []
    for name, p in net.named_parameters():
        if not p.requires_grad:
            continue
        block = name.endswith("weight") and p.dim() == 2 and ("blocks." in name or "proj_mlp" in name)
        (muon if block else matrices if p.dim() == 2 and name.endswith("weight") else rest).append(p)
    return muon, matrices, rest
