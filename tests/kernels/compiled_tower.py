"""Run by itself, without a GPU: the kernels of pictures and of their tower compiled for one kind of GPU."""

from __future__ import annotations

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gapless.kernels.triton import pixels_jit as pixels
from gapless.kernels.triton import tower_jit as tower
from gapless.kernels.triton.pixels import BLOCK, MOST_TAPS, ROWS
from gapless.kernels.triton.tower import NORM_WARPS, SCAN
from gapless.kernels.triton.tower import ROWS as NORMED

SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""KiB of shared memory a block may have, by compute capability (CUDA C++ Programming Guide)."""
BYTES, INDEX, WIDE, NUMBER = "*u8", "*i32", "*fp32", "i32"


def numbers(*names):
    return dict.fromkeys(names, NUMBER)


def kernels(kind):
    """(kernel, types, constants, options) with Moondream 2's widths, and with glint's."""
    half = f"*{kind}"
    table = {"first": INDEX, "weights": INDEX}
    yield pixels.tables, {**table, **numbers("width", "height", "side", "wide", "tall", "taps")}, {
        "BR": ROWS, "BT": MOST_TAPS,
    }, {"num_warps": 4, "enable_fp_fusion": False}  # fmt: skip
    moved = {"src": BYTES, "dst": BYTES, **table}
    yield pixels.across, {**moved, **numbers("width", "out_width", "count", "taps")}, {"BLOCK": BLOCK}, {}
    yield pixels.down, {**moved, **numbers("height", "width", "count", "taps")}, {"BLOCK": BLOCK}, {}
    tiles = {"copy": BYTES, "crops": BYTES, **numbers("columns", "step", "width")}
    for side, grid, wide, block, dim, heads in ((378, 27, 592, 1024, 1152, 16), (224, 16, 592, 1024, 192, 3)):
        yield pixels.tiles, tiles, {"SIDE": side, "BLOCK": BLOCK}, {}
        yield pixels.patches, {"crops": BYTES, "levels": half, "out": half, "total": NUMBER}, {
            "SIDE": side, "GRID": grid, "SIZE": 14, "WIDE": wide, "BLOCK": block,
        }, {}  # fmt: skip
        up = 1 << (dim - 1).bit_length()
        yield tower.norm, {"x": half, "shift": WIDE, "weight": half, "bias": half, "out": half, "T": NUMBER}, {
            "D": dim, "WIDE": up, "ROWS": NORMED,
        }, {"num_warps": NORM_WARPS}  # fmt: skip
        yield tower.pool, {"features": half, "out": half, **numbers("rows", "columns")}, {
            "D": dim, "WIDE": up, "GRID": grid, "MARGIN": 4,
        }, {"num_warps": NORM_WARPS}  # fmt: skip
        rest = 16 if dim // heads > 64 else 0
        yield tower.attend, {"qkv": half, "out": half, "T": NUMBER, "scale": "fp32"}, {
            "WIDTH": dim, "D": dim // heads, "MAIN": 64, "REST": rest, "BM": SCAN.queries, "BN": SCAN.keys,
            "STAGES": SCAN.stages,
        }, {"num_warps": SCAN.warps, "num_stages": SCAN.stages}  # fmt: skip


def main(capability: int) -> None:
    """One line a kernel: what it is, and its shared memory."""
    for kind in ("bf16", "fp16"):
        for kernel, types, constants, options in kernels(kind):
            source = ASTSource(
                kernel,
                {**types, **dict.fromkeys(constants, "constexpr")},
                {(kernel.arg_names.index(name),): value for name, value in constants.items()},
                {  # as torch allocates: without it loads are not kept on their way in shared memory
                    (kernel.arg_names.index(name),): [["tt.divisibility", 16]]
                    for name, kind_of in types.items()
                    if kind_of.startswith("*")
                },
            )
            made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
            print(kernel.__name__, made.metadata.shared)
            assert made.metadata.shared <= SHARED[capability] * 1024, f"{kernel.__name__}: {made.metadata.shared} bytes"


if __name__ == "__main__":
    main(int(sys.argv[1]))
