"""How much arithmetic a prompt and a picture take, and how fast it could be done at most.

Pure. A multiply-add is two operations; counted are matrix products and attention, which are all but a percent of it.
The floor is the larger of two: operations over the rate of matrix products measured on the spot, and the bytes of the
weights over the read bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass

from gapless.bench.rates import Rates
from gapless.bench.roofline import expert_layers, expert_weights, experts_read
from gapless.models.moondream.config import TextConfig, VisionConfig


@dataclass(frozen=True, slots=True)
class Work:
    """`flops`: operations; `weight_bytes`: read at least once for them."""

    flops: float
    weight_bytes: float

    def floor_ms(self, rates: Rates) -> float:
        """The least time it can take."""
        return 1e3 * max(self.flops / rates.flops, self.weight_bytes / rates.bandwidth)

    def tflop_per_s(self, milliseconds: float) -> float:
        """The rate at which it was done, in 10^12 operations per second."""
        return self.flops / milliseconds / 1e9


def prefill_work(text: TextConfig, ids: int, batch: int, itemsize: int, expert_itemsize: int | None = None) -> Work:
    """`batch` prompts, each a picture block, whose positions all see each other, and `ids` ids behind it; the head
    runs once for each prompt. Of experts a token takes those it chooses, and those are read that any token chose.
    Weights take `itemsize` bytes each, those of experts another number, if it is given."""
    block = text.prefix_attn
    mixed = expert_layers(text)
    shared = text.n_layers * 4 * text.dim**2 + (text.n_layers - mixed) * 2 * text.dim * text.ff_dim
    if text.tau != "none":
        shared += text.n_layers * 6 * text.n_heads * text.dim
    active = 0
    if text.moe is not None:
        shared += mixed * text.moe.num_experts * text.dim
        active = mixed * text.moe.experts_per_token * expert_weights(text)
    attended = block**2 + ids * block + ids * (ids + 1) // 2
    head = text.dim * text.vocab_size
    each = 2 * (shared + active) * (block + ids) + 4 * text.n_layers * text.dim * attended + 2 * head
    experts = mixed * experts_read(text, batch * (block + ids)) * expert_weights(text)
    return Work(float(batch * each), float(itemsize * (shared + head) + (expert_itemsize or itemsize) * experts))


def encoder_work(vision: VisionConfig, crops: int, itemsize: int) -> Work:
    """The tower's layers over `crops` crops."""
    dim, patches = vision.enc_dim, vision.grid**2
    entry = vision.in_channels * vision.enc_patch_size**2 * dim
    matrices = entry + vision.enc_n_layers * (4 * dim**2 + 2 * dim * vision.enc_ff_dim)
    each = 2 * matrices * patches + 4 * vision.enc_n_layers * dim * patches**2
    return Work(float(crops * each), float(itemsize * matrices))
