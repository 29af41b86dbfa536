"""How fast a decode step could be at most: bytes it must read over the bandwidth measured on the spot.

Pure arithmetic. A step reads the decoder's weights once (blocks, final norm and head; of the word table only a few
rows, which are not counted) and each row's keys and values up to its position. Of a layer's experts it reads those that
any of its rows chose: as many as there are on average if each row chose by lot. Floor = bytes / read bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass

from gapless.models.moondream.config import TextConfig


def decode_weight_bytes(text: TextConfig, itemsize: int) -> int:
    """Bytes of the weights that every decode step reads, `itemsize` bytes each: all but experts."""
    dim, ff = text.dim, text.ff_dim
    norm = 2 * dim
    attention = 3 * dim * dim + 3 * dim + dim * dim + dim
    if text.tau != "none":
        attention += 6 * text.n_heads * dim + text.n_heads
    mixed = expert_layers(text)
    mlps = (text.n_layers - mixed) * (2 * ff * dim + ff + dim)
    routers = mixed * (text.moe.num_experts * (dim + 1)) if text.moe is not None else 0
    head = text.vocab_size * dim + text.vocab_size
    return itemsize * (text.n_layers * (norm + attention) + mlps + routers + norm + head)


def expert_layers(text: TextConfig) -> int:
    """How many layers have experts."""
    return sum(text.experts(layer) is not None for layer in range(text.n_layers))


def expert_weights(text: TextConfig) -> int:
    """Weights of one expert: two matrices in, one out, no biases; 0 without experts."""
    return 3 * text.dim * text.moe.expert_inner_dim if text.moe is not None else 0


def experts_read(text: TextConfig, tokens: int) -> float:
    """Experts of one layer that `tokens` tokens choose together, on average if each chooses by lot."""
    if text.moe is None:
        return 0.0
    count = text.moe.num_experts
    return count * (1.0 - (1.0 - text.moe.experts_per_token / count) ** tokens)


def kv_token_bytes(text: TextConfig, itemsize: int) -> int:
    """Bytes of one position's keys and values in all layers."""
    return 2 * text.n_layers * text.n_kv_heads * text.head_dim * itemsize


@dataclass(frozen=True, slots=True)
class Roofline:
    """What a step of one model must read, and how fast this machine reads. Bytes; bandwidth in bytes per second.

    `weight_bytes`: all but experts, of which one takes `expert_bytes`; `text` says how many are chosen (None: no
    experts).
    """

    weight_bytes: int
    token_bytes: int
    bandwidth: float
    expert_bytes: int = 0
    text: TextConfig | None = None

    @classmethod
    def of(
        cls,
        text: TextConfig,
        itemsize: int,
        bandwidth: float,
        expert_itemsize: int | None = None,
        kv_itemsize: int | None = None,
    ) -> Roofline:
        """A decoder's whose weights, keys and values take `itemsize` bytes each, but those of experts, and keys and
        values, another number, if it is given."""
        weights, token = decode_weight_bytes(text, itemsize), kv_token_bytes(text, kv_itemsize or itemsize)
        return cls(weights, token, bandwidth, (expert_itemsize or itemsize) * expert_weights(text), text)

    def step_bytes(self, rows: int, context: float, read: float | None = None) -> float:
        """Bytes of one step of `rows` rows that attend to `context` positions each, on average.

        `read`: how many experts of a layer were read, where that was counted.
        """
        experts = 0.0
        if self.text is not None:
            experts = expert_layers(self.text) * (experts_read(self.text, rows) if read is None else read)
        return self.weight_bytes + experts * self.expert_bytes + rows * context * self.token_bytes

    def floor_ms(self, rows: int, context: float, read: float | None = None) -> float:
        """The least a step can take, in milliseconds."""
        return 1e3 * self.step_bytes(rows, context, read) / self.bandwidth

    def achieved_gb_per_s(self, rows: int, context: float, period_ms: float, read: float | None = None) -> float:
        """Bytes a step must read over the time it takes, in 10^9 bytes per second."""
        return self.step_bytes(rows, context, read) / period_ms / 1e6

    def share(self, rows: int, context: float, period_ms: float, read: float | None = None) -> float:
        """The floor's part of the time a step takes, 0..1."""
        return self.floor_ms(rows, context, read) / period_ms


def gain(tokens_per_s: float, blocking: float) -> float:
    """By which fraction the throughput is above the blocking engine's (depth 1)."""
    return tokens_per_s / blocking - 1.0
