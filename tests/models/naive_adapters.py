"""The naive model with a Moondream 3 adapter, by the names of its file: float64, one token and one expert at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.models.naive_moondream import Array, Naive, gelu_erf, gelu_tanh, softmax


class NaiveAdapted(Naive):
    """`lora`: an adapter's tensors, such as `dense.0.up_a`; layers of experts have the numbers of their blocks."""

    def __init__(self, raw: dict[str, Any], weights: dict[str, Array], lora: dict[str, Array]) -> None:
        super().__init__(raw, weights)
        self.lora = {name: np.asarray(array, dtype=np.float64) for name, array in lora.items()}

    def feed_forward(self, layer: int, n: Array) -> Array:
        name, moe = f"text.blocks.{layer}.mlp", self.text.get("moe")
        if not moe or layer < moe["start_layer"]:
            own = {part: self.lora[f"dense.{layer}.{part}"] for part in ("up_a", "up_b", "down_a", "down_b")}
            h = gelu_tanh(self.linear(f"{name}.fc1", n) + own["up_b"] @ (own["up_a"] @ n))
            return self.linear(f"{name}.fc2", h) + own["down_b"] @ (own["down_a"] @ h)
        own = {part: self.lora[f"moe.{layer}.{part}"] for part in ("up_a", "up_b", "down_a", "down_b")}
        scores, inner = self.linear(f"{name}.router", n), moe["expert_inner_dim"]
        best = sorted(range(moe["num_experts"]), key=lambda e: -scores[e])[: moe["experts_per_token"]]
        total = np.zeros_like(n)
        for share, e in zip(softmax(scores[best]), best, strict=True):
            z = self.w[f"{name}.fc1.weight"][e] @ n + own["up_b"][e] @ (own["up_a"][e] @ n)
            h = gelu_erf(z[:inner]) * (z[inner:] + 1)
            total += share * (self.w[f"{name}.fc2.weight"][e] @ h + own["down_b"][e] @ (own["down_a"][e] @ h))
        return total
