"""What a set of kernels may offer beside its single functions: a decode step, or a picture tower, in a few launches a
layer.

In: a decoder's or a tower's weights as plain tensors. Out: a `FusedStep` or a `FusedTower`, which lays them out anew
and hands them back as views, so that what goes layer by layer reads the same memory. No weight is kept twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Affine:
    """A linear's weight [out, in] and bias [out], or a norm's [D] each."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class Block:
    """A dense block of one norm: x + proj(attention(qkv(ln x))) + fc2(gelu_tanh(fc1(ln x)))."""

    ln: Affine
    qkv: Affine
    proj: Affine
    fc1: Affine
    fc2: Affine


@dataclass(frozen=True, slots=True)
class Decoder:
    """Blocks, the last norm and the head, all of one dtype on one device.

    `cos`, `sin` float32 [positions, rotated dimensions], as the set's own `rope_tables` made them.
    """

    blocks: Sequence[Block]
    ln: Affine
    head: Affine
    heads: int
    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class Branch:
    """Where a linear's A [rank, in] and B [out, rank] begin in an adapter's numbers."""

    a: int
    b: int


@dataclass(frozen=True, slots=True)
class Branches:
    """Those of one block. A of qkv, proj and fc1 reads the block's normed input, A of fc2 what gelu says."""

    qkv: Branch
    proj: Branch
    fc1: Branch
    fc2: Branch


@dataclass(frozen=True, slots=True)
class Bank:
    """A decoder's adapters, a slot each: `flat` [slots, width] in the weights' dtype. A linear says B (A x) more.

    `rank`: of all matrices as they lie in a slot. At `rank_at` a slot has its own, a number: what is behind it is zero.
    """

    flat: Tensor
    rank: int
    rank_at: int
    blocks: Sequence[Branches]


@dataclass(frozen=True, slots=True)
class StepAdapters:
    """Which adapter each row of a step has: `slots` int64 [B], 0 for none."""

    bank: Bank
    slots: Tensor


class FusedStep(Protocol):
    """A decoder that feeds one token a row. A row's result depends on that row alone, and on how many rows there are.

    `weights`: the decoder it was made of, laid out anew. Its norms scale nothing: what they did is in the linears
    behind them. So a norm of it and a linear behind it are the pair that was given, and neither alone is.
    """

    @property
    def weights(self) -> Decoder:
        """See the class."""
        ...

    @property
    def source(self) -> str:
        """Where its tiles are from, for people."""
        ...

    def fits(self, rows: int, keys: Tensor) -> bool:
        """Whether a step of that many rows over caches like `keys` can be computed."""
        ...

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
        """x [B, D] at positions int64 [B], each with a page table of its own, int64 [B, n] -> hidden [B, D].

        Writes each row's key and value, then attends to positions 0..its own. `keys`, `values`: caches
        [layers, pages + 1, H, page_size, D / H], in FP8 with `scales` float32 [layers, 2, H] (`kernels.kept`). A row
        without an adapter has the bits that it has without `adapters`.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[B, D], before the last norm -> float32 [B, vocab]."""
        ...


@dataclass(frozen=True, slots=True)
class TowerBlock:
    """A block of two norms: x += proj(attention(qkv(ln1 x))), then x += fc2(gelu_tanh(fc1(ln2 x)))."""

    ln1: Affine
    qkv: Affine
    proj: Affine
    ln2: Affine
    fc1: Affine
    fc2: Affine


@dataclass(frozen=True, slots=True)
class Tower:
    """A picture tower, all of one dtype on one device.

    `levels` [256]: what each pixel level becomes; `patches`: the product [D, 3 size size] behind it; `positions`
    [1, grid grid, D]; `ln`: the norm behind the blocks; `inner`, `out`: the projection of whole and local features.
    A crop is `grid` patches of `size` pixels wide; tiles share twice `margin` patches with their neighbours.
    """

    levels: Tensor
    patches: Affine
    positions: Tensor
    blocks: Sequence[TowerBlock]
    ln: Affine
    inner: Affine
    out: Affine
    heads: int
    grid: int
    size: int
    margin: int


class FusedTower(Protocol):
    """A picture tower. Crops do not see each other; what one gives depends on it, and on how many there are.

    `weights`: the tower it was made of, laid out anew.
    """

    @property
    def weights(self) -> Tower:
        """See the class."""
        ...

    def encode(self, crops: Tensor, out: Tensor) -> None:
        """Uint8 [n, side, side, 3] -> `out` [n, grid grid, D]. Nothing is asked of the device: a graph may hold it."""
        ...

    def project(self, features: Sequence[Tensor], tilings: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Of each picture [1 + rows * columns, grid grid, D] and (rows, columns) -> [grid grid, out] each."""
        ...
