"""Launches of a sparse decode step for one row; what they compute says `lone_jit`. In and out as `sparse_many`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gapless.kernels.sparse import Mixture, ScaledBlock, SparseDecoder
from gapless.kernels.triton import lone_jit as jit
from gapless.kernels.triton.sparse_choices import Lone, SparseDims
from gapless.kernels.triton.sparse_room import Layer, Room, kinds, stored, up
from gapless.kernels.triton.sparse_scan import How, Own, Reach, dependent, scan


@dataclass(slots=True)
class OneRow:
    """`launches` counts."""

    decoder: SparseDecoder
    dims: SparseDims
    room: Room
    chosen: Lone
    launches: int = 0

    def forward(self, x: Tensor, at: Reach, layers: list[Layer], owns: list[Own]) -> Tensor:
        """x [1, D] -> hidden [1, D]."""
        hidden, given = torch.empty_like(x), x
        how = How(self.chosen.scan, 1, 0, self.chosen.pdl)
        for layer, own in zip(layers, owns, strict=True):
            block = layer.block
            self._up(given, layer)
            if isinstance(block.mlp, Mixture):
                self._middle(given, block, block.mlp, at, own)
                self._experts_down(given, hidden, layer, block.mlp)
            else:
                scan(self.decoder, self.dims, self.room, layer, at, own, how)
                self._dense_down(given, hidden, layer)
            self.launches += 1
            given = self.room.x
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [1, D] -> float32 [1, vocab]."""
        dims, room, head, (bn, warps) = self.dims, self.room, self.decoder.head, self.chosen.head
        logits = torch.empty(1, dims.vocab, dtype=torch.float32, device=hidden.device)
        norm = self.decoder.ln
        self.launches += 1
        jit.up[(-(-dims.vocab // bn),)](
            hidden, norm.weight, norm.bias, head.weight, head.bias, room.qkv, room.active, room.inner, logits,
            dims.dim, up(dims.dim), dims.vocab, 0, False, False, bn, self.chosen.pdl, num_warps=warps,
            **dependent(self.chosen.pdl),
        )  # fmt: skip
        return logits

    def _up(self, given: Tensor, layer: Layer) -> None:
        dims, room, block, (bn, warps) = self.dims, self.room, layer.block, self.chosen.up
        count = 3 * dims.dim + (dims.experts if layer.routed else dims.ff)
        self.launches += 1
        jit.up[(-(-count // bn),)](
            given, block.ln.weight, block.ln.bias, layer.w, layer.bias, room.qkv, room.active, room.inner,
            room.logits, dims.dim, up(dims.dim), count, 3 * dims.dim, not layer.routed, block.scaling.gelu == "tanh",
            bn, self.chosen.pdl, num_warps=warps, **dependent(self.chosen.pdl),
        )  # fmt: skip

    def _middle(self, given: Tensor, block: ScaledBlock, mlp: Mixture, at: Reach, own: Own) -> None:
        dims, room, tau, scan, (bn, warps) = self.dims, self.room, block.scaling, self.chosen.scan, self.chosen.middle
        wide = dims.dim // dims.heads
        programs = dims.experts + dims.heads * scan.splits + mlp.count * -(-dims.expert_inner // bn)
        jit.middle[(programs,)](
            given, block.ln.weight, block.ln.bias, stored(mlp.up), mlp.up.scales, room.gated, room.qkv, room.active,
            tau.weight, tau.levels, own.keys, own.values, at.tables, at.positions, self.decoder.cos, self.decoder.sin,
            room.attended, room.scan_parts, room.arrived, room.logits, room.picked, room.chosen, room.lists, own.taken,
            at.tables.shape[1], wide**-0.5, dims.dim, up(dims.dim), dims.heads, dims.rotary, own.keys.shape[2],
            room.routed, dims.experts, up(dims.experts), mlp.count, dims.expert_inner, *kinds(mlp.up, given),
            scan.splits, scan.bt, scan.stages, bn, self.chosen.pdl, own.scales, num_warps=warps,
            **dependent(self.chosen.pdl),
        )  # fmt: skip

    def _experts_down(self, given: Tensor, hidden: Tensor, layer: Layer, mlp: Mixture) -> None:
        dims, room, (bn, warps) = self.dims, self.room, self.chosen.experts_down
        self.launches += 1
        jit.experts_down[(-(-dims.dim // bn),)](
            given, room.x, hidden, room.attended, layer.block.proj.weight, layer.last, room.gated, room.chosen,
            room.picked, stored(mlp.down), mlp.down.scales, dims.dim, up(dims.dim), dims.expert_inner,
            up(dims.expert_inner), mlp.count, up(mlp.count), *kinds(mlp.down, given), bn,
            self.chosen.pdl, num_warps=warps, **dependent(self.chosen.pdl),
        )  # fmt: skip

    def _dense_down(self, given: Tensor, hidden: Tensor, layer: Layer) -> None:
        dims, room, (bn, warps) = self.dims, self.room, self.chosen.dense_down
        self.launches += 1
        jit.dense_down[(-(-dims.dim // bn),)](
            given, room.x, hidden, room.inner, layer.down, layer.last, dims.dim, up(dims.dim), dims.ff,
            self.chosen.columns, bn, self.chosen.pdl, num_warps=warps, **dependent(self.chosen.pdl),
        )  # fmt: skip
