"""Run by itself: compile the kernels that end a step for a compute capability, as they are for Moondream's vocabulary
and for glint's, on any machine. Prints a line for each, and ends with an error if one needs more shared memory than
every card has, or would add to a sum of floats by atomics."""

import re
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gapless.device.quick_rows import COLUMNS, MARKS
from gapless.kernels.triton import adjust_jit, rows, rows_jit, sampler, sampler_jit
from gapless.records import MAX_BIASED

LIMIT = 48 * 1024
POINTERS = {
    "*i64": "step rows asked counts mask longs bins weights classes following head on_limit",
    "*fp32": "logits coord size floats biases",
    "*fp64": "reals lines",
    "*i32": "ints listed words",
    "i32": "end",
    "*i1": "masks ends counting resets",
}
TYPES = {name: kind for kind, names in POINTERS.items() for name in names.split()}


def constants(vocab: int, able: bool) -> dict[str, Any]:
    """`able`: values, and masks from the host."""
    chunk = min(sampler.CHUNK, vocab)
    chunks, bits = triton.cdiv(vocab, chunk), sampler.SUM_BITS - (vocab - 1).bit_length()
    up = triton.next_power_of_2(chunks)
    sizes = {"COUNTS": 13, "REALS": 7, "CLASSES": 9, "VOCAB": vocab, "BLOCK": chunk, "CHUNK": chunk, "CHUNKS": chunks}
    sizes |= {"UP": up, "BITS": bits, "ONE": 2.0**bits, "TOPS": 20, "MERGED": triton.next_power_of_2(20 * chunks)}
    sizes |= {"SOME": sampler.SOME, "FEW": max(16, sampler.PAIRS // up), "FIELDS": 32}
    told = {name.upper(): int(getattr(of, name)) for of in (COLUMNS, MARKS) for name in type(of).__slots__}
    part = min(rows.PART, vocab)
    sizes |= {"PART": part, "PARTS": triton.cdiv(vocab, part), "BIASES": MAX_BIASED + 1}
    return {**sizes, **told, "SPATIAL": able, "MASKED": able}


def compiled(kernel: Any, capability: int, vocab: int, able: bool, warps: int) -> Any:
    names, values = kernel.arg_names, constants(vocab, able)
    source = ASTSource(
        kernel,
        {name: TYPES.get(name, "constexpr") for name in names},
        {(names.index(name),): values[name] for name in names if name not in TYPES},
    )
    options = {"num_warps": warps, "enable_fp_fusion": kernel is not adjust_jit.adjust}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def main(capability: int) -> None:
    for vocab in (51200, 2048):
        jobs = [(getattr(sampler_jit, name), True, sampler.WARPS) for name in ("survey", "weigh", "narrow", "finish")]
        jobs += [(sampler_jit.survey, False, sampler.WARPS), (sampler_jit.finish, False, sampler.WARPS)]
        jobs += [(adjust_jit.adjust, True, 8), (adjust_jit.adjust, False, 8), (adjust_jit.count, False, 1)]
        for kernel, able, warps in (*jobs, (rows_jit.greedy, True, 16)):
            made = compiled(kernel, capability, vocab, able, warps)
            shared, text = made.metadata.shared, made.asm["ptx"]
            print(kernel.__name__, vocab, able, shared)
            assert shared <= LIMIT, f"{kernel.__name__} takes {shared} bytes of shared memory"
            assert kernel is not adjust_jit.adjust or not re.search(r"fma\.rn|div\.full|div\.approx", text), (
                "rounds otherwise"
            )
            assert not re.search(r"(atom|red)\.[a-z.]*\.f(32|64)", text), f"{kernel.__name__} adds floats by atomics"


if __name__ == "__main__":
    main(int(sys.argv[1]))
