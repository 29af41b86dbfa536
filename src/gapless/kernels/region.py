"""What a set of kernels may offer for values: embedding them, and reading them off hidden states, in a few launches.

In: the region module's weights as plain tensors. Out: a `FusedRegion`, which lays the decoders out anew and hands them
back as views. No weight is kept twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gapless.kernels.fused import Affine


@dataclass(frozen=True, slots=True)
class Head:
    """One kind of value: a coordinate, or a size, which is two numbers.

    Its embedding is `encoder` of the cosines and sines of (2 pi values) @ `features` [numbers, n]; it is decoded by
    fc2(gelu_tanh(fc1 hidden)), as many scores for each number as there are bins. `values` float32 [bins]: theirs.
    """

    features: Tensor
    encoder: Affine
    fc1: Affine
    fc2: Affine
    values: Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """Both kinds, of one dtype on one device."""

    coord: Head
    size: Head

    @property
    def both(self) -> Sequence[Head]:
        """The coordinate's first."""
        return (self.coord, self.size)


class FusedRegion(Protocol):
    """Values of a step's rows. A row's result depends on that row alone, and on how many rows there are."""

    @property
    def heads(self) -> Heads:
        """The weights as they lie now."""
        ...

    def embed(self, ids: Tensor, values: Tensor, words: Tensor, size_id: int) -> Tensor:
        """ids int64 [T], values float32 [T, 2], words [vocab, D] -> [T, D]: a word's embedding where the first value is
        negative, else that of a size for `size_id`, of a coordinate for any other id."""
        ...

    def fits(self, rows: int) -> bool:
        """Whether values of so many rows can be read."""
        ...

    def values(self, hidden: Tensor, wanted: Tensor | None) -> tuple[Tensor, Tensor]:
        """Hidden [B, D] -> likeliest coordinates float32 [B] and sizes float32 [B, 2].

        `wanted` int32 [B]: 1 for a row whose coordinate is read, 2 its size, 3 both; what is not wanted is 0, and heads
        that nobody wants are not read. None: all are wanted.
        """
        ...
