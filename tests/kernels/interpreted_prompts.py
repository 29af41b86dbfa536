"""Run by itself, with TRITON_INTERPRET=1: the kernels of prompts on the CPU, slowly, in float32."""

from __future__ import annotations

import sys
from typing import Any

import torch
from tests.kernels.drawn_kept import kept, read
from tests.kernels.drawn_prompts import Piece, copied_tails, draw_prompts, feed_plainly, off

from gapless.kernels.triton.prompts import TritonPrompts
from gapless.kernels.triton.tiles import PromptTile

BLOCK = (0, 21)
SCENES: list[tuple[list[Piece], dict[str, Any]]] = [
    ([Piece(1)], {}),
    ([Piece(30, blocks=(BLOCK,), tail=21), Piece(5, position=21, tail=21), Piece(70)], {"spare": 9, "runs": 5}),
    ([Piece(50, position=40, blocks=((44, 60), (61, 77)))], {"page": 64, "tau": True, "dim": 64, "heads": 1, "fed": 0}),
    ([Piece(3, position=130), Piece(33, blocks=((0, 32),))], {"page": 32, "heads": 2, "fed": 192}),
    ([Piece(30, blocks=(BLOCK,), tail=21), Piece(5, position=21, tail=21), Piece(70)], {"fp8": True}),
    ([Piece(50, position=40, blocks=((44, 60), (61, 77)))], {"fp8": True, "tau": True, "fed": 0}),
]


def main() -> None:
    """One line a scene and way of looking: how far keys, values and inner are from float64, and tails; then norms."""
    tile = PromptTile(32, 16, 4, 2)
    for number, (pieces, how) in enumerate(SCENES):
        for last in (False, True):
            kernels = TritonPrompts(tile, bulk=(number + last) % 2 == 0)
            scene = draw_prompts(pieces, number, tile=tile.rows, **how)
            keys, values, inner = feed_plainly(scene, last)
            by = (None, None) if scene.scales is None else scene.scales.unbind()
            caches = kept(scene.keys, by[0]), kept(scene.values, by[1])
            rooms = scene.runs, scene.turns, scene.inner
            kernels.place(scene.up, *caches, *rooms, scene.scales)
            kernels.attend(scene.up, *caches, *rooms, last, scene.scales)
            scene.keys, scene.values = read(caches[0], by[0]), read(caches[1], by[1])
            errors = off(scene.keys, keys), off(scene.values, values), off(scene.inner, inner)
            copied = copied_tails(scene)
            kernels.tails(caches[0][None], caches[1][None], scene.runs)
            there = read(caches[0], by[0])
            print(*errors, float(not torch.equal(there.nan_to_num(7.0), copied.nan_to_num(7.0))), flush=True)
    x, n = torch.randn(5, 96), torch.full((5, 96), torch.nan)
    weight, shift, bias = torch.randn(3, 96).unbind()
    right = torch.nn.functional.layer_norm(x.double(), (96,), weight.double(), shift.double())
    moved = x + bias
    kernels.norm(x, n, (weight, shift), None)
    first = off(n, right)
    kernels.norm(x, n, (weight, shift), bias)
    print(first, off(n, right), off(x, moved), 0.0)


if __name__ == "__main__":
    sys.exit(main())
