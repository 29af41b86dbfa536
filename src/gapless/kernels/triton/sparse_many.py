"""Launches of a sparse decode step for two rows or more; what they compute says `sparse_jit`.

In: rows, where they are, and the tiles to use. Out: hidden states or logits. One object is one step's launches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gapless.kernels.fused import Affine
from gapless.kernels.sparse import Mixture, SparseDecoder
from gapless.kernels.triton import narrow_jit
from gapless.kernels.triton import sparse_jit as jit
from gapless.kernels.triton.choices import Tile, padded
from gapless.kernels.triton.sparse_choices import Many, SparseDims
from gapless.kernels.triton.sparse_room import Layer, Room, kinds, stored, up
from gapless.kernels.triton.sparse_scan import How, Own, Reach, dependent, scan


@dataclass(slots=True)
class ManyRows:
    """`launches` counts. `rows`: how many there are."""

    decoder: SparseDecoder
    dims: SparseDims
    room: Room
    chosen: Many
    rows: int
    launches: int = 0

    def forward(self, x: Tensor, at: Reach, layers: list[Layer], owns: list[Own]) -> Tensor:
        """x [B, D] -> hidden [B, D]."""
        self._begin(x, self.room.x, layers[0].block.ln)
        norms = [layer.block.ln for layer in layers[1:]] + [self.decoder.ln]
        hidden = torch.empty_like(x)
        shares = 3 * self.dims.dim // self.chosen.up.bn
        how = How(self.chosen.scan, self.rows, shares, self.chosen.pdl, self.chosen.cut)
        for layer, own, norm in zip(layers, owns, norms, strict=True):
            mlp = layer.block.mlp
            self._up(layer)
            scan(self.decoder, self.dims, self.room, layer, at, own, how)
            self.launches += 1
            if isinstance(mlp, Mixture):
                if self.chosen.cut:
                    parts, share = self._experts(layer.block.proj, mlp, own.taken), mlp.count
                else:
                    self._experts_up(mlp, own.taken)
                    parts, share = self._experts_down(layer.block.proj, mlp, own.taken), mlp.count
            else:
                parts, share = self._dense_down(layer.down), 0
            self._close(layer.last, norm, hidden, parts, share)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [B, D] -> float32 [B, vocab]."""
        dims, tile, head = self.dims, self.chosen.head, self.decoder.head
        logits = torch.empty(self.rows, dims.vocab, dtype=torch.float32, device=hidden.device)
        self._begin(hidden, self.room.x, self.decoder.ln)
        self.launches += 1
        jit.head[(dims.vocab // tile.bn,)](
            self.room.n, head.weight, head.bias, logits, self.rows, dims.dim, dims.vocab, padded(self.rows),
            *_shape(tile), self.chosen.pdl, min(self.chosen.ahead, dims.dim), num_warps=tile.warps,
            **dependent(self.chosen.pdl),
        )  # fmt: skip
        return logits

    @property
    def _cuts(self) -> Tensor | None:
        """Where norms go once more as experts want them, if there are any that do."""
        return self.room.cut_n if self.chosen.cut else None

    def _begin(self, given: Tensor, x: Tensor, norm: Affine) -> None:
        self.launches += 1
        jit.begin[(self.rows,)](
            given, x, self.room.n, self._cuts, norm.weight, norm.bias, self.dims.dim, up(self.dims.dim),
            self.chosen.pdl, num_warps=self.chosen.close, **dependent(self.chosen.pdl),
        )  # fmt: skip

    def _up(self, layer: Layer) -> None:
        dims, room, tile, tau = self.dims, self.room, self.chosen.up, layer.block.scaling
        routed = layer.routed
        self.launches += 1
        jit.up[(len(layer.w) // tile.bn,)](
            room.n, layer.w, layer.bias, tau.weight, room.qkv, room.shares, room.inner, room.logits, self.rows,
            dims.dim, 0 if routed else dims.ff, routed, 2 * dims.heads, room.heads, tau.gelu == "tanh",
            padded(self.rows), *_shape(tile), self.chosen.pdl, min(self.chosen.ahead, dims.dim), num_warps=tile.warps,
            **dependent(self.chosen.pdl),
        )  # fmt: skip

    def _experts(self, proj: Affine, mlp: Mixture, taken: Tensor) -> int:
        """Both products of experts in FP8, and proj. How many parts there are to sum."""
        dims, room, tiles, own = self.dims, self.room, self.chosen.experts, self.chosen.proj
        assert tiles is not None
        up, down = tiles.up, tiles.down
        programs = dims.experts * (dims.expert_inner // up.lines + dims.dim // down.lines)
        self.launches += 1
        narrow_jit.experts[(programs + dims.dim // own.bn * own.splits,)](
            room.cut_n, room.cut_gated, room.attended, proj.weight, room.lists, taken, room.done, mlp.up.values,
            mlp.up.scales, mlp.down.values, mlp.down.scales, room.n, room.said, room.parts, self.rows, dims.dim,
            dims.expert_inner, dims.experts, mlp.count, padded(self.rows), up.rows, up.lines, up.deep, up.stages,
            down.lines, down.deep, down.stages, kinds(mlp.up, room.n)[1], own.splits, *_shape(own), self.chosen.pdl,
            num_warps=up.warps, **dependent(self.chosen.pdl),
        )  # fmt: skip
        return own.splits

    def _experts_up(self, mlp: Mixture, taken: Tensor) -> None:
        dims, room, tiles = self.dims, self.room, self.chosen.experts
        assert tiles is not None
        tile = tiles.up
        self.launches += 1
        jit.experts_up[(dims.experts * -(-dims.expert_inner // tile.lines),)](
            room.n, room.lists, taken, stored(mlp.up), mlp.up.scales, room.gated, dims.dim, dims.expert_inner,
            mlp.count, padded(self.rows), *kinds(mlp.up, room.n), tile.rows, tile.lines, tile.deep,
            tile.stages, self.chosen.pdl, num_warps=tile.warps, **dependent(self.chosen.pdl),
        )  # fmt: skip

    def _experts_down(self, proj: Affine, mlp: Mixture, taken: Tensor) -> int:
        """How many parts there are to sum."""
        dims, room, tiles, own = self.dims, self.room, self.chosen.experts, self.chosen.proj
        assert tiles is not None
        tile = tiles.down
        programs = dims.dim // own.bn * own.splits + dims.experts * -(-dims.dim // tile.lines)
        self.launches += 1
        jit.experts_down[(programs,)](
            room.gated, room.attended, proj.weight, room.lists, taken, stored(mlp.down), mlp.down.scales, room.said,
            room.parts, self.rows, dims.dim, dims.expert_inner, padded(self.rows), *kinds(mlp.down, room.n), tile.rows,
            tile.lines, tile.deep, tile.stages, own.splits, *_shape(own), self.chosen.pdl, num_warps=tile.warps,
            **dependent(self.chosen.pdl),
        )  # fmt: skip
        return own.splits

    def _dense_down(self, w: Tensor) -> int:
        """How many parts there are to sum."""
        dims, room, own = self.dims, self.room, self.chosen.dense
        self.launches += 1
        jit.dense_down[(dims.dim // own.bn * own.splits,)](
            room.inner, w, room.parts, self.rows, dims.dim, dims.ff,
            padded(self.rows), own.splits, *_shape(own), self.chosen.pdl, num_warps=own.warps,
            **dependent(self.chosen.pdl),
        )  # fmt: skip
        return own.splits

    def _close(self, bias: Tensor, norm: Affine, hidden: Tensor, parts: int, share: int) -> None:
        dims, room = self.dims, self.room
        self.launches += 1
        jit.close[(self.rows,)](
            room.x, room.parts, bias, room.said, room.picked, norm.weight, norm.bias, room.n, self._cuts, hidden,
            dims.dim, up(dims.dim), parts, share, up(max(1, share)), padded(self.rows), self.chosen.pdl,
            num_warps=self.chosen.close, **dependent(self.chosen.pdl),
        )  # fmt: skip


def _shape(tile: Tile) -> tuple[int, int, int, int]:
    return tile.bn, tile.bk, tile.stages, tile.mode
