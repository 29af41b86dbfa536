"""Run by itself, with TRITON_INTERPRET=1: the fused step on the CPU, the same kernels, slowly, in float32."""

from __future__ import annotations

import sys
from typing import Any

import torch
from tests.kernels.drawn_decoder import draw, step

from gapless.kernels.triton.choices import Gpu
from gapless.kernels.triton.decode import TritonStep
from gapless.kernels.triton.table import built_in

SCENES: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (3, {"page": 64, "heads": 2}),
    (17, {}),
    (65, {"layers": 1}),
]
"""Numbers of rows of different choices, and how their decoders differ from the usual."""


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


def main() -> None:
    """One line a scene: how far hidden states, logits, and keys and values are from float64."""
    for rows, how in SCENES:
        scene = draw(rows, rows, **how)
        fused = TritonStep(scene.decoder, Gpu(shared=227 * 1024, dependent=False, choices=built_in((9, 0)).decode))
        keys, values = scene.keys.clone(), scene.values.clone()
        hidden = fused.forward(scene.x, scene.positions, scene.tables, keys, values)
        logits = fused.logits(hidden)
        right = step(scene)
        unseen = [torch.equal(a.isnan(), b.isnan()) for a, b in ((keys, scene.keys), (values, scene.values))]
        stored = off(
            torch.cat([keys, values]).nan_to_num(), torch.cat([scene.keys, scene.values]).nan_to_num().double()
        )
        print(rows, off(hidden, right[0]), off(logits, right[1]), stored, all(unseen), flush=True)


if __name__ == "__main__":
    sys.exit(main())
