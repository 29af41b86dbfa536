"""One process, or several under ``torchrun``: gradients averaged, one clock."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


class World:
    """The processes that train together; alone when not started by ``torchrun``."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", self.rank) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self.device)
        if self.size > 1:
            dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")

    @property
    def first(self) -> bool:
        """Whether this process prints, evaluates and saves."""
        return self.rank == 0

    def clock(self, value: float) -> float:
        """The first process's value, so that all agree on the time."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(shared, 0)
        return float(shared)

    def average(self, params: Sequence[Tensor]) -> None:
        """Average the gradients of all processes in one transfer."""
        if self.size == 1:
            return
        grads = [p.grad for p in params if p.grad is not None]
        flat = torch.cat([g.flatten() for g in grads])
        dist.all_reduce(flat)
        flat /= self.size
        torch._foreach_copy_(
            grads, [f.view_as(g) for f, g in zip(flat.split([g.numel() for g in grads]), grads, strict=True)]
        )

    def close(self) -> None:
        """Leave the group."""
        if self.size > 1:
            dist.barrier()
            dist.destroy_process_group()
