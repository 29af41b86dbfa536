"""Run by itself, with TRITON_INTERPRET=1: adapters in the fused step, and values, on the CPU, in float32."""

from __future__ import annotations

import sys
from typing import Any

import torch
from tests.kernels import drawn_region
from tests.kernels.drawn_decoder import draw, draw_adapters, step
from tests.kernels.drawn_kept import kept

from gapless.kernels.triton.choices import Gpu
from gapless.kernels.triton.decode import TritonStep
from gapless.kernels.triton.region import TritonRegion
from gapless.kernels.triton.table import built_in

USUAL = built_in((9, 0))
assert USUAL is not None
GPU = Gpu(shared=227 * 1024, dependent=False, choices=USUAL.decode)
SCENES: list[tuple[list[int], list[int], int, dict[str, Any]]] = [
    ([1], [16], 16, {}),
    ([2, 0, 2], [5, 16], 16, {"page": 64}),
    ([0, 0, 0], [16], 16, {"layers": 1}),
    ([row % 4 for row in range(20)], [64, 8, 33], 64, {"layers": 1}),
    ([row % 11 for row in range(66)], [16] * 10, 16, {"layers": 1}),
    ([1, 0, 2], [5, 16], 16, {"layers": 1, "fp8": True}),
]
"""Slots of rows, ranks of adapters, the slots' rank, and how decoders differ from the usual, `fp8` in their caches."""


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


def adapters() -> None:
    """One line a scene: how far hidden states are from float64, and whether rows without adapters are untouched, a
    second step is the same, and counters are put back."""
    for number, (slots, ranks, rank, how) in enumerate(SCENES):
        scene = draw(len(slots), number, **how)
        own = draw_adapters(scene, number, ranks, slots, rank)
        fused = TritonStep(scene.decoder, GPU)

        def run(given: Any, scene: Any = scene, fused: TritonStep = fused) -> torch.Tensor:
            each = (None, None) if scene.scales is None else scene.scales.unbind(1)
            caches = [kept(cache, by) for cache, by in zip((scene.keys, scene.values), each, strict=True)]
            return fused.forward(scene.x, scene.positions, scene.tables, *caches, given, scene.scales)

        room = fused._adapters
        for memory in (room.narrow, room.parts, room.items, room.order):  # what earlier steps left is never used
            memory.fill_(7 if memory.dtype is torch.int32 else torch.nan)
        room.ready.fill_(999)  # as a step leaves it that broke off
        found, again, plain = run(own), run(own), run(None)
        without = own.slots == 0
        alike = torch.equal(found, again) and torch.equal(found[without], plain[without])
        clean = not (room.ready.any() or room.arrived.any() or fused._tiles.any() or fused._arrived.any())
        print("adapters", len(slots), off(found, step(scene, own)[0]), alike and clean, flush=True)


def region() -> None:
    """One line a number of rows: how far embeddings are from plain lines, and whether all values are the likeliest
    bins', and 0 where they are not wanted."""
    for rows in (1, 5, 40, 70):
        heads, g = drawn_region.draw(rows), torch.Generator().manual_seed(rows)
        fused = TritonRegion(heads, GPU)
        words, ids = torch.randn(50, 64, generator=g), torch.randint(0, 50, (rows,), generator=g)
        ids[::3] = 7
        values = torch.rand(rows, 2, generator=g)
        values[torch.rand(rows, generator=g) < 0.4] = -1
        x = fused.embed(ids, values, words, 7)
        hidden = torch.randn(rows, 64, generator=g)
        bins = drawn_region.scores(heads, hidden).argmax(-1)
        right = torch.cat([heads.coord.values[bins[:, :1]], heads.size.values[bins[:, 1:]]], dim=1)
        same = []
        for wanted in (None, torch.randint(0, 4, (rows,), generator=g, dtype=torch.int32), torch.full((rows,), 2)):
            for memory in (fused._thought, fused._parts, fused._scores):
                memory.fill_(torch.nan)
            coords, sizes = fused.values(hidden, None if wanted is None else wanted.int())
            bits = torch.full((rows,), 3) if wanted is None else wanted
            wish = torch.stack([bits & 1, bits & 2, bits & 2], dim=1) != 0
            found = torch.cat([coords[:, None], sizes], dim=1)
            same.append(torch.equal(found, torch.where(wish, right, 0.0)) and not fused._arrived.any())
        print("values", rows, off(x, drawn_region.embedded(heads, ids, values, words, 7)), all(same), flush=True)


if __name__ == "__main__":
    adapters()
    sys.exit(region())
