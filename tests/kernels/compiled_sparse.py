"""Run by itself, without a GPU: every kernel of a sparse step, compiled for one kind of GPU as it would be launched,
for all numbers of rows. Tensors have shapes and no memory."""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
from tests.kernels.drawn_sparse import MOONDREAM_3, Sizes
from tests.kernels.ordered_waits import awaited
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from gapless.kernels.fused import Affine
from gapless.kernels.sparse import Dense, Mixture, ScaledBlock, Scaling, SparseDecoder
from gapless.kernels.stacks import FP8, Stack
from gapless.kernels.triton.choices import Gpu
from gapless.kernels.triton.sparse import TritonSparseStep
from gapless.kernels.triton.sparse_choices import MANY

SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""KiB of shared memory a block may have, by compute capability (CUDA C++ Programming Guide)."""
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.uint8: "u8"}
NAMES |= {torch.int32: "i32", torch.int64: "i64", FP8: "fp8e4nv", torch.float8_e5m2: "fp8e5"}
GLINT = Sizes(dim=256, ff=512, vocab=2048, gelu="tanh")


def decoder(of: Sizes, dtype: torch.dtype, narrow: bool) -> SparseDecoder:
    """Shapes of weights."""

    def empty(*shape: int, of: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=of, device="meta")

    def linear(out: int, into: int) -> Affine:
        return Affine(empty(out, into), empty(out))

    def stack(out: int, into: int) -> Stack:
        shape = (of.experts, out, into)
        return Stack(empty(*shape, of=FP8), empty(*shape[:2], of=torch.float32)) if narrow else Stack(empty(*shape))

    norm = Affine(empty(of.dim), empty(of.dim))
    tau = Scaling(empty(2 * of.heads, 3 * of.dim), empty(2048, of.heads), of.gelu)
    both = (
        Dense(linear(of.ff, of.dim), linear(of.dim, of.ff)),
        Mixture(linear(of.experts, of.dim), stack(2 * of.inner, of.dim), stack(of.dim, of.inner), of.share),
    )
    blocks = [ScaledBlock(norm, linear(3 * of.dim, of.dim), linear(of.dim, of.dim), tau, mlp) for mlp in both]
    table = empty(2048, of.dim // of.heads // 2, of=torch.float32)
    return SparseDecoder(blocks, norm, linear(of.vocab, of.dim), of.heads, table, table)


class Compiler:
    """In place of a launch: compile for `capability`, once for each way a kernel is launched."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)
        self.limit = SHARED[capability] * 1024
        self.met: dict[str, tuple[str, int]] = {}

    def __call__(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        types, constants, aligned = {}, {}, {}
        for index, (parameter, value) in enumerate(zip(kernel.params, args, strict=True)):
            types[parameter.name] = "constexpr"
            if isinstance(value, torch.Tensor):
                types[parameter.name] = f"*{NAMES[value.dtype]}"
                aligned[index,] = [["tt.divisibility", 16]]
            elif parameter.is_constexpr or value is None:
                constants[index,] = value
            else:
                types[parameter.name] = "fp32" if isinstance(value, float) else "i32"
        made = str((kernel.__name__, types, constants, options["num_warps"]))
        if made not in self.met:
            source = ASTSource(kernel, types, constants, aligned)
            built = triton.compile(source, target=self.target, options={"num_warps": options["num_warps"]})
            shared = built.metadata.shared
            self.met[made] = (kernel.__name__, shared)
            module, heard = kernel.__module__.rpartition(".")[2], awaited(built.asm["ptx"])
            print(module, kernel.__name__, options["num_warps"], shared, *heard, flush=True)
            assert shared <= self.limit, f"{kernel.__name__} takes {shared} bytes"


def main(capability: int, *rows: int) -> None:
    """One line a kernel: what it is, its warps, its shared memory, for how many other programs it waits."""
    gpu, compiler = Gpu(SHARED[capability] * 1024, capability >= 90, {}, capability == 90), Compiler(capability)

    def compiled(kernel: Any, *args: Any, **options: Any) -> None:
        compiler(kernel, *args, **options)

    JITFunction.run = compiled
    for of, dtype in ((MOONDREAM_3, torch.bfloat16), (GLINT, torch.float16)):
        for narrow, fp8 in ((False, False), (True, False), (True, True)):  # `fp8`: keys and values are kept so
            step = TritonSparseStep(decoder(of, dtype, narrow), gpu)
            for count in rows or (1, *MANY):
                x = torch.empty(count, of.dim, dtype=dtype, device="meta")
                kept, by = (FP8, torch.empty(2, 2, of.heads, device="meta")) if fp8 else (dtype, None)
                cache = torch.empty(2, 9, of.heads, 16, of.dim // of.heads, dtype=kept, device="meta")
                at = torch.empty(count, dtype=torch.int64, device="meta")
                step.logits(step.forward(x, at, at[:, None].expand(-1, 64), cache, cache, by))


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:]))
