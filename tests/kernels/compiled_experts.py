"""Run by itself: compile the experts' kernels for a compute capability, with every tile it would be given, on any
machine. Prints a line for each, and ends with an error if one needs more shared memory than such a card has."""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gapless.kernels.triton import experts_jit as jit
from gapless.kernels.triton.table import built_in
from gapless.kernels.triton.tiles import ROWS, Tile, tiles_of

SHARED = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}


def compiled(name: str, tile: Tile, narrow: bool, capability: int) -> int:
    """Bytes of shared memory that the kernel takes."""
    kernel, matrix = getattr(jit, name), "*u8" if narrow else "*bf16"
    types = {"x": "*bf16", "order": "*i32", "ends": "*i32", "values": matrix, "out": "*bf16", "tiles": "i32"}
    constants = {"share": 8 if name == "up" else 1, "count": 64, "span": 64, "width": 2048, "inner": 1024}
    constants |= {"alone": False, "scaled": narrow, "assembled": True}
    constants |= {"rows": tile.rows, "lines": tile.lines, "deep": tile.deep, "stages": tile.stages}
    if narrow:
        types["scales"] = "*fp32"
    else:
        constants["scales"] = None
    names = kernel.arg_names
    signature = {of: types.get(of, "constexpr") for of in names}
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs={(names.index(of),): value for of, value in constants.items()},
        attrs={(names.index(of),): [["tt.divisibility", 16]] for of in types if of != "tiles"},
    )
    target = GPUTarget("cuda", capability, 32)
    return int(triton.compile(source, target=target, options={"num_warps": tile.warps}).metadata.shared)


def main(capability: int) -> None:
    limit, kinds = SHARED[capability], built_in(divmod(capability, 10)).experts
    for narrow in (False, True):
        for rows in ROWS:
            tiles = tiles_of(rows, 1 if narrow else 2, limit, kinds)
            for name, tile in (("up", tiles.up), ("product", tiles.down)):
                shared = compiled(name, tile, narrow, capability)
                print(name, tile, narrow, shared)
                assert shared <= limit, f"{name} with {tile} takes {shared} bytes, the card has {limit}"


if __name__ == "__main__":
    main(int(sys.argv[1]))
