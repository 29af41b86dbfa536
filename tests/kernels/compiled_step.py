"""Run by itself, without a GPU: the kernels of the fused step compiled for one kind of GPU, for all numbers of rows."""

from __future__ import annotations

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gapless.kernels.triton import step_jit as step
from gapless.kernels.triton.choices import BATCHES, Dims, Gpu, choice, over_bytes, padded, soon
from gapless.kernels.triton.decode import PARTS
from gapless.kernels.triton.table import built_in

SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""KiB of shared memory a block may have, by compute capability (CUDA C++ Programming Guide)."""
MOONDREAM_2 = Dims(dim=2048, inner=8192, heads=32, rotary=32, vocab=51200)
GLINT = Dims(dim=256, inner=512, heads=4, rotary=32, vocab=2048)
FLOATS = {"bf16": 2, "fp16": 2}


def kernels(dims, rows, gpu, kind):
    """(kernel, pointer and scalar types, constants, warps) of one step."""
    chosen = choice(dims, rows, FLOATS[kind], gpu)
    bm, tiles, parts = padded(rows), dims.dim // chosen.down.bn, dims.dim // PARTS
    half, wide, index, long = f"*{kind}", "*fp32", "*i32", "*i64"
    ahead, scan = chosen.ahead, over_bytes(chosen.scan, rows)

    def shape(tile):
        return {"BM": bm, "BN": tile.bn, "BK": tile.bk, "STAGES": tile.stages, "MODE": tile.mode, "PDL": chosen.pdl}

    both = {"D": dims.dim, "FF": dims.inner}
    yield (
        step.entry,
        {"given": half, "x": half, "x32": wide, "stats": wide},
        {"D": dims.dim, "TILES": tiles, "TILES_UP": tiles, "BM": bm, "PDL": chosen.pdl},
        4,
    )
    yield (
        step.up,
        {"x": half, "stats": wide, "w": half, "bias": wide, "sums": wide, "qkv": half, "inner": half, "rows": "i32"},
        {**both, "TILES": tiles, "TILES_UP": tiles, **shape(chosen.up), "AHEAD": min(ahead, dims.dim)},
        chosen.up.warps,
    )
    yield (
        step.scan,
        {"qkv": half, "keys": half, "values": half, "tables": long, "positions": long, "cos": wide, "sin": wide}
        | {"inner": half, "parts": wide, "arrived": index, "columns": "i32", "scale": "fp32"},
        {**both, "H": dims.heads, "ROTARY": dims.rotary, "PAGE": 16, "SPLITS": chosen.scan.splits, "BT": chosen.scan.bt}
        | {"STAGES": chosen.scan.stages, "SOON": soon(ahead, chosen.scan.splits), "PDL": chosen.pdl},
        chosen.scan.warps,
    )
    yield (  # over keys and values in FP8
        step.scan,
        {"qkv": half, "keys": "*u8", "values": "*u8", "tables": long, "positions": long, "cos": wide, "sin": wide}
        | {"inner": half, "parts": wide, "arrived": index, "columns": "i32", "scale": "fp32", "scales": wide},
        {**both, "H": dims.heads, "ROTARY": dims.rotary, "PAGE": 16, "SPLITS": scan.splits, "BT": scan.bt}
        | {"STAGES": scan.stages, "SOON": soon(ahead, scan.splits), "PDL": chosen.pdl},
        scan.warps,
    )
    share = (dims.dim + dims.inner) // chosen.down.splits
    yield (
        step.down,
        {"inner": half, "w": half, "bias": wide, "x32": wide, "x": half, "stats": wide, "parts": wide}
        | {"arrived": index, "rows": "i32"},
        {**both, "SPLITS": chosen.down.splits, **shape(chosen.down), "AHEAD": min(ahead, share & -share)},
        chosen.down.warps,
    )
    yield (
        step.head,
        {"x": half, "stats": wide, "w": half, "bias": wide, "sums": wide, "logits": wide, "rows": "i32"},
        {"D": dims.dim, "VOCAB": dims.vocab, "TILES": parts, "TILES_UP": parts, **shape(chosen.head), "AHEAD": ahead},
        chosen.head.warps,
    )


def without_adapters(kernel):
    """What a launch leaves out of a kernel that could be told of adapters."""
    usual = {p.name: p.default for p in kernel.signature.parameters.values() if p.default is not p.empty}
    return usual | {"lora": None} if "lora" in kernel.arg_names else usual


def main(capability: int) -> None:
    """One line a kernel: what it is, and its shared memory."""
    table = built_in(divmod(capability, 10))
    gpu = Gpu(SHARED[capability] * 1024, capability >= 90, table.decode)
    for dims in (MOONDREAM_2, GLINT):
        for rows in BATCHES:
            kind = "fp16" if rows == 8 else "bf16"
            for kernel, types, own, warps in kernels(dims, rows, gpu, kind):
                usual = without_adapters(kernel)
                constants = {name: value for name, value in usual.items() if name not in types} | own
                source = ASTSource(
                    kernel,
                    {**types, **dict.fromkeys(constants, "constexpr")},
                    {(kernel.arg_names.index(name),): value for name, value in constants.items()},
                )
                made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
                print(kernel.__name__, dims.dim, rows, made.metadata.shared)
                assert made.metadata.shared <= gpu.shared, f"{kernel.__name__} takes {made.metadata.shared} bytes"


if __name__ == "__main__":
    main(int(sys.argv[1]))
