"""The paged KV cache of a decoder: what a page holds.

The engine counts pages as integers; here a page is `page_size` positions of K and V in every layer, in the model's
dtype or in FP8. One page more than the engine knows is kept at zero: attention gathers it wherever a token sees
nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.errors import InvalidRequest
from gapless.kernels.base import KEY_BLOCK
from gapless.kernels.kept import NAN, as_stored
from gapless.kernels.stacks import FP8
from gapless.models.base import KVCache
from gapless.models.moondream.config import TextConfig


class PagedKV:
    """Keys and values, each [layers, pages + 1, heads, page_size, head_dim]; the last page is the zero page.

    `scales` None: in `dtype`. Else in FP8, and float32 [layers, 2, heads] are those of `kernels.kept`.
    """

    def __init__(
        self,
        config: TextConfig,
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        scales: Tensor | None = None,
    ) -> None:
        if page_size < 1 or (KEY_BLOCK % page_size and page_size % KEY_BLOCK):
            raise InvalidRequest(
                f"page_size {page_size} neither divides {KEY_BLOCK} nor is a multiple of it; use 16 or 64",
                param="page_size",
            )
        shape = (config.n_layers, pages + 1, config.n_heads, page_size, config.head_dim)
        kept = dtype if scales is None else FP8
        self.page_size = page_size
        self.keys: Tensor = torch.zeros(shape, dtype=kept, device=device)
        self.values: Tensor = torch.zeros(shape, dtype=kept, device=device)
        self.scales = scales
        self.layers: list[tuple[Tensor, Tensor, Tensor | None]] = [
            (self.keys[i], self.values[i], None if scales is None else scales[i]) for i in range(config.n_layers)
        ]
        """Keys, values and scales of each."""

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page in all layers. Scales are a head's, so that they hold for every page."""
        for cache in map(as_stored, (self.keys, self.values)):
            cache[:, target] = cache[:, source]

    def poison(self, pages: tuple[int, ...]) -> None:
        """Fill pages with NaN in all layers, so that a stale read shows."""
        for cache in map(as_stored, (self.keys, self.values)):
            for page in pages:  # one by one: a list of numbers would be an index made on the host
                cache[:, page] = torch.nan if self.scales is None else NAN


def own_cache(cache: KVCache) -> PagedKV:
    """The cache as what `new_cache` made it."""
    if not isinstance(cache, PagedKV):
        raise TypeError(f"a Moondream model reads the cache its own new_cache makes, not a {type(cache).__name__}")
    return cache
