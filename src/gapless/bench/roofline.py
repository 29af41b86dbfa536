"""How fast a decode step could be at most: bytes it must read over the bandwidth measured on the spot.

Pure arithmetic. A step reads the decoder's weights once (blocks, final norm and head; of the word table only a few
rows, which are not counted) and each row's keys and values up to its position. Floor = bytes / read bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass

from gapless.models.moondream.config import TextConfig


def decode_weight_bytes(text: TextConfig, itemsize: int) -> int:
    """Bytes of the weights that one decode step reads, `itemsize` bytes each."""
    dim, ff = text.dim, text.ff_dim
    norm = 2 * dim
    attention = 3 * dim * dim + 3 * dim + dim * dim + dim
    mlp = 2 * ff * dim + ff + dim
    head = text.vocab_size * dim + text.vocab_size
    return itemsize * (text.n_layers * (norm + attention + mlp) + norm + head)


def kv_token_bytes(text: TextConfig, itemsize: int) -> int:
    """Bytes of one position's keys and values in all layers."""
    return 2 * text.n_layers * text.n_kv_heads * text.head_dim * itemsize


@dataclass(frozen=True, slots=True)
class Roofline:
    """What a step of one model must read, and how fast this machine reads. Bytes; bandwidth in bytes per second."""

    weight_bytes: int
    token_bytes: int
    bandwidth: float

    def step_bytes(self, rows: int, context: float) -> float:
        """Bytes of one step of `rows` rows that attend to `context` positions each, on average."""
        return self.weight_bytes + rows * context * self.token_bytes

    def floor_ms(self, rows: int, context: float) -> float:
        """The least a step can take, in milliseconds."""
        return 1e3 * self.step_bytes(rows, context) / self.bandwidth

    def achieved_gb_per_s(self, rows: int, context: float, period_ms: float) -> float:
        """Bytes a step must read over the time it takes, in 10^9 bytes per second."""
        return self.step_bytes(rows, context) / period_ms / 1e6

    def share(self, rows: int, context: float, period_ms: float) -> float:
        """The floor's part of the time a step takes, 0..1."""
        return self.floor_ms(rows, context) / period_ms


def gain(tokens_per_s: float, blocking: float) -> float:
    """By which fraction the throughput is above the blocking engine's (depth 1)."""
    return tokens_per_s / blocking - 1.0
