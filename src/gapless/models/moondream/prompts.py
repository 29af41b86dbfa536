"""Prompts of several sequences in one pass of the decoder, in rooms that stay.

In: embeddings of T tokens in `x`, `Runs` that say whose they are, and a cache. Out: hidden states of the runs' last
tokens; of the last layer nothing more is computed than those need. Picture blocks are a matter of what each token sees,
so a whole prompt, or several, are one call. A row of a matrix that is no run's is computed and forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from gapless.kernels.prompts import PromptKernels, Runs, Turns
from gapless.models.base import KVCache
from gapless.models.moondream.cache import own_cache
from gapless.models.moondream.layers import Experts, Mlp, Tau
from gapless.models.moondream.text import TextBlock, TextDecoder


@dataclass(frozen=True, slots=True)
class _Rooms:
    """Memory for the most tokens there are at once: flat, so that every layer and length has its matrices there."""

    n: Tensor
    up: Tensor
    inner: Tensor

    @staticmethod
    def cut(flat: Tensor, rows: int, columns: int) -> Tensor:
        """A matrix [rows, columns] at the beginning of a room."""
        return flat[: rows * columns].view(rows, columns)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A block's weights as they are multiplied: `up` [3 D (+ FF), D] with its bias, `down` [D, D (+ FF)], and `bias`
    [D] of all that is added to the residual. `fc1` begins in `up` where queries, keys and values end."""

    block: TextBlock
    up: Tensor
    up_bias: Tensor
    down: Tensor
    bias: Tensor

    @classmethod
    def of(cls, block: TextBlock) -> _Layer:
        """The matrices of a dense block that do not lie side by side do so afterwards, in a block of views of them."""
        mlp = block.mlp
        if isinstance(mlp, Experts):
            return cls(block, block.qkv.weight, block.qkv.bias, block.proj.weight, block.proj.bias)
        up, down = beside(block.qkv.weight, mlp.fc1.weight, 0), beside(block.proj.weight, mlp.fc2.weight, 1)
        if up is None or down is None:
            up, down = (
                torch.cat((block.qkv.weight, mlp.fc1.weight)),
                torch.cat((block.proj.weight, mlp.fc2.weight), dim=1),
            )
            block = _viewing(block, mlp, up, down)
        bias = (block.proj.bias.float() + mlp.fc2.bias.float()).to(up.dtype)
        return cls(block, up, torch.cat((block.qkv.bias, mlp.fc1.bias)), down, bias)


def _viewing(block: TextBlock, mlp: Mlp, up: Tensor, down: Tensor) -> TextBlock:
    """The same dense block over matrices side by side."""
    rows, columns = len(block.qkv.weight), block.proj.weight.shape[1]
    mlp = replace(mlp, fc1=replace(mlp.fc1, weight=up[rows:]), fc2=replace(mlp.fc2, weight=down[:, columns:]))
    qkv, proj = replace(block.qkv, weight=up[:rows]), replace(block.proj, weight=down[:, :columns])
    return replace(block, qkv=qkv, proj=proj, mlp=mlp)


class PackedText:
    """See the module. `most`: tokens of a call; `runs`: runs of a call."""

    def __init__(
        self, text: TextDecoder, layers: list[_Layer], kernels: PromptKernels, bos: int, most: int, runs: int
    ) -> None:
        like, dim = text.wte, text.wte.shape[1]
        self.tile = kernels.tile
        self.bos = bos
        self.most = most
        self.runs = runs
        self.x = like.new_zeros((most, dim))
        self._text = text
        self._layers = layers
        self._kernels = kernels
        up, inner = (max(columns) for columns in zip(*((len(of.up), of.down.shape[1]) for of in layers), strict=True))
        self._rooms = _Rooms(*(like.new_zeros(most * columns) for columns in (dim, up, inner)))

    @classmethod
    def of(cls, text: TextDecoder, bos: int, page_size: int, most: int, runs: int) -> PackedText | None:
        """None where the kernels have nothing for prompts, or not for this decoder and size of pages. The decoder's
        blocks may be laid out anew; no weight is kept twice."""
        kernels, config = text.kernels.prompts, text.config
        if kernels is None or not kernels.fits(text.wte.dtype, config.dim, config.n_heads, page_size):
            return None
        layers = []
        for i, block in enumerate(text.blocks):
            layers.append(_Layer.of(block))
            text.blocks[i] = layers[i].block  # one after the other: what a block was read from goes before the next
        return cls(text, layers, kernels, bos, most, runs)

    def forward(self, tokens: int, runs: Runs, cache: KVCache) -> Tensor:
        """The first `tokens` of `x` through all layers -> hidden [R, dim] of each run's last one. Each layer writes all
        its keys and values before anybody looks."""
        own = own_cache(cache)
        x, kernels, dim = self.x[:tokens], self._kernels, self.x.shape[1]
        n = _Rooms.cut(self._rooms.n, tokens, dim)
        end = len(self._layers) - 1
        for i, (layer, (keys, values, scales)) in enumerate(zip(self._layers, own.layers, strict=True)):
            block = layer.block
            kernels.norm(x, n, (block.ln.weight, block.ln.bias), layer.bias)
            rows = 3 * dim if i == end else len(layer.up)
            up = _Rooms.cut(self._rooms.up, tokens, rows)
            inner = _Rooms.cut(self._rooms.inner, tokens, layer.down.shape[1])
            kernels.linear(n, layer.up[:rows], layer.up_bias[:rows], up)
            turns = self._turns(block.tau, up[:, : 3 * dim])
            kernels.place(up, keys, values, runs, turns, inner, scales)
            kernels.attend(up, keys, values, runs, turns, inner, i == end, scales)
            if i == end:
                x, n, inner = (part.index_select(0, runs.last) for part in (x, n, inner))
                if isinstance(block.mlp, Mlp):
                    inner[:, dim:] = F.gelu(block.mlp.fc1(n), approximate="tanh")
            kernels.linear(inner, layer.down, None, x)
            if isinstance(block.mlp, Experts):
                x += block.mlp(n)
        kernels.tails(own.keys, own.values, runs)
        return x

    def _turns(self, tau: Tau | None, qkv: Tensor) -> Turns:
        cos, sin = self._text.cos, self._text.sin
        if tau is None:
            return Turns(cos, sin)
        activated = F.gelu(qkv, approximate="none" if tau.gelu == "erf" else "tanh")
        return Turns(cos, sin, F.linear(activated, tau.weight), tau.levels)


def beside(first: Tensor, second: Tensor, dim: int) -> Tensor | None:
    """The matrix of which two matrices are parts, one behind the other along `dim`; None if they lie elsewhere."""
    if first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr() or first.stride() != second.stride():
        return None
    whole = list(first.shape)
    whole[dim] += second.shape[dim]
    near = second.storage_offset() - first.storage_offset() == first.shape[dim] * first.stride(dim)
    fits = whole[1] <= first.stride(0) and first.stride(1) == 1 and first.shape[1 - dim] == second.shape[1 - dim]
    return first.as_strided(whole, first.stride()) if near and fits else None
