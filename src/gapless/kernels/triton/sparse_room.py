"""What the kernels of a sparse decode step read and write: weights as they lie for them, and the memory between them.

In: a `SparseDecoder`. Out: `Layer`s, whose products of one input lie side by side, and a `Room` for the most rows there
may be. Counters of parts that have arrived are zero between kernels: the last to arrive puts them back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gapless.kernels.fused import Affine
from gapless.kernels.sparse import Dense, Mixture, ScaledBlock, SparseDecoder
from gapless.kernels.stacks import Stack
from gapless.kernels.triton.choices import MOST_ROWS, MOST_SCANS
from gapless.kernels.triton.sparse_choices import MOST_SHARES, NARROWEST, UNIT, SparseDims
from gapless.kernels.triton.tiles import CUTS

CUT = torch.float8_e5m2
"""What a token's element is cut into where experts in FP8 are multiplied as they are, see `cut_jit`."""
FEWEST = 16
"""Columns of the narrowest product on the matrix units."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A block as the kernels read it. `w` [N, D], N = 3 D + FF or the router's rows, which zeros fill up to a multiple
    of `UNIT`; `bias` float32 [N]; `down` [D, D (+ FF)]: proj, in a dense block with fc2 beside it; `last` float32 [D]:
    the biases of what is added to the residual."""

    block: ScaledBlock
    w: Tensor
    bias: Tensor
    down: Tensor
    last: Tensor

    @property
    def routed(self) -> int:
        """Rows of the router, with those that fill it up; 0 in a dense layer."""
        return 0 if isinstance(self.block.mlp, Dense) else len(self.w) - len(self.block.qkv.bias)


@torch.inference_mode()
def packed(block: ScaledBlock) -> Layer:
    """Put what reads the norm side by side, and in a dense block what is added up. Its linears become views of that."""
    mlp = block.mlp
    other = mlp.fc1 if isinstance(mlp, Dense) else mlp.router
    parts = [block.qkv, other]
    sizes = [len(part.bias) for part in parts]
    rows = sum(sizes)
    w = block.qkv.weight.new_zeros(-(-rows // UNIT) * UNIT, block.qkv.weight.shape[1])
    torch.cat([part.weight for part in parts], out=w[:rows])
    bias = torch.zeros(len(w), dtype=torch.float32, device=w.device)
    bias[:rows] = torch.cat([part.bias for part in parts]).float()
    qkv, moved = (Affine(v, p.bias) for v, p in zip(torch.split(w[:rows], sizes), parts, strict=True))
    proj, down, last = block.proj, block.proj.weight, block.proj.bias.float()
    if isinstance(mlp, Dense):
        dim, last = len(last), last + mlp.fc2.bias.float()
        down = torch.cat((down, mlp.fc2.weight), dim=1)
        proj, fc2 = Affine(down[:, :dim], proj.bias), Affine(down[:, dim:], mlp.fc2.bias)
        laid: Dense | Mixture = Dense(moved, fc2)
    else:
        laid = Mixture(moved, mlp.up, mlp.down, mlp.count)
    return Layer(ScaledBlock(block.ln, qkv, proj, block.scaling, laid), w, bias, down, last)


def dims_of(decoder: SparseDecoder) -> SparseDims:
    """A decoder's sizes."""
    mlps = [block.mlp for block in decoder.blocks]
    dense = next((mlp for mlp in mlps if isinstance(mlp, Dense)), None)
    mixed = next((mlp for mlp in mlps if isinstance(mlp, Mixture)), None)
    return SparseDims(
        dim=len(decoder.ln.bias),
        ff=0 if dense is None else len(dense.fc1.bias),
        heads=decoder.heads,
        rotary=decoder.cos.shape[1],
        vocab=len(decoder.head.bias),
        experts=0 if mixed is None else mixed.up.count,
        share=0 if mixed is None else mixed.count,
        expert_inner=0 if mixed is None else mixed.down.values.shape[2],
        expert_itemsize=2 if mixed is None else mixed.up.values.itemsize,
    )


class Room:
    """Rows of a buffer are rows of a step, or its pairs of a row and an expert."""

    def __init__(self, dims: SparseDims, layers: list[Layer], dtype: torch.dtype) -> None:
        most, dim, wide = MOST_ROWS, dims.dim, dims.dim // dims.heads
        pairs, experts = most * max(1, dims.share), max(1, dims.experts)
        device = layers[0].w.device

        def room(*shape: int, of: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=of, device=device)

        self.heads = max(FEWEST, up(2 * dims.heads))
        self.routed = max(1, *(layer.routed for layer in layers))
        self.x = room(most, dim)
        self.n = room(most, dim, of=dtype)
        narrow = most if dims.expert_itemsize == 1 else 0
        self.cut_n = room(narrow, CUTS, dim, of=CUT)
        self.done = room(experts, of=torch.int32)
        self.cut_gated = room(narrow * dims.share, CUTS, dims.expert_inner, of=CUT)
        self.qkv = room(most, 3 * dim, of=dtype)
        self.active = room(3 * dim, of=dtype)
        self.shares = room(3 * dim // NARROWEST, most, self.heads)
        self.attended = room(most, dim, of=dtype)
        self.inner = room(most, dim + dims.ff, of=dtype)
        self.logits = room(most, self.routed)
        self.picked = room(pairs)
        self.chosen = room(pairs, of=torch.int32)
        self.lists = room(experts, most, of=torch.int32)
        self.taken = room(len(layers), experts, of=torch.int32)
        self.gated = room(pairs, max(1, dims.expert_inner), of=dtype)
        self.said = room(pairs, dim, of=dtype)
        self.parts = room(MOST_SHARES, most, dim)
        self.scan_parts = room(MOST_SCANS, dims.heads, wide + 2)
        self.arrived = room(most * dims.heads, of=torch.int32)

    def poison(self) -> None:
        """Put NaN, or the largest number there is, wherever a kernel leaves something for the next ones."""
        for name, room in vars(self).items():
            if isinstance(room, torch.Tensor) and name != "arrived":
                room.fill_(torch.nan if room.is_floating_point() else 2**31 - 1)


def kinds(stack: Stack, like: Tensor) -> tuple[bool, bool]:
    """Whether its values are FP8, and whether a GPU widens them: the interpreter has no assembly."""
    return stack.scales is not None, like.device.type != "cpu"


def stored(stack: Stack) -> Tensor:
    """A stack's values as the kernels take them: FP8 as bytes."""
    return stack.values if stack.scales is None else stack.values.view(torch.uint8)


def up(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << (number - 1).bit_length()
