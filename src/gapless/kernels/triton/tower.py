"""A picture tower in seven launches a layer: norms in Triton, attention there or in cuDNN, products with what follows
them fused in.

In: as `kernels.fused.FusedTower`. Out: the same. The residual is kept without the biases that were added to it: the
product behind attention or feed-forward is added to it where it lies, and each norm adds the sum of the biases so far,
in float32. Inner widths are padded with zeros to whole tiles, which changes nothing that comes out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from gapless.kernels.fused import Affine, Tower, TowerBlock
from gapless.kernels.triton import pixels_jit, tower_jit

DTYPES = (torch.bfloat16, torch.float16)
TILE = 128
"""Inner widths are padded to multiples of it."""
ALIGNED = 8
"""And the width of a patch to multiples of this: 16 bytes."""
ROWS, NORM_WARPS = 1, 1
"""Rows that one program of the norm takes, and its warps."""


@dataclass(frozen=True, slots=True)
class Scan:
    """How attention goes: so many queries a program, keys at a time, warps, and keys on their way."""

    queries: int = 64
    keys: int = 64
    warps: int = 4
    stages: int = 3


SCAN = Scan()

CUDNN_FROM = {(9, 0): 5}
"""From how many crops on attention is cuDNN's, by compute capability; elsewhere it never is. Measured on an H200, where
it takes 87 us instead of 98 for 9 crops of Moondream 2, and 28 instead of 24 for 2."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A block laid out anew. `before1`, `before2` float32 [D]: the biases that the residual lacks at either norm; fc1
    [padded, D] and fc2 [D, padded]."""

    block: TowerBlock
    before1: Tensor
    before2: Tensor
    fc1: Affine
    fc2: Tensor


class TritonTower:
    """See the module. `launches` counts calls of `encode`, so that a test can tell that they were made."""

    def __init__(self, tower: Tower, scan: Scan = SCAN) -> None:
        self.scan = scan
        self.launches = 0
        self._tower, self._layers, self._after = _packed(tower)
        self._patches = _padded(tower.patches.weight, 1, ALIGNED)
        self._width = tower.patches.weight.shape[0]
        like = tower.patches.weight
        self._cudnn_from = CUDNN_FROM.get(torch.cuda.get_device_capability(like.device)) if like.is_cuda else None

    @property
    def weights(self) -> Tower:
        """The tower as it lies now."""
        return self._tower

    def encode(self, crops: Tensor, out: Tensor) -> None:
        """See `FusedTower.encode`."""
        self.launches += 1
        count, dim = crops.shape[0], self._width
        x = F.linear(self._pixels(crops), self._patches, self._tower.patches.bias)
        x.view(count, -1, dim).add_(self._tower.positions)
        for layer in self._layers:
            block = layer.block
            qkv = F.linear(self._norm(x, layer.before1, block.ln1), block.qkv.weight, block.qkv.bias)
            x.addmm_(self._attend(qkv, count), block.proj.weight.t())
            n = self._norm(x, layer.before2, block.ln2)
            x.addmm_(_activated(n, layer.fc1), layer.fc2.t())
        self._norm(x, self._after, self._tower.ln, out.view(-1, dim))

    def project(self, features: Sequence[Tensor], tilings: Sequence[tuple[int, int]]) -> list[Tensor]:
        """See `FusedTower.project`."""
        of, dim = self._tower, self._width
        cells = of.grid**2
        pooled = features[0].new_empty(len(features) * cells, 2 * dim)
        for place, (own, (rows, columns)) in enumerate(zip(features, tilings, strict=True)):
            tower_jit.pool[(cells,)](
                own, pooled[place * cells :], rows, columns, dim, _up(dim), of.grid, of.margin, num_warps=4
            )
        out = F.linear(_activated(pooled, of.inner), of.out.weight, of.out.bias)
        return list(torch.split(out, cells))

    def _pixels(self, crops: Tensor) -> Tensor:
        """Uint8 [n, side, side, 3] -> patches [n grid^2, padded]."""
        of, wide = self._tower, self._patches.shape[1]
        total = crops.shape[0] * of.grid**2
        out = self._patches.new_empty(total, wide)
        pixels_jit.patches[(total,)](
            crops, of.levels, out, total, crops.shape[1], of.grid, of.size, wide, _up(wide), num_warps=4
        )
        return out

    def _norm(self, x: Tensor, shift: Tensor, ln: Affine, out: Tensor | None = None) -> Tensor:
        """[T, D] and what it lacks -> [T, D]."""
        out = torch.empty_like(x) if out is None else out
        grid = (triton.cdiv(x.shape[0], ROWS),)
        dim = x.shape[1]
        tower_jit.norm[grid](x, shift, ln.weight, ln.bias, out, x.shape[0], dim, _up(dim), ROWS, num_warps=NORM_WARPS)
        return out

    def _attend(self, qkv: Tensor, count: int) -> Tensor:
        """[n P, 3 D] -> [n P, D]."""
        if self._cudnn_from is not None and count >= self._cudnn_from:
            try:
                return _by_cudnn(qkv, count, self._tower.heads)
            except RuntimeError:  # it does not take such heads: it says so when it is first asked, before any capture
                self._cudnn_from = None
        return self._scan(qkv, count)

    def _scan(self, qkv: Tensor, count: int) -> Tensor:
        """The same in Triton."""
        scan, heads, dim = self.scan, self._tower.heads, self._width
        length, wide = qkv.shape[0] // count, dim // heads
        main = 1 << (wide.bit_length() - 1)
        rest = max(16, _up(wide - main)) if wide > main else 0
        out = qkv.new_empty(qkv.shape[0], dim)
        tower_jit.attend[(triton.cdiv(length, scan.queries), heads, count)](
            qkv, out, length, dim, wide, main, rest, scan.queries, scan.keys, scan.stages,
            math.log2(math.e) / math.sqrt(wide), num_warps=scan.warps, num_stages=scan.stages,
        )  # fmt: skip
        return out


def _activated(x: Tensor, of: Affine) -> Tensor:
    """gelu_tanh(x w^T + b), in the product's own epilogue on a GPU; what torch fuses on a CPU is the other GELU."""
    if x.is_cuda:
        return torch._addmm_activation(of.bias, x, of.weight.t(), use_gelu=True)
    return F.gelu(F.linear(x, of.weight, of.bias), approximate="tanh")


def _by_cudnn(qkv: Tensor, count: int, heads: int) -> Tensor:
    """[n P, 3 D] -> [n P, D]. Raises `RuntimeError` for heads that cuDNN does not take.

    The operator itself is called: to ask for it by `sdpa_kernel` would ask in the name of all threads.
    """
    q, k, v = qkv.view(count, -1, 3, heads, qkv.shape[1] // (3 * heads)).permute(2, 0, 3, 1, 4)
    seen: Tensor = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, False)[0]
    return seen.transpose(1, 2).reshape(qkv.shape[0], -1)


def fits(tower: Tower) -> bool:
    """Whether these kernels take such a tower."""
    dim = tower.patches.weight.shape[0]
    wide = dim // tower.heads
    return tower.ln.weight.dtype in DTYPES and wide >= 16 and wide % 8 == 0 and dim % 16 == 0


@torch.inference_mode()
def _packed(tower: Tower) -> tuple[Tower, list[Layer], Tensor]:
    """The tower with its blocks read from padded weights; those; and the biases that the last residual lacks.

    All matrices of the blocks move, not only those that are padded: torch keeps several of this size in one piece of
    memory, which goes back once nothing in it is used. Half a gigabyte would else stay behind in holes.
    """
    layers: list[Layer] = []
    lacking = torch.zeros_like(tower.ln.bias, dtype=torch.float32)
    for block in tower.blocks:
        before1, before2 = lacking, lacking + block.proj.bias
        lacking = before2 + block.fc2.bias
        inner = block.fc1.weight.shape[0]
        fc1 = Affine(_padded(block.fc1.weight, 0, TILE), _padded(block.fc1.bias, 0, TILE))
        fc2 = _padded(block.fc2.weight, 1, TILE)
        views = (Affine(fc1.weight[:inner], fc1.bias[:inner]), Affine(fc2[:, :inner], block.fc2.bias))
        own = TowerBlock(block.ln1, _moved(block.qkv), _moved(block.proj), block.ln2, *views)
        layers.append(Layer(own, before1, before2, fc1, fc2))
    return replace(tower, blocks=[layer.block for layer in layers]), layers, lacking


def _moved(of: Affine) -> Affine:
    """The same, with its weight in memory of its own."""
    return Affine(of.weight.clone(), of.bias)


def _padded(x: Tensor, dim: int, multiple: int) -> Tensor:
    """Zeros appended to a dimension up to a multiple; x itself if it is one."""
    missing = -x.shape[dim] % multiple
    if not missing:
        return x
    return F.pad(x, (0, missing) if dim == x.dim() - 1 else (0, 0, 0, missing))


def _up(number: int) -> int:
    """The power of two from `number` on."""
    return 1 << (number - 1).bit_length()
