"""What a set of kernels offers: one signature per kernel, whoever implements it.

A model is given one set when it is made and calls nothing else that computes. `reference` is such a set (a module),
`graphed.Graphed` another; `choose` picks one by device. In and out are tensors of one device; sums, softmax and
rotations run in float32 whatever the dtype. T is a number of tokens, H of heads, D a head's width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from gapless.kernels.fused import Decoder, FusedStep, FusedTower, Tower
from gapless.kernels.prompts import PromptKernels
from gapless.kernels.region import FusedRegion, Heads
from gapless.kernels.sparse import SparseDecoder, SparseStep
from gapless.kernels.stacks import Stack

KEY_BLOCK = 64
"""Page sizes divide it or are multiples of it: the reference attends over key blocks of this size."""

P = TypeVar("P")
"""What a set's `paging` hands to its `attend`; nobody else looks inside, but for `write_kv`'s cells."""


@dataclass(frozen=True, slots=True)
class ExpertAdapters:
    """What adapters add to one layer's experts: (a, b) of the product up and of the product down.

    a [slots, E, rank, in], b [slots, E, out, rank]; `slots` int64 [T] of tokens, or [1] for all T. Slot 0 adds nothing.
    """

    up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]
    slots: Tensor


class Kernels(Protocol[P]):
    """A set of kernels. A token's result depends on that token's own inputs alone."""

    prompts: PromptKernels | None
    """For prompts of several sequences at once; None where this set has nothing for them."""

    def fuse(self, decoder: Decoder) -> FusedStep | None:
        """A decode step of these weights in a few launches a layer; None where this set has none for them."""
        ...

    def fuse_region(self, heads: Heads) -> FusedRegion | None:
        """Values of these heads in a few launches; None where this set has none for them."""
        ...

    def fuse_tower(self, tower: Tower) -> FusedTower | None:
        """A picture tower of these weights in a few launches a layer; None where this set has none for them."""
        ...

    def cut_crops(self, pixels: Tensor, tiling: tuple[int, int], step: int, out: Tensor) -> None:
        """Pixels uint8 [H, W, 3], resized by Lanczos to the byte as Pillow does it -> `out` uint8 [1 + rows * columns,
        side, side, 3]: the whole picture, then tiles of a copy, `step` pixels apart, row by row."""
        ...

    def fuse_sparse(self, decoder: SparseDecoder) -> SparseStep | None:
        """The same for blocks with scaled attention and experts."""
        ...

    def compile_ahead(self, step: FusedStep | SparseStep, batches: Sequence[int], page_size: int) -> None:
        """Compile what steps of these batch sizes need over caches of such pages, all at once, where each would
        otherwise wait for its own. Nothing has to be done, and nothing is raised."""
        ...

    def pieces(self, tokens: int, tables: int) -> list[slice]:
        """How a forward of T tokens with that many page tables is cut: one piece after the other, none empty."""
        ...

    def by_rows(self, f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply a row-wise `f` to x [T, ...] with as many rows at a time as this set gives its GEMMs."""
        ...

    def pad_rows(self, x: Tensor) -> Tensor:
        """Append zero rows to a piece x [T, ...] until it has as many rows as this set gives its GEMMs."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """LayerNorm over the last dimension, eps 1e-5. x [..., D] -> [..., D]."""
        ...

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """x [..., in] @ weight [out, in]^T + bias [out] -> [..., out]."""
        ...

    def spread(self, slots: Tensor, tokens: int) -> Tensor:
        """Adapter slots int64 [T], or [1] for all T of a piece, as `lora` of a padded piece takes them."""
        ...

    def lora(self, y: Tensor, x: Tensor, a: Tensor, b: Tensor, slots: Tensor) -> Tensor:
        """y + b[slot] (a[slot] x) for each token, y itself (to the bit) for tokens of slot 0.

        y [T, out], x [T, in], a [slots, rank, in], b [slots, out, rank], slots int64 [T], or [1] for all T -> [T, out].
        """
        ...

    def gelu_tanh(self, x: Tensor) -> Tensor:
        """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), in float32, cast back. Any shape."""
        ...

    def gelu_erf(self, x: Tensor) -> Tensor:
        """0.5 x (1 + erf(x / sqrt(2))), in float32, cast back. Any shape."""
        ...

    def route(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Logits [T, E] -> weights [T, count], their softmax over the `count` largest, and which those are, int64."""
        ...

    def experts(
        self,
        x: Tensor,
        weights: Tensor,
        chosen: Tensor,
        up: Stack,
        down: Stack,
        adapters: ExpertAdapters | None = None,
    ) -> Tensor:
        """Sum over each token's experts e of weight * down[e] (gelu_erf(a) * (g + 1)), (a, g) = up[e] x in halves.

        x [T, D], weights [T, k], chosen int64 [T, k], up [E, 2 I, D], down [E, D, I], in x's dtype or in FP8 -> [T, D].
        Summed in float32. `adapters` add b[slot, e] (a[slot, e] y) to what either product of expert e says of y, before
        the halves are taken and before the weight; in float32 a token of slot 0 has the bits that it has without them.
        """
        ...

    def tau_levels(self, alpha: Tensor, length: int) -> Tensor:
        """alpha [H] -> [length, H]: 0.5 + sigmoid(alpha ln(position + 1)), in float32, cast to alpha's dtype."""
        ...

    def tau(self, qkv: Tensor, weight: Tensor, levels: Tensor, gelu: str) -> Tensor:
        """Scale queries and values by head: by tanh(weight gelu(qkv)) + levels; keys stay. gelu: "erf" or "tanh".

        qkv [T, 3 H D], weight [2 H, 3 H D] (for queries, then for values), levels [T, H] -> [T, 3 H D].
        """
        ...

    def rope_tables(self, length: int, dims: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines float32 [length, any] that `rope` takes rows of: angle = pos * theta^(-2i/dims)."""
        ...

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate the first dimensions of x [T, H, D] by table rows [T, any]; pairs are half the rotated width apart."""
        ...

    def paging(self, positions: Tensor, tables: Tensor, keys: Tensor) -> P:
        """Work out, once for all layers, where tokens at `positions` int64 [T] write and what they see.

        `tables` int64 [T, n], or [1, n] when all are one sequence's, in ascending position. `keys` is any layer's
        cache [pages + 1, H, page_size, D]; its last page is zero and belongs to nobody.
        """
        ...

    def cells(self, at: P) -> tuple[Tensor, Tensor]:
        """(page, offset) int64 [T] each: where the tokens of `paging` write."""
        ...

    def write_kv(
        self,
        k: Tensor,
        v: Tensor,
        keys: Tensor,
        values: Tensor,
        cell: tuple[Tensor, Tensor],
        scales: Tensor | None = None,
    ) -> None:
        """Store k, v [T, H, D] into a layer's keys, values [pages + 1, H, page_size, D] at (page, offset).

        `scales` float32 [2, H] of a cache in FP8, here and below: see `kernels.kept`.
        """
        ...

    def read_kv(
        self, keys: Tensor, values: Tensor, cell: tuple[Tensor, Tensor], scales: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Load k, v [S, H, D] from a layer's keys, values [pages + 1, H, page_size, D] at (page, offset), int64 [S].

        Nothing else is read. With `scales` they are float32.
        """
        ...

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, at: P, scales: Tensor | None = None) -> Tensor:
        """Paged attention: q [T, H, D] over a layer's cache -> [T, H, D]; each token sees positions 0..its own.

        Everything else is selected away, never multiplied by zero. Scale 1/sqrt(D).
        """
        ...

    def attend_block(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of N blocks in which all see all: q [N, T, H, D], k, v [N, S, H, D] -> [N, T, H, D]; S > T where a
        block also sees what is before it. Scale 1/sqrt(D)."""
        ...

    def adaptive_average(self, x: Tensor, side: int) -> Tensor:
        """Average x [R, C, D] to [side, side, D], in float32, rounded to x's dtype once."""
        ...

    def fourier_features(self, values: Tensor, frequencies: Tensor) -> Tensor:
        """Cosines, then sines, of (2 pi values) @ frequencies. values [T, d], frequencies [d, n] -> [T, 2n]."""
        ...

    def coord_of_bin(self, bins: Tensor, count: int) -> Tensor:
        """Coordinate bins int64 [...] of `count` -> float32 values bin / count."""
        ...

    def size_of_bin(self, bins: Tensor, count: int) -> Tensor:
        """Size bins int64 [...] of `count` -> float32 values 2^(10 bin / (count - 1) - 10)."""
        ...
