"""The paged KV cache of a decoder: what a page holds.

The engine counts pages as integers; here a page is `page_size` positions of K and V in every layer. One page more than
the engine knows is kept at zero: attention gathers it wherever a token sees nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.errors import InvalidRequest
from gapless.kernels.base import KEY_BLOCK
from gapless.models.base import KVCache
from gapless.models.moondream.config import TextConfig


class PagedKV:
    """Keys and values, each [layers, pages + 1, heads, page_size, head_dim]; the last page is the zero page."""

    def __init__(
        self, config: TextConfig, pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        if page_size < 1 or (KEY_BLOCK % page_size and page_size % KEY_BLOCK):
            raise InvalidRequest(
                f"page_size {page_size} neither divides {KEY_BLOCK} nor is a multiple of it; use 16 or 64",
                param="page_size",
            )
        shape = (config.n_layers, pages + 1, config.n_heads, page_size, config.head_dim)
        self.page_size = page_size
        self.keys: Tensor = torch.zeros(shape, dtype=dtype, device=device)
        self.values: Tensor = torch.zeros(shape, dtype=dtype, device=device)

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page in all layers."""
        self.keys[:, target] = self.keys[:, source]
        self.values[:, target] = self.values[:, source]

    def poison(self, pages: tuple[int, ...]) -> None:
        """Fill pages with NaN in all layers, so that a stale read shows."""
        for page in pages:  # one by one: a list of numbers would be an index made on the host
            self.keys[:, page] = torch.nan
            self.values[:, page] = torch.nan


def own_cache(cache: KVCache) -> PagedKV:
    """The cache as what `new_cache` made it."""
    if not isinstance(cache, PagedKV):
        raise TypeError(f"a Moondream model reads the cache its own new_cache makes, not a {type(cache).__name__}")
    return cache
