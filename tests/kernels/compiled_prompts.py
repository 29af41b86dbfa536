"""Run by itself, without a GPU: the kernels of prompts compiled for one kind of GPU."""

from __future__ import annotations

import sys

import triton
from tests.kernels.compiled_step import SHARED
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gapless.kernels.triton import prompt_jit as prompt
from gapless.kernels.triton.prompts import FED, PLACED
from gapless.kernels.triton.tiles import PROMPT

ALIGNED = [["tt.divisibility", 16]]
"""What a launch sees of a tensor's address; without it nothing is loaded ahead, and less memory shared."""
SIZES = {"moondream-2": (2048, 8192, 32), "glint": (256, 512, 4)}


def kernels(size, tile, kind, page, scaled, bulk, fp8):
    """(kernel, pointer and scalar types, constants, warps). `fp8`: keys and values are kept so."""
    dim, fed, heads = SIZES[size]
    half, wide, index, long = f"*{kind}", "*fp32", "*i32", "*i64"
    stored, scales = ("*u8", {"scales": wide}) if fp8 else (half, {})
    both = {"D": dim, "UP": 3 * dim + fed, "INNER": dim + fed, "H": heads, "ROTARY": dim // heads // 2, "PAGE": page}
    caches = {"up": half, "keys": stored, "values": stored, "runs": index, "tables": long, "cos": wide, "sin": wide}
    caches |= scales | {"said": half, "levels": half, "inner": half, "entries": "i32"}
    yield (
        prompt.norm,
        dict.fromkeys(("x", "n", "weight", "shift", "bias"), half),
        {"D": dim, "WIDE": dim, "BIASED": True},
        4,
    )
    yield (
        prompt.place,
        {**caches, "of": index, "tokens": "i32"},
        {**both, "FF": fed, "SCALED": scaled, "BT": PLACED, "BF": FED},
        4,
    )
    for last in (False, True):
        described = f"tensordesc<{kind}[{tile.keys}, {dim // heads}]>" if bulk else half
        yield (
            prompt.attend,
            {**caches, "described": described, "tiles": index, "sees": index, "factor": "fp32"},
            {**both, "SCALED": scaled, "LAST": last, "BM": tile.rows, "BN": tile.keys, "STAGES": tile.stages}
            | {"BULK": bulk},
            tile.warps,
        )
    yield (
        prompt.tails,
        {"keys": stored, "values": stored, "runs": index, "tables": long}
        | dict.fromkeys(("layers", "pages", "entries"), "i32"),
        {"H": heads, "PAGE": page, "WIDE": dim // heads},
        4,
    )


def main(capability: int) -> None:
    """One line a kernel: what it is, and its shared memory."""
    shared = SHARED[capability] * 1024
    for size, kind, page, scaled, fp8 in (
        ("moondream-2", "bf16", 16, True, False),
        ("glint", "fp16", 64, False, False),
        ("moondream-2", "bf16", 16, True, True),
    ):
        for kernel, types, own, warps in kernels(size, PROMPT, kind, page, scaled, capability >= 90, fp8):
            constants = own if "scales" in types or "scales" not in kernel.arg_names else {**own, "scales": None}
            source = ASTSource(
                kernel,
                {**types, **dict.fromkeys(constants, "constexpr")},
                {(kernel.arg_names.index(name),): value for name, value in constants.items()},
                {(kernel.arg_names.index(name),): ALIGNED for name, kind in types.items() if kind[0] == "*"},
            )
            made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
            print(kernel.__name__, size, made.metadata.shared)
            assert made.metadata.shared <= shared, f"{kernel.__name__} takes {made.metadata.shared} bytes"


if __name__ == "__main__":
    main(int(sys.argv[1]))
