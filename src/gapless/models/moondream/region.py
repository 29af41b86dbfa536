"""The region module: values to embeddings, hidden states to values.

A coordinate or a size is a token whose embedding comes from its value, never from the word table; what is fed back is
the decoded value, not its bin. Features follow the order of roundings of the parameter dtype. Values are float32.
Hidden states come before the decoder's final norm; a checkpoint may bring a norm for the region's own decoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gapless.kernels.base import Kernels
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
        decoder: type[Mlp | Linear] = {"mlp": Mlp, "linear": Linear}[config.heads]
        self.coord_decoder = decoder.take(tensors, "region.coord_decoder", kernels)
        self.size_decoder = decoder.take(tensors, "region.size_decoder", kernels)
        self.ln = Norm.take(tensors, "region.ln", kernels) if "region.ln.weight" in tensors else None
        self.size_of_bin = {"log": kernels.size_of_bin, "linear": kernels.coord_of_bin}[config.sizes]

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
