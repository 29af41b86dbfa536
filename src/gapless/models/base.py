"""What a device needs of a model: a few pure functions over tensors.

T is the number of tokens in a call; each token stands for itself: its sequence is known only through its page table
row and its position, so a decode batch and a run of prompt tokens are the same call. In float32 a token's result is
the same bits whatever else is in the call, and however much: whoever's products round differently pads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gapless.kernels.prompts import Runs


class KVCache(Protocol):
    """Paged memory a model writes and reads. The engine counts pages; only the model knows what a page holds."""

    page_size: int

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page in all layers."""
        ...

    def poison(self, pages: tuple[int, ...]) -> None:
        """Fill freed pages with NaN so that a stale read shows (tests and rehearsals)."""
        ...


class AdapterBank(Protocol):
    """Slots for adapters, on the model's device. Slot 0 is no adapter and is never written."""

    def load(self, slot: int, weights: object) -> None:
        """Put what the model made of an adapter's file into a slot, in stream order."""
        ...


@dataclass(frozen=True, slots=True)
class RowAdapters:
    """Which adapter each token goes through: `slots` int64 [T], or [1] when all T are one sequence's."""

    bank: AdapterBank
    slots: Tensor


class Prompts(Protocol):
    """Prompts of several sequences in one pass, in memory that stays; a CUDA graph can hold `forward`."""

    tile: int
    """Tokens of a tile, see `Runs`."""
    bos: int
    x: Tensor
    """[most, dim]: where tokens' embeddings are put before `forward`."""

    def forward(self, tokens: int, runs: Runs, cache: KVCache) -> Tensor:
        """The first `tokens` of `x` -> hidden [R, dim] of each run's last one (before the final norm), anything for a
        run without tokens. Writes every token's K/V at its position, as `Model.forward` and its blocks would; then
        each run's own page holds what it read elsewhere."""
        ...


class PictureTower(Protocol):
    """Encodes crops of several pictures at once. `encode` may be captured as a graph."""

    @property
    def side(self) -> int:
        """Pixels of a crop's side."""
        ...

    def new_features(self, count: int) -> Tensor:
        """Room for what `encode` makes of so many crops."""
        ...

    def cut(self, pixels: Tensor, tiling: tuple[int, int], out: Tensor) -> Tensor:
        """Pixels uint8 [H, W, 3] and (rows, columns) -> `out` uint8 [1 + rows * columns, side, side, 3]."""
        ...

    def encode(self, crops: Tensor, out: Tensor) -> Tensor:
        """Uint8 [n, side, side, 3] -> `out` [n, patches, any]."""
        ...

    def project(self, features: Sequence[Tensor], tilings: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Of each picture [1 + rows * columns, patches, any] -> embeddings [prefix - 1, dim] each."""
        ...


class Model(Protocol):
    """A vision-language model of the Moondream kind. All calls run under `torch.inference_mode`."""

    vocab: int
    prefix: int
    """Positions of BOS + picture block."""
    max_context: int
    device: torch.device
    dtype: torch.dtype

    @property
    def tower(self) -> PictureTower | None:
        """None: pictures are encoded one by one, each by `encode_picture`."""
        ...

    def page_bytes(self, page_size: int) -> int:
        """Bytes one page of `page_size` positions takes in all layers; what the pool is sized with."""
        ...

    @property
    def picture_bytes(self) -> int:
        """Bytes of one picture's embeddings."""
        ...

    def new_cache(self, pages: int, page_size: int) -> KVCache:
        """Allocate the paged cache."""
        ...

    def adapter_bytes(self, rank: int) -> int:
        """Bytes one slot for adapters of up to `rank` takes."""
        ...

    def new_adapters(self, slots: int, rank: int) -> AdapterBank:
        """Allocate slots 0..slots-1 for adapters of ranks up to `rank`, all empty."""
        ...

    def new_prompts(self, page_size: int, most: int, runs: int) -> Prompts | None:
        """Memory for passes of up to `most` tokens and `runs` runs; None where prompts go one by one."""
        ...

    def encode_picture(self, crops: Tensor, tiling: tuple[int, int]) -> Tensor:
        """uint8 [n, side, side, 3], or uncut [H, W, 3] -> [prefix - 1, dim] picture embeddings."""
        ...

    def prefill_prefix(
        self, picture: Tensor, cache: KVCache, pages: Tensor, adapters: RowAdapters | None = None
    ) -> None:
        """Compute BOS + picture as one bidirectional block at positions 0..prefix-1 into `pages` (int64 [n])."""
        ...

    def prefill_inset(
        self, picture: Tensor, start: int, cache: KVCache, pages: Tensor, adapters: RowAdapters | None = None
    ) -> None:
        """Compute picture [prefix - 1, dim] as one block at positions start.. of the sequence with page table `pages`.

        Each position of the block sees the whole block and positions 0..start-1, which were written before; `pages`
        int64 [n] holds them all. In float32 its bits depend on what it sees alone.
        """
        ...

    def embed(self, ids: Tensor, values: Tensor | None) -> Tensor:
        """ids int64 [T], values float32 [T, 2] -> [T, dim]. A size id reads both values, any other values[:, 0].

        `values` None: all are ordinary tokens, with the same bits as if that were said by values.

        A row whose values[:, 0] is negative (POISON) is an ordinary token and takes its word embedding, even for a
        coord or size id.
        """
        ...

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        tables: Tensor,
        cache: KVCache,
        adapters: RowAdapters | None = None,
    ) -> Tensor:
        """x [T, dim] at positions int64 [T] with page tables int64 [T, n] -> hidden [T, dim] (before the final norm).

        A table may be cut to any width that holds its token's page. Tables [1, n] are one sequence's, for all T.
        Writes each token's K/V at its position, then each token attends to positions 0..its own in its table. Tokens
        of one sequence may sit in one call (a prompt), in ascending position: what a token reads is written before.
        `adapters`: in float32 a token of slot 0 has the same bits as without, and every other the same in any company.
        """
        ...

    def any_width(self, rows: int, cache: KVCache, adapters: AdapterBank | None = None) -> bool:
        """Whether a decode step of so many rows takes the same time whatever the width of their page tables."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, dim] -> float32 [T, vocab]."""
        ...

    def values(self, hidden: Tensor, wanted: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[T, dim] -> what `coord_value` and `size_value` say.

        `wanted` int32 [T]: 1 for a token whose coordinate is read, 2 its size, 3 both; the rest may be any finite
        number. None: all are read.
        """
        ...

    def coord_value(self, hidden: Tensor) -> Tensor:
        """[T, dim] -> float32 [T], the decoded coordinate in 0..1."""
        ...

    def size_value(self, hidden: Tensor) -> Tensor:
        """[T, dim] -> float32 [T, 2], decoded (width, height) in 0..1."""
        ...
