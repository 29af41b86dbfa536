"""Experts with adapters on a GPU: the two ways of `kernels.grouped`, with a low-rank branch for every pair.

In and out as `Kernels.experts`; a pair is a token and one expert that it chose. Every shape follows from the shapes of
the inputs and nothing is asked of the device, so a CUDA graph can hold it. The products with the experts' own weights
are those of `kernels.grouped`, in the same shapes, so pairs of slot 0 come out as they do there, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from gapless.kernels import reference
from gapless.kernels.base import ExpertAdapters
from gapless.kernels.grouped import of_all
from gapless.kernels.stacks import Stack

Says = Callable[[Tensor, Stack], Tensor]
"""What each pair's expert says: [T, k, in] or, the same for all pairs of a token, [T, 1, in] -> [T, k, out]."""


def by_pairs(
    x: Tensor, weights: Tensor, chosen: Tensor, up: Stack, down: Stack, adapters: ExpertAdapters, says: Says
) -> Tensor:
    """Pair by pair, with any product that can tell them apart."""
    x = x[:, None]
    inner = reference.gate(added(says(x, up), x, *adapters.up, chosen, adapters.slots))
    return reference.mix(added(says(inner, down), inner, *adapters.down, chosen, adapters.slots), weights)


def grouped(x: Tensor, weights: Tensor, chosen: Tensor, up: Stack, down: Stack, adapters: ExpertAdapters) -> Tensor:
    """Pairs sorted by expert for each product, and put back in between. All bfloat16."""
    experts, order = chosen.flatten().sort(stable=True)
    ends = torch.searchsorted(experts, torch.arange(up.count, device=x.device), right=True).int()

    def says(y: Tensor, stack: Stack) -> Tensor:
        taken = y.flatten(0, 1).index_select(0, order // (chosen.shape[1] // y.shape[1]))
        said = F.grouped_mm(taken, stack.values.mT, offs=ends)
        return torch.empty_like(said).index_copy_(0, order, said).view(*chosen.shape, -1)

    return by_pairs(x, weights, chosen, up, down, adapters, says)


def for_all(x: Tensor, weights: Tensor, chosen: Tensor, up: Stack, down: Stack, adapters: ExpertAdapters) -> Tensor:
    """Multiply with all; what adapters add is added where it was chosen."""
    place = chosen, torch.arange(x.shape[0], device=x.device)[:, None]
    said = of_all(x[None], up)
    inner = reference.gate(added(said[place], x[:, None], *adapters.up, chosen, adapters.slots))
    whole = reference.gate(said).index_put_(place, inner)
    said = of_all(whole, down)[place]
    return reference.mix(added(said, inner, *adapters.down, chosen, adapters.slots), weights)


def added(y: Tensor, x: Tensor, a: Tensor, b: Tensor, chosen: Tensor, slots: Tensor) -> Tensor:
    """y + b[slot, e] (a[slot, e] x) for each pair, y itself (to the bit) for tokens of slot 0.

    y [T, k, out], x [T, k, in] or, the same for all pairs of a token, [T, 1, in], a [slots, E, rank, in],
    b [slots, E, out, rank], chosen int64 [T, k], slots int64 [T], or [1] for all T -> [T, k, out].
    """
    one = slots.shape[0] == 1 and chosen.numel() >= a.shape[1]  # fewer pairs than experts read less by themselves
    delta = _of_one_slot(x, a, b, chosen, slots) if one else _of_own_slots(x, a, b, chosen, slots)
    return torch.where((slots != 0)[:, None, None], y + delta, y)


def _of_one_slot(x: Tensor, a: Tensor, b: Tensor, chosen: Tensor, slots: Tensor) -> Tensor:
    """Many pairs, one adapter: all its experts at once in two products. Between them, what a pair's expert did not say
    is selected to zero, so the second one adds nothing for it."""
    mine_a, mine_b = a.index_select(0, slots)[0], b.index_select(0, slots)[0]
    experts, rank = mine_a.shape[:2]
    narrow = F.linear(x, mine_a.flatten(0, 1)).view(*x.shape[:2], experts, rank)
    own = chosen[..., None] == torch.arange(experts, device=x.device)
    return torch.where(own[..., None], narrow, 0.0).flatten(2) @ mine_b.mT.flatten(0, 1)


def _of_own_slots(x: Tensor, a: Tensor, b: Tensor, chosen: Tensor, slots: Tensor) -> Tensor:
    """Few pairs, any adapters: each pair's matrices are gathered, and no pair shows in another, in any dtype. One slot
    for all will do."""
    mine = slots[:, None], chosen
    columns = x.expand(*chosen.shape, -1).flatten(0, 1)[..., None]
    return torch.bmm(b[mine].flatten(0, 1), torch.bmm(a[mine].flatten(0, 1), columns)).view(*chosen.shape, -1)
