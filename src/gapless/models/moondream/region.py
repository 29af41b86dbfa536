"""The region module: values to embeddings, hidden states to values.

A coordinate or a size is a token whose embedding comes from its value, never from the word table; what is fed back is
the decoded value, not its bin. Features follow the order of roundings of the parameter dtype. Values are float32.
Hidden states come before the decoder's final norm; a checkpoint may bring a norm for the region's own decoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gapless.kernels.base import Kernels
from gapless.kernels.fused import Affine
from gapless.kernels.region import FusedRegion, Head, Heads
from gapless.models.moondream.config import RegionConfig
from gapless.models.moondream.layers import Linear, Mlp, Norm


class Region:
    """The four heads with their weights."""

    def __init__(self, config: RegionConfig, tensors: Mapping[str, Tensor], kernels: Kernels[Any]) -> None:
        self.kernels = kernels
        self.coord_features = tensors["region.coord_features"]
        self.size_features = tensors["region.size_features"]
        self.coord_encoder = Linear.take(tensors, "region.coord_encoder", kernels)
        self.size_encoder = Linear.take(tensors, "region.size_encoder", kernels)
        self.coord_decoder: Mlp | Linear
        self.size_decoder: Mlp | Linear
        decoder: type[Mlp | Linear] = {"mlp": Mlp, "linear": Linear}[config.heads]
        self.coord_decoder = decoder.take(tensors, "region.coord_decoder", kernels)
        self.size_decoder = decoder.take(tensors, "region.size_decoder", kernels)
        self.ln = Norm.take(tensors, "region.ln", kernels) if "region.ln.weight" in tensors else None
        self.size_of_bin = {"log": kernels.size_of_bin, "linear": kernels.coord_of_bin}[config.sizes]
        self.fused = self._fuse()

    def _fuse(self) -> FusedRegion | None:
        """Let the kernels lay the decoders out for a few launches, and read them as they lie then, if they do."""
        coord, size = self.coord_decoder, self.size_decoder
        if not isinstance(coord, Mlp) or not isinstance(size, Mlp) or self.ln is not None:
            return None
        bins = torch.arange(coord.fc2.weight.shape[0], device=self.coord_features.device)
        says = (self.kernels.coord_of_bin(bins, len(bins)), self.size_of_bin(bins, len(bins)))
        fused = self.kernels.fuse_region(
            Heads(
                _head(self.coord_features, self.coord_encoder, coord, says[0]),
                _head(self.size_features, self.size_encoder, size, says[1]),
            )
        )
        if fused is not None:
            self.coord_decoder, self.size_decoder = (_mlp(head, self.kernels) for head in fused.heads.both)
        return fused

    def coord_embedding(self, values: Tensor) -> Tensor:
        """Float32 [T, 1] -> [T, dim]."""
        return self.coord_encoder(self.kernels.fourier_features(values, self.coord_features))

    def size_embedding(self, values: Tensor) -> Tensor:
        """Float32 [T, 2], (width, height) -> [T, dim]."""
        return self.size_encoder(self.kernels.fourier_features(values, self.size_features))

    def coord_value(self, hidden: Tensor) -> Tensor:
        """[T, dim], before the final norm -> float32 [T]: the likeliest bin's coordinate."""
        scores = self.coord_scores(hidden)
        return self.kernels.coord_of_bin(scores.argmax(dim=-1), scores.shape[-1])

    def size_value(self, hidden: Tensor) -> Tensor:
        """[T, dim], before the final norm -> float32 [T, 2]: the likeliest (width, height)."""
        scores = self.size_scores(hidden)
        return self.size_of_bin(scores.argmax(dim=-1), scores.shape[-1])

    def coord_scores(self, hidden: Tensor) -> Tensor:
        """[T, dim], before the final norm -> [T, bins]."""
        return self.coord_decoder(self._normed(hidden))

    def size_scores(self, hidden: Tensor) -> Tensor:
        """[T, dim], before the final norm -> [T, 2, bins], of widths and of heights."""
        return self.size_decoder(self._normed(hidden)).view(hidden.shape[0], 2, -1)

    def _normed(self, hidden: Tensor) -> Tensor:
        return hidden if self.ln is None else self.ln(hidden)


def _head(features: Tensor, encoder: Linear, decoder: Mlp, values: Tensor) -> Head:
    encode, fc1, fc2 = (Affine(linear.weight, linear.bias) for linear in (encoder, decoder.fc1, decoder.fc2))
    return Head(features, encode, fc1, fc2, values)


def _mlp(head: Head, kernels: Kernels[Any]) -> Mlp:
    fc1, fc2 = (Linear(affine.weight, affine.bias, kernels) for affine in (head.fc1, head.fc2))
    return Mlp(fc1, fc2, kernels)
