"""Run by itself, with TRITON_INTERPRET=1: the fused tower on the CPU, the same kernels, slowly, in float32."""

from __future__ import annotations

import sys
from typing import Any

import torch
from tests.kernels.drawn_tower import draw, draw_crops, encoded, projected

from gapless.kernels.triton.tower import Scan, TritonTower

SCENES: list[tuple[str, tuple[int, int], dict[str, Any]]] = [
    ("a rest of 8", (1, 2), {}),
    ("no rest", (2, 1), {"dim": 32, "heads": 2, "inner": 128, "margin": 0, "grid": 4}),
    ("a rest of 16", (2, 3), {"dim": 48, "heads": 1, "layers": 1, "grid": 6, "margin": 2}),
]
"""What of a head is left beside a power of two, tilings, and how the towers differ from the usual."""


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


def main() -> None:
    """One line a scene: how far features and projections are from float64, and whether weights are what they were,
    none of those that were taken along where it was."""
    for seed, (_, tiling, how) in enumerate(SCENES):
        tower = draw(seed, **how)
        crops = draw_crops(seed, 1 + tiling[0] * tiling[1], tower)
        fused = TritonTower(tower, Scan(queries=16, keys=16, warps=4, stages=2))
        fused._cudnn_from = 1  # which is not there, and says so when it is asked
        out = torch.full((len(crops), tower.grid**2, tower.ln.bias.shape[0]), torch.nan)
        fused.encode(crops, out)
        both = fused.project([out, out], [tiling, tiling])
        right = projected(tower, out, tiling)
        same = all(
            torch.equal(a.weight, b.weight) and torch.equal(a.bias, b.bias)
            for old, new in zip(tower.blocks, fused.weights.blocks, strict=True)
            for a, b in ((old.qkv, new.qkv), (old.proj, new.proj), (old.fc1, new.fc1), (old.fc2, new.fc2))
        )
        before = {w.data_ptr() for old in tower.blocks for w in (old.qkv.weight, old.proj.weight)}
        after = {w.data_ptr() for new in fused.weights.blocks for w in (new.qkv.weight, new.proj.weight)}
        same = same and not before & after
        features, projections = off(out, encoded(tower, crops)), [off(one, right) for one in both]
        print(features, *projections, same and fused._cudnn_from is None, fused.launches, flush=True)


if __name__ == "__main__":
    sys.exit(main())
