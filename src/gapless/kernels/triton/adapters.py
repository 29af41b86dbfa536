"""Adapters in a fused decode step: the memory they need between kernels, and what each kernel is told.

In: `StepAdapters`. Out: arguments for the kernels of `step_jit`, whose part of it is in `adapters_jit`. Everything is
allocated once, for the most rows there may be, so that a CUDA graph can hold a step; which adapters a step reads is
worked out on the device. Counters are zero between steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from torch import Tensor

from gapless.kernels.fused import Affine, StepAdapters
from gapless.kernels.triton import adapters_jit
from gapless.kernels.triton.choices import MOST_ROWS, Dims, padded

SIDE = 16
"""Ranks of an item."""
MOST_RANK = 64
MOST = MOST_ROWS * MOST_RANK // SIDE
"""Items of a step in which every row has an adapter of its own."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Programs of `up` that go ahead of the others, and how many columns of A each takes at once."""

    programs: int
    columns: int

    def shares(self, dim: int) -> int:
        """In how many parts a normed input is read."""
        return dim // _power(dim, self.columns)


SHARED, ALONE, FULL = Ahead(40, 128), Ahead(20, 256), Ahead(20, 128)
"""Where several programs of four warps share a multiprocessor; and where one of eight has it alone, so that few find
room beside the others; the last holds fewer columns of more rows."""
FEW_ROWS = 16
BRIEF, LONG = (132, 16), (64, 8)
"""The same of `scan`: programs ahead, and in how many parts what gelu says is read. Up to so many rows `scan` is soon
over, and as many go ahead as an H200 has multiprocessors; fewer are less in the way of those that attend."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a step with adapters keeps between its kernels, see `adapters_jit`."""

    order: Tensor
    items: Tensor
    count: Tensor
    narrow: Tensor
    parts: Tensor
    ready: Tensor
    arrived: Tensor

    @classmethod
    def of(cls, dim: int, dtype: torch.dtype, device: torch.device) -> Room:
        """Allocate it, zeroed."""

        def room(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            order=room(MOST_ROWS),
            items=room(4, MOST),
            count=room(1),
            narrow=room(4, MOST_ROWS, MOST_RANK, dtype=dtype),
            parts=room(max(BRIEF[1], 3 * SHARED.shares(dim)), MOST_ROWS, MOST_RANK, dtype=torch.float32),
            ready=room(4),
            arrived=room(3 * MOST),
        )

    def plan(self, adapters: StepAdapters) -> None:
        """Work out which adapters a step reads, and for which rows."""
        bank, rows = adapters.bank, len(adapters.slots)
        adapters_jit.plan[(1,)](
            adapters.slots, bank.flat, self.order, self.items, self.count, self.ready, bank.flat.shape[1], bank.rank_at,
            rows, max(SIDE, padded(rows)), MOST, num_warps=4,
        )  # fmt: skip

    def planned(self, adapters: StepAdapters) -> tuple[Any, ...]:
        """What the kernels are told of the plan."""
        rooms = (self.order, self.items, self.count, self.narrow, self.ready, self.arrived, self.parts)
        return (adapters.slots, *rooms, adapters.bank.flat, adapters.bank.flat.shape[1])


@dataclass(frozen=True, slots=True)
class Extra:
    """What a kernel is told of adapters: how many programs go ahead of its own, `lora` and constants."""

    lead: int = 0
    lora: tuple[Any, ...] | None = None
    constants: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Extras:
    """That of the three kernels of a layer; of a step without adapters nothing."""

    up: Extra = Extra()
    scan: Extra = Extra()
    down: Extra = Extra()

    @classmethod
    def of(cls, room: Room, adapters: StepAdapters, layer: int, norm: Affine, dims: Dims) -> Extras:
        """For layer number `layer`, whose norm is `norm`."""
        bank, rows = adapters.bank, padded(len(adapters.slots))
        at = bank.blocks[layer]
        begins = [branch.a for branch in (at.qkv, at.proj, at.fc1, at.fc2)]
        begins += [branch.b for branch in (at.qkv, at.proj, at.fc1, at.fc2)]
        lora = (room.planned(adapters), (norm.weight, norm.bias, *begins))
        rank = 1 << (bank.rank - 1).bit_length()
        same = {"RANK": bank.rank, "MOST": MOST}
        together = {"TOGETHER": 8 if rows > 1 else -(-rank // SIDE)}  # a row's own are all there are
        ahead = SHARED if rows <= 32 else ALONE if rows <= 64 else FULL
        awaited = 1 if triton.knobs.runtime.interpret else 2  # which has no assembly
        wide = {"LEAD": ahead.programs, "SHARES": ahead.shares(dims.dim), "AWAITED": awaited}
        lead, chunks = BRIEF if rows <= FEW_ROWS else LONG
        chunks = _power(dims.inner // 16, chunks)
        deep = {"CHUNKS": chunks, "BM": rows, "DEEP": _power(dims.inner // chunks, 32)}
        return cls(
            up=Extra(ahead.programs, lora, {**wide, "RANK_UP": rank, **together, **same}),
            scan=Extra(lead, lora, {"LEAD": lead, **deep, **same}),
            down=Extra(0, lora, {**together, **same}),
        )


def _power(number: int, most: int) -> int:
    """The largest power of two that divides `number`, up to `most`."""
    return min(number & -number, most)
