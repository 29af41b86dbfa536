"""A Moondream model of either generation: tower, decoder and region module behind the `Model` protocol.

It computes with one set of kernels, given when it is made. With the reference, and with a fixed number of rows on a
GPU, every method that works on tokens does so in chunks of that many rows, so in float32 a row's result is the same
bits alone or among others, decoded or prefilled again (on a CPU: as long as torch's thread count stays).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gapless.config import KVDType
from gapless.kernels.base import Kernels
from gapless.kernels.choose import choose
from gapless.kernels.stacks import FP8
from gapless.models.base import AdapterBank, KVCache, RowAdapters
from gapless.models.moondream.adapters import Layout, Slots
from gapless.models.moondream.cache import PagedKV, own_cache
from gapless.models.moondream.config import MoondreamConfig
from gapless.models.moondream.footprint import token_bytes
from gapless.models.moondream.kv_scales import kv_scales
from gapless.models.moondream.layers import Experts
from gapless.models.moondream.prompts import PackedText
from gapless.models.moondream.region import Region
from gapless.models.moondream.text import Adapted, TextDecoder
from gapless.models.moondream.vision import VisionTower


class Moondream:
    """Weights and functions; see `models.base.Model` for the contract. `kernels` None: those of the weights' device.
    `kv_dtype`: of its caches."""

    def __init__(
        self,
        config: MoondreamConfig,
        tensors: Mapping[str, Tensor],
        kernels: Kernels[Any] | None = None,
        kv_dtype: KVDType = "auto",
    ) -> None:
        self.config = config
        self.kernels = kernels or choose(tensors["text.wte"].device)
        self.vision = VisionTower(config.vision, tensors, self.kernels)
        self.text = TextDecoder(config.text, tensors, self.kernels)
        self.region = Region(config.region, tensors, self.kernels)
        self.vocab = config.text.vocab_size
        self.prefix = config.text.prefix_attn
        self.max_context = config.text.max_context
        self.device = self.text.wte.device
        self.tower = None if self.vision.fused is None else self.vision
        self.dtype = self.text.wte.dtype
        self._kv_scales = kv_scales(self.text) if kv_dtype == "fp8" else None

    @property
    def kv_dtype(self) -> torch.dtype:
        """Of keys and values as they are kept."""
        return self.dtype if self._kv_scales is None else FP8

    @property
    def expert_itemsize(self) -> int:
        """Bytes of an expert's weight: 1 in FP8. Without experts what any weight takes."""
        stacks = (block.mlp.up for block in self.text.blocks if isinstance(block.mlp, Experts))
        return next((stack.values.itemsize for stack in stacks), self.dtype.itemsize)

    @property
    def tiles(self) -> str:
        """Where the tiles of its decode steps are from, for people; "" where these go layer by layer."""
        step = self.text.fused or self.text.sparse
        return "" if step is None else step.source

    @property
    def experts_taken(self) -> Tensor | None:
        """How many rows of the last decode step chose each expert, int32 [layers with experts, experts]; None where a
        step does not count."""
        mixed = [layer for layer, block in enumerate(self.text.blocks) if isinstance(block.mlp, Experts)]
        return self.text.sparse.taken[mixed] if mixed and self.text.sparse is not None else None

    def compile_ahead(self, batches: Sequence[int], page_size: int) -> None:
        """Compile what decode steps of these batch sizes need, if nobody did so far: the first start on a machine takes
        a while less."""
        step = self.text.fused or self.text.sparse
        if step is not None:
            self.kernels.compile_ahead(step, batches, page_size)

    def page_bytes(self, page_size: int) -> int:
        """Bytes one page of `page_size` positions takes in all layers."""
        return page_size * token_bytes(self.config.text, self.kv_dtype.itemsize)

    @property
    def picture_bytes(self) -> int:
        """Bytes of one picture's embeddings [prefix - 1, dim]."""
        return (self.prefix - 1) * self.config.text.dim * self.dtype.itemsize

    def new_cache(self, pages: int, page_size: int) -> PagedKV:
        """Allocate the paged cache for page numbers 0..pages-1."""
        return PagedKV(self.config.text, pages, page_size, self.dtype, self.device, self._kv_scales)

    def adapter_bytes(self, rank: int) -> int:
        """Bytes one slot for adapters of up to `rank` takes."""
        return Layout.of(self.config.text, rank).width * self.dtype.itemsize

    def new_adapters(self, slots: int, rank: int) -> Slots:
        """Allocate slots 0..slots-1 for adapters of ranks up to `rank`, all empty."""
        return Slots(self.config.text, slots, rank, self.dtype, self.device, self.kernels)

    def new_prompts(self, page_size: int, most: int, runs: int) -> PackedText | None:
        """Memory for prompts of several sequences in one pass; None where the kernels have nothing for that."""
        return PackedText.of(self.text, self.config.tokenizer.bos_id, page_size, most, runs)

    def encode_picture(self, crops: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Uint8 [1 + rows * columns, side, side, 3], or uncut [H, W, 3] -> [prefix - 1, dim]."""
        return self.vision(crops.to(self.device), tiling)

    def prefill_prefix(
        self, picture: Tensor, cache: KVCache, pages: Tensor, adapters: RowAdapters | None = None
    ) -> None:
        """Compute BOS + picture [prefix - 1, dim] as one block into `pages` int64 [n]."""
        bos = self.text.wte[self.config.tokenizer.bos_id]
        self.text.prefill_block(torch.cat((bos[None], picture)), 0, own_cache(cache), pages, _slots(adapters))

    def prefill_inset(
        self, picture: Tensor, start: int, cache: KVCache, pages: Tensor, adapters: RowAdapters | None = None
    ) -> None:
        """Compute a picture [prefix - 1, dim] as one block at positions start.. behind what is in `pages` int64 [n]."""
        self.text.prefill_block(picture, start, own_cache(cache), pages, _slots(adapters))

    def embed(self, ids: Tensor, values: Tensor | None) -> Tensor:
        """Ids int64 [T], values float32 [T, 2] -> [T, dim]; a negative first value means an ordinary token.

        A value of a size id is a size, one of any other id a coordinate: the oldest revisions have no coordinate ids.
        """
        if values is None:
            return self.text.wte[ids]
        if self.region.fused is not None:
            return self.region.fused.embed(ids, values, self.text.wte, self.config.tokenizer.size_id)
        sized = (ids == self.config.tokenizer.size_id)[:, None]
        given = values[:, :1] >= 0
        coords = self.kernels.by_rows(self.region.coord_embedding, values[:, :1])
        sizes = self.kernels.by_rows(self.region.size_embedding, values)
        return torch.where(given, torch.where(sized, sizes, coords), self.text.wte[ids])

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        tables: Tensor,
        cache: KVCache,
        adapters: RowAdapters | None = None,
    ) -> Tensor:
        """x [T, dim], positions int64 [T], tables int64 [T, n] or [1, n] -> hidden [T, dim], before the final norm.

        Tokens of one sequence come in ascending position.
        """
        return self.text.forward(x, positions, tables, own_cache(cache), _slots(adapters))

    def any_width(self, rows: int, cache: KVCache, adapters: AdapterBank | None = None) -> bool:
        """Whether such a step is fused: it reads of a page table what its rows have reached."""
        return self.text.fused_for(rows, own_cache(cache), None if adapters is None else _bank(adapters))

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, dim] -> float32 [T, vocab]."""
        return self.kernels.by_rows(self.text.logits, hidden)

    def values(self, hidden: Tensor, wanted: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[T, dim] -> coordinates float32 [T], sizes float32 [T, 2]; `wanted`: see `Model`."""
        fused = self.region.fused
        if fused is not None and fused.fits(hidden.shape[0]):
            return fused.values(hidden, wanted)
        return self.coord_value(hidden), self.size_value(hidden)

    def coord_value(self, hidden: Tensor) -> Tensor:
        """[T, dim] -> float32 [T], the decoded coordinate in 0..1."""
        return self.kernels.by_rows(self.region.coord_value, hidden)

    def size_value(self, hidden: Tensor) -> Tensor:
        """[T, dim] -> float32 [T, 2], decoded (width, height) in 0..1."""
        return self.kernels.by_rows(self.region.size_value, hidden)


def _slots(adapters: RowAdapters | None) -> Adapted | None:
    """The adapters as what `new_adapters` made."""
    if adapters is None:
        return None
    return _bank(adapters.bank), adapters.slots


def _bank(bank: AdapterBank) -> Slots:
    if not isinstance(bank, Slots):
        raise TypeError(f"a Moondream model reads slots its own new_adapters makes, not a {type(bank).__name__}")
    return bank
