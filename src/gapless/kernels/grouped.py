"""Experts on a GPU: which expert a token takes is known on the device alone, and nothing here asks it.

In and out as `Kernels.experts`. Every shape follows from the shapes of the inputs, so a CUDA graph can hold it.
Two ways:

- `grouped`: token and expert pairs sorted by expert, one matrix product over groups whose ends the device works out.
  Only experts that somebody chose are read.
- `for_all`: every expert takes every token, and what was not chosen is left out of the sum. It reads all of the
  weights; in return each product has one fixed shape, so a row is the same bits in any company, in any dtype.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gapless.kernels import reference
from gapless.kernels.stacks import Stack

ALIGNED = 8
"""A group's rows must be whole 16-byte words: this many bfloat16."""
HAS_GROUPED = ((9, 0),)
"""Compute capabilities on which every torch from 2.11 on runs the grouped product as one kernel; on most others it
reads the groups' ends on the host, which a graph cannot hold."""


def has_grouped(device: torch.device) -> bool:
    """Whether this GPU has the grouped product."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device) in HAS_GROUPED


def fits_grouped(x: Tensor, up: Stack, down: Stack) -> bool:
    """Whether the grouped product takes x [T, D] and stacks up [E, 2 I, D] and down [E, D, I]."""
    wide = up.scales is None and down.scales is None
    return wide and x.dtype is torch.bfloat16 and not any(s.values.shape[-1] % ALIGNED for s in (up, down))


def grouped(x: Tensor, weights: Tensor, chosen: Tensor, up: Stack, down: Stack) -> Tensor:
    """Sort, multiply group by group, put back, sum. All bfloat16."""
    experts, order = chosen.flatten().sort(stable=True)
    numbers = torch.arange(up.count, device=x.device)
    ends = torch.searchsorted(experts, numbers, right=True).int()
    taken = x.index_select(0, order // chosen.shape[1])
    said = F.grouped_mm(reference.gate(F.grouped_mm(taken, up.values.mT, offs=ends)), down.values.mT, offs=ends)
    each = torch.empty_like(said).index_copy_(0, order, said)
    return reference.mix(each.view(*chosen.shape, -1), weights)


def for_all(x: Tensor, weights: Tensor, chosen: Tensor, up: Stack, down: Stack) -> Tensor:
    """Multiply with all, pick the chosen, sum."""
    said = of_all(reference.gate(of_all(x[None], up)), down)
    rows = torch.arange(x.shape[0], device=x.device)
    return reference.mix(said[chosen, rows[:, None]], weights)


def of_all(x: Tensor, stack: Stack) -> Tensor:
    """What every expert's matrix [out, in] says of its own tokens, x [E, T, in], or of the same ones, [1, T, in]
    -> [E, T, out]. FP8 is widened one expert at a time."""
    if stack.scales is None:
        return torch.bmm(x.expand(stack.count, -1, -1), stack.values.mT)
    own = x.expand(stack.count, -1, -1).unbind()
    return torch.stack([F.linear(of, stack.wide(expert, x.dtype)) for expert, of in enumerate(own)])
