"""A decode step in three kernels a layer, over memory that stays.

In: as `kernels.fused.FusedStep`. Out: the same. Everything a step needs between its kernels is allocated once, for the
most rows there may be, so a CUDA graph can hold a step, and steps of one stream share it. Counters of parts that have
arrived are zero between kernels: the last to arrive puts them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gapless.kernels.fused import Decoder, StepAdapters
from gapless.kernels.kept import as_stored
from gapless.kernels.stacks import FP8
from gapless.kernels.triton import step_jit
from gapless.kernels.triton.adapters import Extra, Extras, Room
from gapless.kernels.triton.choices import (
    LATE,
    MOST_ROWS,
    MOST_SCANS,
    Choice,
    Dims,
    Gpu,
    Tile,
    choice,
    over_bytes,
    padded,
    soon,
)
from gapless.kernels.triton.folding import Folded, Packed, pack
from gapless.kernels.triton.keys import settle

DTYPES = (torch.bfloat16, torch.float16)
PAGES = (16, 32, 64)


class TritonStep:
    """See the module. `launches` counts kernels, so that a test can tell that they ran."""

    def __init__(self, decoder: Decoder, gpu: Gpu, source: str = "given") -> None:
        settle()
        self._norms = [block.ln for block in decoder.blocks]  # as adapters know them
        self._packed: Packed = pack(decoder)
        self._gpu = gpu
        self.source = source
        self.dims = dims_of(decoder)
        self.dtype = decoder.ln.weight.dtype
        self.launches = 0
        dim, inner, device = self.dims.dim, self.dims.inner, decoder.ln.weight.device

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        most = MOST_ROWS
        self._x32 = room(most, dim)
        self._stats = room(2, dim, most)
        self._qkv = room(most, 3 * dim, dtype=self.dtype)
        self._inner = room(most, dim + inner, dtype=self.dtype)
        self._parts = room(8, most, dim)
        self._scan_parts = room(MOST_SCANS, self.dims.heads, dim // self.dims.heads + 2)
        self._arrived = room(most * self.dims.heads, dtype=torch.int32)
        self._tiles = room(dim, dtype=torch.int32)
        self._adapters = Room.of(dim, self.dtype, device)

    @property
    def gpu(self) -> Gpu:
        """What it was made for."""
        return self._gpu

    @property
    def weights(self) -> Decoder:
        """The decoder as it lies now."""
        return self._packed.decoder

    def with_choices(self, choices: Mapping[int, Choice]) -> TritonStep:
        """The same step with other tiles: over the same memory, so one of them runs at a time."""
        other = copy(self)
        other._gpu = replace(self._gpu, choices=choices)
        return other

    def poison(self) -> None:
        """Put NaN wherever a step leaves numbers for its own next kernels: one that is read unwritten shows."""
        for room in (self._x32, self._stats, self._qkv, self._inner, self._parts, self._scan_parts):
            room.fill_(torch.nan)

    def choice(self, rows: int) -> Choice | None:
        """The tiles of a step of that many rows."""
        return choice(self.dims, rows, self.dtype.itemsize, self._gpu)

    def fits(self, rows: int, keys: Tensor) -> bool:
        """See `FusedStep.fits`."""
        return self.choice(rows) is not None and keys.shape[-2] in PAGES and keys.dtype in (self.dtype, FP8)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        tables: Tensor,
        keys: Tensor,
        values: Tensor,
        adapters: StepAdapters | None = None,
        scales: Tensor | None = None,
    ) -> Tensor:
        """See `FusedStep.forward`."""
        rows, positions, tables = x.shape[0], positions.contiguous(), tables.contiguous()
        chosen = self._chosen(rows)
        if adapters is not None and self._gpu.dependent and rows > 1:
            chosen = replace(chosen, pdl=LATE)  # programs that go ahead ask for A meanwhile
        hidden = x.new_empty(padded(rows), self.dims.dim)
        extras, each = self._extras(adapters), [None] * len(keys) if scales is None else scales
        layers = zip(self._packed.layers, as_stored(keys), as_stored(values), each, extras, strict=True)
        self._enter(x.contiguous(), hidden, chosen, chosen.down.bn)
        for layer, k, v, by, extra in layers:
            self._up(hidden, layer.up, rows, chosen, extra.up)
            self._scan(positions, tables, (k, v, by), rows, chosen, extra.scan)
            self._down(hidden, layer.down, layer.bias, rows, chosen, extra.down)
        return hidden[:rows]

    def _extras(self, adapters: StepAdapters | None) -> list[Extras]:
        """What each layer's kernels are told of adapters; which are read is planned here."""
        if adapters is None:
            return [Extras()] * len(self._norms)
        self.launches += 1
        self._adapters.plan(adapters)
        return [Extras.of(self._adapters, adapters, i, norm, self.dims) for i, norm in enumerate(self._norms)]

    def logits(self, hidden: Tensor) -> Tensor:
        """See `FusedStep.logits`."""
        pieces = [self._logits(piece.contiguous()) for piece in torch.split(hidden, MOST_ROWS)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _logits(self, hidden: Tensor) -> Tensor:
        rows, dims = hidden.shape[0], self.dims
        chosen = self._chosen(rows)
        tile = chosen.head
        x = torch.empty_like(hidden)
        logits = torch.empty(rows, dims.vocab, dtype=torch.float32, device=hidden.device)
        self._enter(hidden, x, chosen, PARTS)
        head = self._packed.head
        tiles = dims.dim // PARTS
        self.launches += 1
        step_jit.head[(dims.vocab // tile.bn,)](
            x, self._stats, head.w, head.bias, head.sums, logits, rows, dims.dim, dims.vocab, tiles, _up(tiles),
            padded(rows), *_shape(tile), chosen.pdl, chosen.ahead, num_warps=tile.warps, **_dependent(chosen),
        )  # fmt: skip
        return logits

    def _chosen(self, rows: int) -> Choice:
        found = self.choice(rows)
        if found is None:
            raise ValueError(f"a step of {rows} rows and {self.dims} cannot be computed; ask `fits` first")
        return found

    def _enter(self, given: Tensor, x: Tensor, chosen: Choice, part: int) -> None:
        """Rows as they are given -> x, the residual, and statistics of parts of that many numbers."""
        rows, dim = given.shape[0], self.dims.dim
        tiles = dim // part
        self.launches += 1
        step_jit.entry[(rows,)](
            given, x, self._x32, self._stats, dim, tiles, _up(tiles), padded(rows), chosen.pdl, num_warps=4,
            **_dependent(chosen),
        )  # fmt: skip

    def _up(self, x: Tensor, layer: Folded, rows: int, chosen: Choice, extra: Extra) -> None:
        dims, tile = self.dims, chosen.up
        tiles = dims.dim // chosen.down.bn
        self.launches += 1
        step_jit.up[((3 * dims.dim + dims.inner) // tile.bn + extra.lead,)](
            x, self._stats, layer.w, layer.bias, layer.sums, self._qkv, self._inner, rows, extra.lora, dims.dim,
            dims.inner, tiles, _up(tiles), padded(rows), *_shape(tile), chosen.pdl, min(chosen.ahead, dims.dim),
            **extra.constants, num_warps=tile.warps, **_dependent(chosen),
        )  # fmt: skip

    def _scan(
        self,
        positions: Tensor,
        tables: Tensor,
        own: tuple[Tensor, Tensor, Tensor | None],
        rows: int,
        chosen: Choice,
        extra: Extra,
    ) -> None:
        """`own`: the layer's keys, values and scales."""
        dims, (keys, values, scales) = self.dims, own
        scan = chosen.scan if scales is None else over_bytes(chosen.scan, rows)
        cos, sin = self._packed.decoder.cos, self._packed.decoder.sin
        self.launches += 1
        step_jit.scan[(rows * dims.heads * scan.splits + extra.lead,)](
            self._qkv, keys, values, tables, positions, cos, sin, self._inner, self._scan_parts, self._arrived,
            tables.shape[1], (dims.dim // dims.heads) ** -0.5, extra.lora, dims.dim, dims.inner, dims.heads,
            dims.rotary, keys.shape[2], scan.splits, scan.bt, scan.stages, soon(chosen.ahead, scan.splits), chosen.pdl,
            **extra.constants, scales=scales, num_warps=scan.warps, **_dependent(chosen),
        )  # fmt: skip

    def _down(self, x: Tensor, w: Tensor, bias: Tensor, rows: int, chosen: Choice, extra: Extra) -> None:
        dims, tile = self.dims, chosen.down
        share = (dims.dim + dims.inner) // tile.splits
        self.launches += 1
        step_jit.down[(dims.dim // tile.bn * tile.splits,)](
            self._inner, w, bias, self._x32, x, self._stats, self._parts, self._tiles, rows, extra.lora, dims.dim,
            dims.inner, tile.splits, padded(rows), *_shape(tile), chosen.pdl, min(chosen.ahead, share & -share),
            **extra.constants, num_warps=tile.warps, **_dependent(chosen),
        )  # fmt: skip


PARTS = 64
"""Numbers of a row whose statistics the head takes together."""


def dims_of(decoder: Decoder) -> Dims:
    """A decoder's sizes."""
    block = decoder.blocks[0]
    return Dims(
        dim=len(decoder.ln.bias),
        inner=len(block.fc1.bias),
        heads=decoder.heads,
        rotary=decoder.cos.shape[1],
        vocab=len(decoder.head.bias),
    )


def _shape(tile: Tile) -> tuple[int, int, int, int]:
    return tile.bn, tile.bk, tile.stages, tile.mode


def _up(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _dependent(chosen: Choice) -> dict[str, Any]:
    return {"launch_pdl": True} if chosen.pdl else {}
