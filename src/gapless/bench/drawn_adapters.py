"""Adapters of random numbers, for measurements: what a step takes does not depend on what they say.

In: a decoder's config, how many, and their rank. Out: adapters as a shelf makes them, on the host, page-locked for a
GPU. What they add is small beside what the linears say, so that half types stay finite.
"""

from __future__ import annotations

import torch

from gapless.models.moondream.adapters import branches, pack
from gapless.models.moondream.config import TextConfig
from gapless.records import Adapter

STRENGTH = 0.1


def drawn_adapters(
    config: TextConfig, count: int, rank: int, device: torch.device, dtype: torch.dtype
) -> list[Adapter]:
    """`count` adapters of `rank` for slots of that rank, drawn on `device`."""
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int, scale: float) -> torch.Tensor:
        numbers = torch.empty(shape, dtype=dtype, device=device)
        return numbers.normal_(0.0, scale, generator=generator).cpu()

    made = []
    for number in range(1, count + 1):
        pairs = {}
        for name, branch in branches(config).items():
            own, outer = rank // branch.share, (branch.experts,) if branch.experts else ()
            a = drawn(*outer, own, branch.into, scale=branch.into**-0.5)
            pairs[name] = (a, drawn(*outer, branch.out, own, scale=STRENGTH * own**-0.5))
        flat = pack(pairs, config, rank, dtype)
        made.append(Adapter(f"drawn{number}", number, flat.pin_memory() if device.type == "cuda" else flat))
    return made
