"""Run by itself, with TRITON_INTERPRET=1: the sparse step on the CPU, the same kernels, slowly, in float32."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import torch
from tests.kernels.drawn_kept import kept, read
from tests.kernels.drawn_sparse import ODD, Sizes, draw, step

from gapless.kernels.triton.choices import Gpu
from gapless.kernels.triton.sparse import TritonSparseStep
from gapless.kernels.triton.sparse_choices import CUT, MANY

SCENES: list[tuple[int, dict[str, Any]]] = [
    (1, {"narrow": True}),
    (1, {"of": ODD, "page": 32}),
    (3, {"page": 64}),
    (17, {"of": ODD}),
    (33, {"narrow": True, "of": Sizes(layers=1, dense=0)}),
    (65, {"of": Sizes(layers=1, dense=0, share=1)}),
    (40, {"of": Sizes(layers=1, dense=0)}),
    (1, {"of": ODD, "fp8": True}),
    (17, {"fp8": True}),
    (7, {"narrow": True, "cut": 4}),
    (40, {"narrow": True, "cut": 64, "of": Sizes(layers=1, dense=0)}),
]
"""Numbers of rows of different choices, and how their decoders differ from the usual; `fp8`: so their caches are;
`cut`: on a GPU that multiplies FP8, with the tiles for so many rows."""
TIED = 6
"""In this scene routers say the same of all experts, so that all rows take the first ones."""


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


def main(only: list[int]) -> None:
    """One line a scene: how far hidden states, logits, and keys and values are from float64; whether nothing else was
    written; whether the right experts were taken, and waited for; launches."""
    for number, (rows, how) in enumerate(SCENES):
        if only and number not in only:
            continue
        cut = how.get("cut", 0)
        scene, forced = draw(rows, rows, **{key: of for key, of in how.items() if key != "cut"}), None
        if number == TIED:
            forced = []
            for block in scene.decoder.blocks:
                block.mlp.router.weight.zero_()
                block.mlp.router.bias.zero_()
                forced.append((torch.arange(block.mlp.up.count) < block.mlp.count).expand(rows, -1))
        fused = TritonSparseStep(scene.decoder, Gpu(shared=227 * 1024, dependent=False, choices={}, narrow=cut > 0))
        if cut:  # for any number of rows: experts have more pairs than a tile has
            fused = fused.with_choices({most: replace(of, experts=CUT[cut], cut=True) for most, of in MANY.items()})
        fused.poison()
        each = (None, None) if scene.scales is None else scene.scales.unbind(1)
        caches = [kept(cache, by) for cache, by in zip((scene.keys, scene.values), each, strict=True)]
        positions = torch.stack((scene.positions, scene.positions.flip(0)), 1)[:, 0]  # one column of many
        hidden = fused.forward(scene.x, positions, scene.tables, *caches, scene.scales)
        logits = fused.logits(hidden)
        keys, values = (read(cache, by) for cache, by in zip(caches, each, strict=True))
        *right, taken = step(scene, forced)
        unseen = [torch.equal(a.isnan(), b.isnan()) for a, b in ((keys, scene.keys), (values, scene.values))]
        stored = off(
            torch.cat([keys, values]).nan_to_num(), torch.cat([scene.keys, scene.values]).nan_to_num().double()
        )
        counted = all(torch.equal(a[: who.shape[1]], who.sum(0)) for a, who in zip(fused.taken, taken, strict=True))
        if cut:  # as many counted themselves in the last layer as are waited for there, whatever an earlier step left
            blocks = scene.decoder.blocks[-1].mlp.down.values.shape[2] // fused.choice(rows).experts.up.lines
            counted &= torch.equal(fused._room.done, torch.where(fused.taken[-1] > 0, blocks, 0).int())
        figures = (off(hidden, right[0]), off(logits, right[1]), stored, all(unseen), counted, fused.launches)
        print(f"{rows}{'fp8' * how.get('fp8', False)}{'cut' * (cut > 0)}", *figures, flush=True)


if __name__ == "__main__":
    sys.exit(main([int(number) for number in sys.argv[1:]]))
