"""Prompts on a GPU: tokens of several sequences in one matrix, in a few launches a layer.

In and out as `kernels.prompts.PromptKernels`. Matrix products are the GEMM library's; what lies between them is in
`prompt_jit`. Grids follow from shapes alone. `launches` counts kernels, so that a test can tell that they ran.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from gapless.kernels.kept import as_stored
from gapless.kernels.prompts import Runs, Turns
from gapless.kernels.triton import prompt_jit
from gapless.kernels.triton.choices import SMALLEST
from gapless.kernels.triton.tiles import PROMPT, PromptTile

DTYPES = (torch.bfloat16, torch.float16)
PAGES = (16, 32, 64)
FED = 128
"""Numbers of the feed-forward that one program of `place` takes, at most."""
PLACED = 32
"""Tokens that one program of `place` takes."""
COPIES_TILES = (9, 0)
"""The least compute capability with such an engine."""
WORD = 8
"""Numbers in a word of the copy engine."""


class TritonPrompts:
    """See the module. `tile`: of attention. `bulk`: whether tiles of keys and values are read by the card's copy
    engine; None: if it has one that takes tiles."""

    def __init__(self, tile: PromptTile = PROMPT, bulk: bool | None = None) -> None:
        self._tile = tile
        self._bulk = bulk
        self.tile = tile.rows
        self.launches = 0

    def fits(self, dtype: torch.dtype, dim: int, heads: int, page_size: int) -> bool:
        """See `PromptKernels`."""
        wide = dim // heads
        regular = dim % heads == 0 and wide & (wide - 1) == 0 and SMALLEST <= wide <= 128
        return regular and dtype in DTYPES and page_size in PAGES

    def norm(self, x: Tensor, n: Tensor, ln: tuple[Tensor, Tensor], bias: Tensor | None) -> None:
        """See `PromptKernels`."""
        dim = x.shape[1]
        self.launches += 1
        prompt_jit.norm[(x.shape[0],)](
            x, n, *ln, ln[1] if bias is None else bias, dim, _up(dim), bias is not None, num_warps=4
        )  # fmt: skip

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """See `PromptKernels`."""
        if bias is None:
            out.addmm_(x, weight.T)
        else:
            torch.addmm(bias, x, weight.T, out=out)

    def place(
        self,
        up: Tensor,
        keys: Tensor,
        values: Tensor,
        runs: Runs,
        turns: Turns,
        inner: Tensor,
        scales: Tensor | None = None,
    ) -> None:
        """See `PromptKernels`."""
        tokens, wide = up.shape
        heads, page, width = keys.shape[1:]
        dim = heads * width
        fed = wide - 3 * dim
        part = min(FED, fed & -fed) if fed else 1
        self.launches += 1
        prompt_jit.place[(-(-tokens // PLACED), heads + fed // part)](
            up, as_stored(keys), as_stored(values), runs.runs, runs.of, runs.tables, turns.cos, turns.sin,
            *_said(turns), inner, tokens, runs.tables.shape[1], dim, fed, wide, inner.stride(0), heads,
            turns.cos.shape[1], page, turns.said is not None, PLACED, part, scales, num_warps=4,
        )  # fmt: skip

    def attend(
        self,
        up: Tensor,
        keys: Tensor,
        values: Tensor,
        runs: Runs,
        turns: Turns,
        inner: Tensor,
        last: bool,
        scales: Tensor | None = None,
    ) -> None:
        """See `PromptKernels`."""
        heads, page, width = keys.shape[1:]
        tile, bulk = self._tile, copies_tiles(up) if self._bulk is None else self._bulk
        self.launches += 1
        prompt_jit.attend[((runs.runs if last else runs.tiles).shape[0], heads)](
            up, _described(up, tile.keys, width) if bulk else up, as_stored(keys), as_stored(values), runs.runs,
            runs.tiles, runs.sees, runs.tables, turns.cos, turns.sin, *_said(turns), inner, runs.tables.shape[1],
            width**-0.5 / math.log(2.0), heads * width, up.shape[1], inner.stride(0), heads, turns.cos.shape[1], page,
            turns.said is not None, last, tile.rows, tile.keys, tile.stages, bulk, scales, num_warps=tile.warps,
        )  # fmt: skip

    def tails(self, keys: Tensor, values: Tensor, runs: Runs) -> None:
        """See `PromptKernels`."""
        layers, pages, heads, page, width = keys.shape
        self.launches += 1
        prompt_jit.tails[(runs.runs.shape[0], layers)](
            as_stored(keys), as_stored(values), runs.runs, runs.tables, layers, pages, runs.tables.shape[1], heads,
            page, width, num_warps=4,
        )  # fmt: skip


def copies_tiles(matrix: Tensor) -> bool:
    """Whether the GPU has a copy engine that takes tiles of such a matrix: its rows must be whole words."""
    return matrix.is_cuda and _capability(matrix.device) >= COPIES_TILES and matrix.shape[1] % WORD == 0


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _described(up: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """The matrix as the GPU's copy engine reads it, in tiles."""
    return TensorDescriptor(up, list(up.shape), list(up.stride()), [rows, columns])


def _said(turns: Turns) -> tuple[Tensor, Tensor]:
    """What tau's kernels read; where there is none, anything."""
    if turns.said is None or turns.levels is None:
        return turns.cos, turns.cos
    return turns.said, turns.levels


def _up(number: int) -> int:
    return 1 << (number - 1).bit_length()
