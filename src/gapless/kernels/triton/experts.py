"""Experts as they are chosen, on the GPU: `Kernels.experts` in four launches, each chosen matrix read once.

In: tokens of a half type; stacks in the same type or in FP8. Out: new tensors. Every grid follows from shapes, nothing
is asked of the device, so a CUDA graph can hold it; a token's result does not depend on who else is there, as long as
there are as many. What runs on the GPU is in `experts_jit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
from torch import Tensor

from gapless.kernels import adapted
from gapless.kernels.base import ExpertAdapters
from gapless.kernels.stacks import Stack
from gapless.kernels.triton import experts_jit as jit
from gapless.kernels.triton import tuned
from gapless.kernels.triton.table import KINDS, built_in
from gapless.kernels.triton.tiles import Kinds, Tile, Tiles, most_tiles, tiles_for
from gapless.kernels.triton.tuned import Card, Sizes

HALVES = (torch.bfloat16, torch.float16)
ALIGNED = 16
"""Rows of matrices must be whole 16-byte words."""
FEW, SCAN = 1024, 4096
"""Pairs that `plan` looks at together: if there are few, and if there are more."""
MIXED = 1024
"""Elements that one program of `mix` sums."""
USUAL = (9, 0)
"""The capability whose tiles are taken where kernels are tried out, not used."""
SHARED = 48 * 1024
"""Bytes of shared memory that every card has for a program."""


def fits(x: Tensor, up: Stack, down: Stack) -> bool:
    """Whether these kernels take tokens x and stacks: half types, FP8 in both stacks or in none, whole words; and
    whether there are tiles for them on this card."""
    return (
        x.dtype in HALVES
        and all(stack.values.dtype is x.dtype or stack.scales is not None for stack in (up, down))
        and (up.scales is None) is (down.scales is None)
        and not any(stack.values.shape[2] * stack.values.itemsize % ALIGNED for stack in (up, down))
        and all(of.is_contiguous() for stack in (up, down) for of in (stack.values, stack.scales) if of is not None)
        and up.values.itemsize in kinds_of(up)
    )


def kinds_of(up: Stack) -> Kinds:
    """The tiles that there are for experts of these sizes where they lie."""
    return _kinds(up.values.device, tuple(up.values.shape), up.values.itemsize)


@cache
def _kinds(device: torch.device, shape: tuple[int, int, int], itemsize: int) -> Kinds:
    if device.type != "cuda":
        usual = built_in(USUAL)
        assert usual is not None
        return usual.experts
    count, inner, width = shape
    kind = next(name for name, size in KINDS.items() if size == itemsize)
    found = tuned.table_for(Card.of(device), Sizes.experts(count, width, inner // 2, kind))
    return {} if found is None else found.experts


@dataclass(frozen=True, slots=True)
class Pairs:
    """Tokens and their experts, in the order of the experts, see `experts_jit.plan`; `alone`: of one, as chosen."""

    order: Tensor
    ends: Tensor
    tiles: Tiles
    alone: bool = False

    @classmethod
    def of(cls, chosen: Tensor, up: Stack, tiles: Tiles | None = None) -> Pairs:
        """Work them out on the device. `tiles` None: those that suit the shapes."""
        pairs, device = chosen.numel(), chosen.device
        tiles = tiles or tiles_for(pairs, up.count, up.values.itemsize, shared_memory(device), kinds_of(up))
        if chosen.shape[0] == 1:
            return cls(chosen, chosen, tiles, alone=True)
        order = torch.empty(pairs, dtype=torch.int32, device=device)
        ends = torch.empty(up.count, dtype=torch.int32, device=device)
        block = FEW if pairs <= FEW else SCAN
        jit.plan[(up.count,)](chosen.contiguous(), order, ends, pairs, block=block, num_warps=block // 256)
        return cls(order, ends, tiles)

    def most(self, stack: Stack, tile: Tile) -> int:
        """How many tiles there could be."""
        return self.order.numel() if self.alone else most_tiles(self.order.numel(), stack.count, tile.rows)

    def gated(self, x: Tensor, stack: Stack) -> Tensor:
        """What each pair's expert says of its token, x [T, D], by `up` [E, 2 I, D], gated: [pairs, I]."""
        width, inner, tile = x.shape[1], stack.values.shape[1] // 2, self.tiles.up
        out = x.new_empty(self.order.numel(), inner)
        most = self.most(stack, tile)
        jit.up[(most * triton.cdiv(inner, tile.lines),)](
            x.contiguous(), self.order, self.ends, _stored(stack), stack.scales, out, most,
            share=self.order.numel() // x.shape[0], count=stack.count, span=triton.next_power_of_2(stack.count),
            width=width, inner=inner, scaled=stack.scales is not None, alone=self.alone,
            assembled=x.is_cuda, **_of(tile),
        )  # fmt: skip
        return out

    def product(self, x: Tensor, stack: Stack) -> Tensor:
        """What each pair's expert says: x [pairs, in] or, one for all pairs of a token, [T, in] -> [pairs, out]."""
        _, width, inner = stack.values.shape
        tile = self.tiles.down
        out = x.new_empty(self.order.numel(), width)
        most = self.most(stack, tile)
        jit.product[(most * triton.cdiv(width, tile.lines),)](
            x.contiguous(), self.order, self.ends, _stored(stack), stack.scales, out, most,
            share=self.order.numel() // x.shape[0], count=stack.count, span=triton.next_power_of_2(stack.count),
            width=width, inner=inner, scaled=stack.scales is not None, alone=self.alone,
            assembled=x.is_cuda, **_of(tile),
        )  # fmt: skip
        return out


def experts(x: Tensor, weights: Tensor, chosen: Tensor, up: Stack, down: Stack, tiles: Tiles | None = None) -> Tensor:
    """See `Kernels.experts`. `tiles` None: those that suit the shapes."""
    pairs = Pairs.of(chosen, up, tiles)
    said = pairs.product(pairs.gated(x, up), down)
    out, width = torch.empty_like(x), x.shape[1]
    block = min(MIXED, triton.next_power_of_2(width))
    jit.mix[(x.shape[0], triton.cdiv(width, block))](
        said, weights.contiguous(), out, width, share=chosen.shape[1], block=block
    )
    return out


def with_adapters(
    x: Tensor, weights: Tensor, chosen: Tensor, up: Stack, down: Stack, adapters: ExpertAdapters
) -> Tensor:
    """See `Kernels.experts`. The experts' own products are these kernels', what adapters add is torch's."""
    pairs = Pairs.of(chosen, up)

    def says(y: Tensor, stack: Stack) -> Tensor:
        return pairs.product(y.flatten(0, 1), stack).view(*chosen.shape, -1)

    return adapted.by_pairs(x, weights, chosen, up, down, adapters, says)


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have on this GPU."""
    if device.type != "cuda":
        return SHARED
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", SHARED))


def _stored(stack: Stack) -> Tensor:
    """Its values as the kernels take them: FP8 as bytes."""
    return stack.values if stack.scales is None else stack.values.view(torch.uint8)


def _of(tile: Tile) -> dict[str, int]:
    """A tile as the kernels' parameters."""
    portions = {"rows": tile.rows, "lines": tile.lines, "deep": tile.deep, "stages": tile.stages}
    return portions | {"num_warps": tile.warps}
