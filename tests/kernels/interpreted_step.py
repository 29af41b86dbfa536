"""Run by itself, with TRITON_INTERPRET=1: the fused step on the CPU, the same kernels, slowly, in float32."""

from __future__ import annotations

import sys
from typing import Any

import torch
from tests.kernels.drawn_decoder import draw, step
from tests.kernels.drawn_kept import kept, read

from gapless.kernels.kept import as_stored
from gapless.kernels.triton.choices import Gpu
from gapless.kernels.triton.decode import TritonStep
from gapless.kernels.triton.table import built_in

SCENES: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (3, {"page": 64, "heads": 2}),
    (17, {}),
    (65, {"layers": 1}),
    (1, {"fp8": True, "page": 32, "heads": 8}),
    (17, {"fp8": True}),
]
"""Numbers of rows of different choices, and how their decoders differ from the usual; `fp8`: so their caches are."""


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


def main() -> None:
    """One line a scene: how far hidden states, logits, and keys and values are from float64; whether nothing else was
    written, and a second time the same."""
    for rows, how in SCENES:
        scene = draw(rows, rows, **how)
        fused = TritonStep(scene.decoder, Gpu(shared=227 * 1024, dependent=False, choices=built_in((9, 0)).decode))
        each = (None, None) if scene.scales is None else scene.scales.unbind(1)
        caches = [kept(cache, by) for cache, by in zip((scene.keys, scene.values), each, strict=True)]
        again = [cache.clone() for cache in caches]
        positions = torch.stack((scene.positions, scene.positions.flip(0)), 1)[:, 0]  # one column of many
        hidden = fused.forward(scene.x, positions, scene.tables, *caches, scales=scene.scales)
        logits = fused.logits(hidden)
        same = torch.equal(fused.forward(scene.x, scene.positions, scene.tables, *again, scales=scene.scales), hidden)
        right = step(scene)
        keys, values = (read(cache, by) for cache, by in zip(caches, each, strict=True))
        unseen = [torch.equal(a.isnan(), b.isnan()) for a, b in ((keys, scene.keys), (values, scene.values))]
        stored = off(
            torch.cat([keys, values]).nan_to_num(), torch.cat([scene.keys, scene.values]).nan_to_num().double()
        )
        if scene.scales is not None:
            same &= all(torch.equal(as_stored(a), as_stored(b)) for a, b in zip(caches, again, strict=True))
        unseen.append(same)
        figures = (off(hidden, right[0]), off(logits, right[1]), stored, all(unseen))
        print(f"{rows}{'fp8' * how.get('fp8', False)}", *figures, flush=True)


if __name__ == "__main__":
    sys.exit(main())
