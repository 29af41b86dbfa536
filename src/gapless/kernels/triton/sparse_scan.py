"""The launch of a sparse decode step that reads the context, for any number of rows; see `sparse_jit`.

In: qkv in the room, and where rows stand. Out: what they saw, in the room, and their keys and values in their pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gapless.kernels.kept import as_stored
from gapless.kernels.sparse import SparseDecoder
from gapless.kernels.triton import sparse_jit as jit
from gapless.kernels.triton.choices import Scan, over_bytes, padded
from gapless.kernels.triton.sparse_choices import SparseDims
from gapless.kernels.triton.sparse_room import Layer, Room, up


@dataclass(frozen=True, slots=True)
class Reach:
    """Where rows stand: positions int64 [B], page tables int64 [B, n]."""

    positions: Tensor
    tables: Tensor


@dataclass(frozen=True, slots=True)
class Own:
    """One layer's keys and values [pages + 1, H, page_size, D / H], with scales [2, H] if they are FP8's bytes, and
    where it counts who took which expert [E]."""

    keys: Tensor
    values: Tensor
    scales: Tensor | None
    taken: Tensor


def owns_of(keys: Tensor, values: Tensor, scales: Tensor | None, taken: Tensor) -> list[Own]:
    """Of all layers, in which their caches are stacked."""
    each = [None] * len(keys) if scales is None else list(scales)
    return [Own(*own) for own in zip(as_stored(keys), as_stored(values), each, taken, strict=True)]


@dataclass(frozen=True, slots=True)
class How:
    """The tiles and when the next kernel may start; how many rows there are; in how many parts `up` left what `tau`
    asks, 0 if it left gelu(qkv) of one row instead; whether experts are multiplied in FP8, see `narrow_jit`."""

    tiles: Scan
    rows: int
    shares: int
    pdl: int
    cut: bool = False


def scan(decoder: SparseDecoder, dims: SparseDims, room: Room, layer: Layer, at: Reach, own: Own, how: How) -> None:
    """Launch it."""
    tau, wide = layer.block.scaling, dims.dim // dims.heads
    tiles = how.tiles if own.scales is None else over_bytes(how.tiles, how.rows)
    experts, attended = (dims.experts, room.attended) if layer.routed else (0, room.inner)
    jit.scan[(experts + how.rows * dims.heads * tiles.splits,)](
        room.qkv, room.shares, room.active, tau.weight, tau.levels, own.keys, own.values, at.tables, at.positions,
        decoder.cos, decoder.sin, attended, room.scan_parts, room.arrived, room.logits, room.picked, room.chosen,
        room.lists, own.taken, at.tables.shape[1], how.rows, wide**-0.5, dims.dim, up(dims.dim),
        attended.shape[1], dims.heads,
        room.heads, how.shares, up(max(1, how.shares)), dims.rotary, own.keys.shape[2], padded(how.rows),
        max(1, layer.routed), experts, up(max(1, experts)), max(1, dims.share), tiles.splits, tiles.bt, tiles.stages,
        how.pdl, own.scales, room.done if how.cut and experts else None, num_warps=tiles.warps, **dependent(how.pdl),
    )  # fmt: skip


def dependent(pdl: int) -> dict[str, Any]:
    """How a kernel is launched that may start before the one before it is over."""
    return {"launch_pdl": True} if pdl else {}
