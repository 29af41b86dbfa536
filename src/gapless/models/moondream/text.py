"""The decoder: blocks of one LayerNorm feeding attention and feed-forward side by side, over a paged KV cache.

In: embeddings with positions and page tables, or a picture block. Out: hidden states before the final norm. Tokens go
through in the pieces that the kernels ask for; rows that fill a piece up take part in GEMMs alone and touch no page.
Every shape follows from the shapes of the inputs, and nothing here reads a tensor on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gapless.kernels.base import Kernels
from gapless.kernels.fused import Affine, Block, Decoder, FusedStep, StepAdapters
from gapless.kernels.sparse import Dense, Mixture, ScaledBlock, Scaling, SparseDecoder, SparseStep
from gapless.models.moondream.adapters import LayerAdapters, Slots
from gapless.models.moondream.cache import PagedKV
from gapless.models.moondream.config import TextConfig
from gapless.models.moondream.layers import Experts, Linear, Mlp, Norm, Tau

Adapted = tuple[Slots, Tensor]
"""Resident adapters, and the slot of each token: int64 [T], or [1] for all."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """x + attention(ln x) + mlp(ln x); `tau` None: queries and values go as they are.

    `ln` is what the linears take, `adapter_ln` what adapters do: the same, unless the first is folded into the linears.
    """

    ln: Norm
    adapter_ln: Norm
    qkv: Linear
    proj: Linear
    mlp: Mlp | Experts
    tau: Tau | None

    @classmethod
    def take(cls, tensors: Mapping[str, Tensor], layer: int, config: TextConfig, kernels: Kernels[Any]) -> TextBlock:
        """Pick the tensors of layer number `layer`."""
        name, chosen = f"text.blocks.{layer}", config.experts(layer)
        ln = Norm.take(tensors, f"{name}.ln", kernels)
        tau = (tensors, f"{name}.attn.tau", config.tau, config.max_context, kernels)
        return cls(
            ln=ln,
            adapter_ln=ln,
            qkv=Linear.take(tensors, f"{name}.attn.qkv", kernels),
            proj=Linear.take(tensors, f"{name}.attn.proj", kernels),
            mlp=(
                Experts.take(tensors, f"{name}.mlp", chosen.experts_per_token, kernels)
                if chosen
                else Mlp.take(tensors, f"{name}.mlp", kernels)
            ),
            tau=None if config.tau == "none" else Tau.take(*tau),
        )

    def dense(self) -> Block | None:
        """Its weights, if it is a dense block and nothing else."""
        if self.tau is not None or not isinstance(self.mlp, Mlp):
            return None
        parts = (self.ln, self.qkv, self.proj, self.mlp.fc1, self.mlp.fc2)
        return Block(*(Affine(part.weight, part.bias) for part in parts))

    def packed(self, block: Block) -> TextBlock:
        """The same block, reading a fused step's weights. Adapters were trained on what the norm itself says."""
        kernels = self.qkv.kernels

        def linear(of: Affine) -> Linear:
            return Linear(of.weight, of.bias, kernels)

        mlp = Mlp(linear(block.fc1), linear(block.fc2), kernels)
        ln = Norm(block.ln.weight, block.ln.bias, kernels)
        return TextBlock(ln, self.adapter_ln, linear(block.qkv), linear(block.proj), mlp, None)

    def scaled(self) -> ScaledBlock | None:
        """Its weights, if its attention is scaled."""
        mlp, tau = self.mlp, self.tau
        if tau is None:
            return None
        ln, qkv, proj = (Affine(part.weight, part.bias) for part in (self.ln, self.qkv, self.proj))
        scaling = Scaling(tau.weight, tau.levels, tau.gelu)
        if isinstance(mlp, Mlp):
            dense = Dense(*(Affine(part.weight, part.bias) for part in (mlp.fc1, mlp.fc2)))
            return ScaledBlock(ln, qkv, proj, scaling, dense)
        router = Affine(mlp.router.weight, mlp.router.bias)
        return ScaledBlock(ln, qkv, proj, scaling, Mixture(router, mlp.up, mlp.down, mlp.count))

    def moved(self, block: ScaledBlock) -> TextBlock:
        """The same block, reading a fused step's weights: the same numbers, laid out anew."""
        kernels, laid = self.qkv.kernels, block.mlp
        qkv, proj = (Linear(of.weight, of.bias, kernels) for of in (block.qkv, block.proj))
        mlp: Mlp | Experts
        if isinstance(laid, Dense):
            fc1, fc2 = (Linear(of.weight, of.bias, kernels) for of in (laid.fc1, laid.fc2))
            mlp = Mlp(fc1, fc2, kernels)
        else:
            router = Linear(laid.router.weight, laid.router.bias, kernels)
            mlp = Experts(router, laid.up, laid.down, laid.count, kernels)
        return replace(self, qkv=qkv, proj=proj, mlp=mlp)

    def normed(self, x: Tensor, lora: LayerAdapters | None) -> tuple[Tensor, Tensor]:
        """x [T, D] -> what the linears take, and what adapters take, [T, D] each."""
        n = self.ln(x)
        return n, n if lora is None or self.adapter_ln is self.ln else self.adapter_ln(x)

    def inputs(self, n: Tensor, raw: Tensor, positions: Tensor, lora: LayerAdapters | None) -> Tensor:
        """[T, D] at positions int64 [T] -> queries, keys and values [T, 3 D], before they are rotated."""
        qkv = self.qkv(n) if lora is None else lora.add("attn.qkv", self.qkv(n), raw)
        return qkv if self.tau is None else self.tau(qkv, positions)

    def outputs(self, seen: Tensor, n: Tensor, raw: Tensor, lora: LayerAdapters | None) -> tuple[Tensor, Tensor]:
        """What attention saw [T, D] and the normed inputs [T, D] -> what attention and feed-forward add, [T, D] each.

        The adapter of proj reads the normed input, not what attention saw: so the adapters were trained.
        """
        if lora is None:
            return self.proj(seen), self.mlp(n)
        thought = self.mlp(n, lora, raw) if isinstance(self.mlp, Mlp) else self.mlp(n, lora)
        return lora.add("attn.proj", self.proj(seen), raw), thought


class TextDecoder:
    """The word table, the blocks and the head, with their weights."""

    def __init__(self, config: TextConfig, tensors: Mapping[str, Tensor], kernels: Kernels[Any]) -> None:
        self.config = config
        self.kernels = kernels
        self.wte = tensors["text.wte"]
        self.blocks = [TextBlock.take(tensors, i, config, kernels) for i in range(config.n_layers)]
        self.post_ln = Norm.take(tensors, "text.post_ln", kernels)
        self.lm_head = Linear.take(tensors, "text.lm_head", kernels)
        self.cos, self.sin = kernels.rope_tables(
            config.max_context, config.rotary_dims, config.rope_theta, self.wte.device
        )
        self.fused = self._fuse()
        self.sparse = self._fuse_sparse()

    def _fuse_sparse(self) -> SparseStep | None:
        """As `_fuse`, for blocks whose attention is scaled."""
        blocks = [block.scaled() for block in self.blocks]
        scaled = [block for block in blocks if block is not None]
        if len(scaled) < len(blocks):
            return None
        ln, head = (Affine(part.weight, part.bias) for part in (self.post_ln, self.lm_head))
        fused = self.kernels.fuse_sparse(SparseDecoder(scaled, ln, head, self.config.n_heads, self.cos, self.sin))
        if fused is not None:
            self.blocks = [block.moved(laid) for block, laid in zip(self.blocks, fused.weights.blocks, strict=True)]
        return fused

    def _fuse(self) -> FusedStep | None:
        """Let the kernels lay the weights out for fused steps, and read them as they lie then, if they have those."""
        blocks = [block.dense() for block in self.blocks]
        dense = [block for block in blocks if block is not None]
        if len(dense) < len(blocks):
            return None
        ln, head = (Affine(part.weight, part.bias) for part in (self.post_ln, self.lm_head))
        fused = self.kernels.fuse(Decoder(dense, ln, head, self.config.n_heads, self.cos, self.sin))
        if fused is not None:
            new = fused.weights
            self.blocks = [block.packed(laid) for block, laid in zip(self.blocks, new.blocks, strict=True)]
            self.post_ln = Norm(new.ln.weight, new.ln.bias, self.kernels)
            self.lm_head = Linear(new.head.weight, new.head.bias, self.kernels)
        return fused

    def forward(
        self, x: Tensor, positions: Tensor, tables: Tensor, cache: PagedKV, adapters: Adapted | None = None
    ) -> Tensor:
        """x [T, dim], positions int64 [T], tables int64 [T, n] or, for one sequence, [1, n] -> hidden [T, dim].

        Pieces run one after the other: tokens of one sequence come in ascending position.
        """
        shared = tables.shape[0] == 1
        pieces = self.kernels.pieces(x.shape[0], tables.shape[0])
        done = [
            self._piece(x[p], positions[p], tables if shared else tables[p], cache, _part(adapters, p)) for p in pieces
        ]
        return done[0] if len(done) == 1 else torch.cat(done)

    def _piece(self, x: Tensor, positions: Tensor, tables: Tensor, cache: PagedKV, adapters: Adapted | None) -> Tensor:
        """One piece through all layers; each layer writes all its keys before it attends."""
        real, kernels = x.shape[0], self.kernels
        own = None if adapters is None else _of_step(adapters, real)
        alone = tables.shape[0] == real and (adapters is None or own is not None)
        if self.fused is not None and alone and self.fused.fits(real, cache.keys):
            return self.fused.forward(x, positions, tables, cache.keys, cache.values, own, cache.scales)
        if self.sparse is not None and adapters is None and alone and self.sparse.fits(real, cache.keys):
            return self.sparse.forward(x, positions, tables, cache.keys, cache.values, cache.scales)
        at = kernels.paging(positions, tables, cache.keys[0])
        cos, sin = self.cos[positions], self.sin[positions]
        x, places = kernels.pad_rows(x), kernels.pad_rows(positions)
        loras = self._layers(adapters, None if adapters is None else kernels.spread(adapters[1], real))
        for block, lora, (keys, values, scales) in zip(self.blocks, loras, cache.layers, strict=True):
            n, raw = block.normed(x, lora)
            q, k, v = self._rotated(block.inputs(n, raw, places, lora)[:real], cos, sin)
            kernels.write_kv(k, v, keys, values, kernels.cells(at), scales)
            seen = kernels.pad_rows(kernels.attend(q, keys, values, at, scales).flatten(1))
            attended, thought = block.outputs(seen, n, raw, lora)
            x = x + attended + thought
        return x[:real]

    def fused_for(self, rows: int, cache: PagedKV, adapters: Slots | None) -> bool:
        """Whether a step of so many rows, each with its own page table and slot, is fused."""
        if self.sparse is not None:
            return adapters is None and self.sparse.fits(rows, cache.keys)
        fits = adapters is None or adapters.bank is not None
        return self.fused is not None and fits and self.fused.fits(rows, cache.keys)

    def _layers(self, adapters: Adapted | None, slots: Tensor | None) -> list[LayerAdapters | None]:
        """The adapters of each layer."""
        if adapters is None or slots is None:
            return [None] * len(self.blocks)
        return [LayerAdapters(linears, slots) for linears in adapters[0].layers]

    def prefill_block(
        self, x: Tensor, start: int, cache: PagedKV, pages: Tensor, adapters: Adapted | None = None
    ) -> None:
        """Run x [P, dim] at positions start.. as one block; keep its K/V in `pages` int64 [n], the sequence's table.

        All of the block see all of it, and positions 0..start-1, which are read from `pages`.
        """
        positions = torch.arange(start + x.shape[0], device=x.device)
        page, offset = pages[positions // cache.page_size], positions % cache.page_size
        before, cell, own = (page[:start], offset[:start]), (page[start:], offset[start:]), positions[start:]
        cos, sin = self.cos[start : start + x.shape[0]], self.sin[start : start + x.shape[0]]
        loras = self._layers(adapters, None if adapters is None else adapters[1])
        for block, lora, (keys, values, scales) in zip(self.blocks, loras, cache.layers, strict=True):
            n, raw = block.normed(x, lora)
            q, k, v = self._rotated(block.inputs(n, raw, own, lora), cos, sin)
            self.kernels.write_kv(k, v, keys, values, cell, scales)
            if scales is not None:  # what is seen is what is kept, of the block itself too
                k, v = (part.to(q.dtype) for part in self.kernels.read_kv(keys, values, (page, offset), scales))
            elif start:
                earlier = self.kernels.read_kv(keys, values, before)
                k, v = (torch.cat(parts) for parts in zip(earlier, (k, v), strict=True))
            seen = self.kernels.attend_block(q[None], k[None], v[None])[0].flatten(1)
            attended, thought = block.outputs(seen, n, raw, lora)
            x = x + attended + thought

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, dim], before the final norm -> float32 [T, vocab]."""
        step = self.fused or self.sparse
        if step is not None:
            return step.logits(hidden)
        return self.lm_head(self.post_ln(hidden)).float()

    def _rotated(self, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[T, 3 * dim] -> rotated q, rotated k, v, each [T, H, D]."""
        heads = self.config.n_heads
        parts = qkv.view(qkv.shape[0], 3 * heads, -1)
        turned = self.kernels.rope(parts[:, : 2 * heads], cos, sin)
        return turned[:, :heads], turned[:, heads:], parts[:, 2 * heads :]


def _of_step(adapters: Adapted, rows: int) -> StepAdapters | None:
    """The adapters of so many rows as a fused step takes them; None where it does not."""
    bank, slots = adapters[0].bank, adapters[1]
    return None if bank is None or slots.shape[0] != rows else StepAdapters(bank, slots)


def _part(adapters: Adapted | None, piece: slice) -> Adapted | None:
    """The tokens of a piece; one slot for all stays."""
    if adapters is None or adapters[1].shape[0] == 1:
        return adapters
    return adapters[0], adapters[1][piece]
