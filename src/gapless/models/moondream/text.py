"""The decoder: blocks of one LayerNorm feeding attention and feed-forward side by side, over a paged KV cache.

In: embeddings with positions and page tables, or a picture block. Out: hidden states before the final norm. Tokens go
through in chunks of `kernels.ROWS` rows whatever their number, so a token's result does not depend on its neighbours;
the rows that fill a chunk up take part in GEMMs alone and touch no page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gapless.kernels import reference as kernels
from gapless.models.moondream.cache import PagedKV
from gapless.models.moondream.config import TextConfig
from gapless.models.moondream.layers import Linear, Mlp, Norm


@dataclass(frozen=True, slots=True)
class TextBlock:
    """x + attention(ln x) + mlp(ln x)."""

    ln: Norm
    qkv: Linear
    proj: Linear
    mlp: Mlp

    @classmethod
    def take(cls, tensors: Mapping[str, Tensor], name: str) -> TextBlock:
        """Pick the layer's tensors."""
        return cls(
            ln=Norm.take(tensors, f"{name}.ln"),
            qkv=Linear.take(tensors, f"{name}.attn.qkv"),
            proj=Linear.take(tensors, f"{name}.attn.proj"),
            mlp=Mlp.take(tensors, f"{name}.mlp"),
        )


class TextDecoder:
    """The word table, the blocks and the head, with their weights."""

    def __init__(self, config: TextConfig, tensors: Mapping[str, Tensor]) -> None:
        self.config = config
        self.wte = tensors["text.wte"]
        self.blocks = [TextBlock.take(tensors, f"text.blocks.{i}") for i in range(config.n_layers)]
        self.post_ln = Norm.take(tensors, "text.post_ln")
        self.lm_head = Linear.take(tensors, "text.lm_head")
        self.cos, self.sin = kernels.rope_tables(
            config.max_context, config.rotary_dims, config.rope_theta, self.wte.device
        )

    def forward(self, x: Tensor, positions: Tensor, tables: Tensor, cache: PagedKV) -> Tensor:
        """x [T, dim], positions int64 [T], tables int64 [T, n] -> hidden [T, dim].

        Chunks run one after the other: tokens of one sequence come in ascending position.
        """
        chunks = (slice(first, first + kernels.ROWS) for first in range(0, x.shape[0], kernels.ROWS))
        return torch.cat([self._chunk(x[c], positions[c], tables[c], cache) for c in chunks])

    def _chunk(self, x: Tensor, positions: Tensor, tables: Tensor, cache: PagedKV) -> Tensor:
        """At most `ROWS` tokens through all layers; each layer writes all its keys before it attends."""
        real = x.shape[0]
        at = kernels.paging(positions, tables, cache.keys[0])
        cos, sin = self.cos[positions], self.sin[positions]
        x = kernels.pad_rows(x)
        for block, keys, values in zip(self.blocks, cache.keys, cache.values, strict=True):
            n = block.ln(x)
            q, k, v = self._rotated(block.qkv(n)[:real], cos, sin)
            kernels.write_kv(k, v, keys, values, at.cell)
            seen = kernels.pad_rows(kernels.attend(q, keys, values, at).flatten(1))
            x = x + block.proj(seen) + block.mlp(n)
        return x[:real]

    def prefill_block(self, x: Tensor, cache: PagedKV, pages: Tensor) -> None:
        """Run x [P, dim] at positions 0..P-1 as one block in which all see all; keep its K/V in `pages` int64 [n]."""
        positions = torch.arange(x.shape[0], device=x.device)
        cell = pages[positions // cache.page_size], positions % cache.page_size
        cos, sin = self.cos[positions], self.sin[positions]
        for block, keys, values in zip(self.blocks, cache.keys, cache.values, strict=True):
            n = block.ln(x)
            q, k, v = self._rotated(block.qkv(n), cos, sin)
            kernels.write_kv(k, v, keys, values, cell)
            seen = kernels.attend_block(q[None], k[None], v[None])[0].flatten(1)
            x = x + block.proj(seen) + block.mlp(n)

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, dim], before the final norm -> float32 [T, vocab]."""
        return self.lm_head(self.post_ln(hidden)).float()

    def _rotated(self, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[T, 3 * dim] -> rotated q, rotated k, v, each [T, H, D]."""
        q, k, v = qkv.view(qkv.shape[0], 3, self.config.n_heads, -1).unbind(1)
        return kernels.rope(q, cos, sin), kernels.rope(k, cos, sin), v
