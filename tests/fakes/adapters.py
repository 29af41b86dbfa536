"""Adapters for tests: words for the hash model, random matrices for a real one, and who of a scene gets which.

What flows in: seeds and a config. What flows out: `Adapter`s as engines take them, and the matrices of one by branch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from tests.fakes.scene import Entry

from gapless.models.moondream.adapters import branches, pack
from gapless.models.moondream.config import TextConfig
from gapless.records import Adapter
from gapless.weights.adapters import Pair

HASHED = [Adapter(f"a{i}", i, 0x51ED_2701_0000_0000 + 7919 * i) for i in range(1, 6)]
"""Five for the hash model."""
ADDS = ("mlp.fc2", "attn.proj")
"""What these say is added to the residual stream."""
STRENGTH = 1.0
"""What an adapter adds to a linear, as a part of what the linear says."""


def shared_out(entries: Sequence[Entry], adapters: Sequence[Adapter], seed: int, none: int = 2) -> list[Entry]:
    """The same requests, each with one of the adapters or, `none` times as often as with a certain one, without."""
    rng = random.Random(seed)
    chosen = [rng.choice([*(None,) * none, *adapters]) for _ in entries]
    return [replace(e, request=replace(e.request, adapter=a)) for e, a in zip(entries, chosen, strict=True)]


def plain_of(entries: Sequence[Entry]) -> list[Entry]:
    """The requests without adapter."""
    return [entry for entry in entries if entry.request.adapter is None]


def random_pairs(
    config: TextConfig, rank: int, seed: int, device: torch.device, dtype: torch.dtype, strength: float = STRENGTH
) -> dict[str, Pair]:
    """A and B of every branch, drawn on `device`; activations keep their size. `rank`: of all experts of a token."""
    generator = torch.Generator(device).manual_seed(seed)
    pairs: dict[str, Pair] = {}
    for name, branch in branches(config).items():
        own, outer = rank // branch.share, (branch.experts,) if branch.experts else ()
        scale = strength / own**0.5 / ((2 * config.n_layers) ** 0.5 if name.endswith(ADDS) else 1.0)
        a = torch.empty((*outer, own, branch.into), dtype=dtype, device=device)
        b = torch.empty((*outer, branch.out, own), dtype=dtype, device=device)
        a.normal_(0.0, branch.into**-0.5, generator=generator)
        pairs[name] = (a, b.normal_(0.0, scale, generator=generator))
    return pairs


def random_adapters(
    config: TextConfig, ranks: Sequence[int], slots: int, device: torch.device, dtype: torch.dtype
) -> list[Adapter]:
    """One of each rank for slots of rank `slots`, as a shelf makes them: on the host, pinned for a GPU."""
    made = []
    for number, rank in enumerate(ranks, start=1):
        pairs = {n: (a.cpu(), b.cpu()) for n, (a, b) in random_pairs(config, rank, number, device, dtype).items()}
        flat = pack(pairs, config, slots, dtype)
        made.append(Adapter(f"tune{number}", number, flat.pin_memory() if device.type == "cuda" else flat))
    return made
