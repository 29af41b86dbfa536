"""Run by itself, without a GPU: all that a step with adapters and values launches, compiled for one kind of GPU.

Launches are specialised as on a GPU, from the arguments they are made with, but end before anything would run.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from tests.kernels import drawn_region
from tests.kernels.compiled_step import SHARED
from tests.kernels.drawn_decoder import draw, draw_adapters
from tests.kernels.ordered_waits import awaited
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from gapless.kernels.triton.choices import Gpu
from gapless.kernels.triton.decode import TritonStep
from gapless.kernels.triton.region import TritonRegion
from gapless.kernels.triton.table import built_in

MOONDREAM_2 = {"dim": 2048, "inner": 8192}


class Absent:
    """A driver of a GPU that is not there."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


def main(capability: int) -> None:
    """One line a launch: what it is, rows, its shared memory, and for how many other programs it waits."""
    driver.set_active(Absent(capability))
    table = built_in(divmod(capability, 10))
    assert table is not None
    gpu, run = Gpu(SHARED[capability] * 1024, capability >= 90, table.decode), JITFunction.run
    made: list[tuple[str, int, list[int]]] = []

    def compiled(self: Any, *arguments: Any, grid: Any, warmup: bool, **constants: Any) -> Any:
        kernel = run(self, *arguments, grid=grid, warmup=True, **constants)
        made.append((self.fn.__name__, kernel.metadata.shared, awaited(kernel.asm["ptx"])))
        return kernel

    JITFunction.run = compiled
    heads = drawn_region.draw(1, **MOONDREAM_2, bins=1024, wide=(128, 256), dtype=torch.bfloat16)
    region = TritonRegion(heads, gpu)
    words = torch.zeros(9, 2048, dtype=torch.bfloat16)
    for rows in table.decode:
        scene = draw(rows, 1, **MOONDREAM_2, heads=32, layers=1, dtype=torch.bfloat16, longest=32)
        adapters = draw_adapters(scene, 1, [16, 16], [row % 3 for row in range(rows)], 16)
        step = TritonStep(scene.decoder, gpu)
        step.forward(scene.x, scene.positions, scene.tables, scene.keys, scene.values, adapters)
        region.embed(torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, 2), words, 7)
        region.values(scene.x, torch.zeros(rows, dtype=torch.int32))
        for name, shared, heard in made:
            print(name, rows, shared, *heard, flush=True)
            assert shared <= gpu.shared, f"{name} takes {shared} bytes"
        made.clear()


if __name__ == "__main__":
    main(int(sys.argv[1]))
