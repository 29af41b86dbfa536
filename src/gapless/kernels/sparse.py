"""What a set of kernels may offer beside a dense fused step: one for blocks with scaled attention and experts.

In: a decoder's weights as plain tensors. Out: a `SparseStep`, which may lay some of them out anew and hands all of them
back, so that prompts, which go layer by layer, read the same memory. No weight is kept twice, and none is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gapless.kernels.fused import Affine
from gapless.kernels.stacks import Stack


@dataclass(frozen=True, slots=True)
class Scaling:
    """What `Kernels.tau` takes: weight [2 H, 3 D], levels [positions, H], gelu "erf" or "tanh"."""

    weight: Tensor
    levels: Tensor
    gelu: str


@dataclass(frozen=True, slots=True)
class Dense:
    """fc2(gelu_tanh(fc1 n))."""

    fc1: Affine
    fc2: Affine


@dataclass(frozen=True, slots=True)
class Mixture:
    """`Kernels.experts` of the `count` likeliest by the router, which `Kernels.route` tells."""

    router: Affine
    up: Stack
    down: Stack
    count: int


@dataclass(frozen=True, slots=True)
class ScaledBlock:
    """A block of one norm, n = ln x: x + proj(attention(tau(qkv n))) + mlp(n)."""

    ln: Affine
    qkv: Affine
    proj: Affine
    scaling: Scaling
    mlp: Dense | Mixture


@dataclass(frozen=True, slots=True)
class SparseDecoder:
    """Blocks, the last norm and the head, of one dtype (experts may be FP8) on one device.

    `cos`, `sin` float32 [positions, rotated dimensions], as the set's own `rope_tables` made them.
    """

    blocks: Sequence[ScaledBlock]
    ln: Affine
    head: Affine
    heads: int
    cos: Tensor
    sin: Tensor


class SparseStep(Protocol):
    """A decoder that feeds one token a row. A row's result depends on that row alone, and on how many rows there are.

    `weights`: the decoder it was made of, to the bit, as it lies now. `taken` int32 [layers, experts]: how many rows of
    the last step chose each expert, on the device; rows of zeros for dense layers.
    """

    @property
    def weights(self) -> SparseDecoder:
        """See the class."""
        ...

    @property
    def taken(self) -> Tensor:
        """See the class."""
        ...

    @property
    def source(self) -> str:
        """See `FusedStep.source`."""
        ...

    def fits(self, rows: int, keys: Tensor) -> bool:
        """See `FusedStep.fits`."""
        ...

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        tables: Tensor,
        keys: Tensor,
        values: Tensor,
        scales: Tensor | None = None,
    ) -> Tensor:
        """See `FusedStep.forward`."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """See `FusedStep.logits`."""
        ...
