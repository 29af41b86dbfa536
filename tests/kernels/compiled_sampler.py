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
    "*i64": "step rows asked counts mask longs bins weights classes following head on_limit spans",
    "*i16": "token_classes numbers",
    "*fp32": "logits coord size floats biases",
    "*fp64": "reals lines",
    "*i32": "ints listed words",
    "i32": "end",
    "*i1": "masks ends counting resets answers",
}
RULES = {"token_classes", "numbers", "spans", "answers"}
DRAWS = {"bins", "longs", "weights", "listed"}
TYPES = {name: kind for kind, names in POINTERS.items() for name in names.split()}


def constants(vocab: int, able: bool, ruled: bool, drawn: bool) -> dict[str, Any]:
    """`able`: values, and masks from the host; `ruled`: token tables; not `drawn`: all rows are greedy."""
    chunk = min(sampler.CHUNK, vocab)
    chunks, bits = triton.cdiv(vocab, chunk), sampler.SUM_BITS - (vocab - 1).bit_length()
    up = triton.next_power_of_2(chunks)
    sizes = {"COUNTS": 15, "REALS": 7, "CLASSES": 9, "VOCAB": vocab, "BLOCK": chunk, "CHUNK": chunk, "CHUNKS": chunks}
    sizes |= {"UP": up, "BITS": bits, "ONE": 2.0**bits, "TOPS": 20, "MERGED": triton.next_power_of_2(20 * chunks)}
    sizes |= {"SOME": sampler.SOME, "FEW": max(16, sampler.PAIRS // up), "FIELDS": 32}
    told = {name.upper(): int(getattr(of, name)) for of in (COLUMNS, MARKS) for name in type(of).__slots__}
    part = min(rows.PART, vocab)
    sizes |= {"PART": part, "PARTS": triton.cdiv(vocab, part), "BIASES": MAX_BIASED + 1}
    kinds = {"SPATIAL": able, "MASKED": able and not ruled, "RULED": ruled, "DRAWN": drawn}
    return {**sizes, **told, **kinds}


def compiled(kernel: Any, capability: int, vocab: int, able: bool, warps: int, ruled: bool, drawn: bool) -> Any:
    absent = (set() if ruled else RULES) | (set() if drawn else DRAWS)
    names, values = kernel.arg_names, {**dict.fromkeys(absent), **constants(vocab, able, ruled, drawn)}
    source = ASTSource(
        kernel,
        {name: "constexpr" if name in absent else TYPES.get(name, "constexpr") for name in names},
        {(names.index(name),): values[name] for name in names if name not in TYPES or name in absent},
    )
    options = {"num_warps": warps, "enable_fp_fusion": kernel is not adjust_jit.adjust}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def main(capability: int) -> None:
    for vocab in (51200, 2048):
        jobs = [(getattr(sampler_jit, name), True, False, True) for name in ("survey", "weigh", "narrow", "finish")]
        jobs += [(sampler_jit.survey, False, False, True), (sampler_jit.finish, False, False, True)]
        jobs += [(getattr(sampler_jit, name), True, True, True) for name in ("survey", "weigh", "finish")]
        jobs += [(sampler_jit.survey, False, True, False), (sampler_jit.finish, False, True, False)]
        jobs += [
            (adjust_jit.adjust, able, ruled, True) for able, ruled in ((True, False), (False, False), (False, True))
        ]
        jobs += [(adjust_jit.count, False, False, True), (rows_jit.greedy, True, False, True)]
        for kernel, able, ruled, drawn in jobs:
            warps = {rows_jit.greedy: 16, adjust_jit.count: 1}.get(kernel, sampler.WARPS)
            made = compiled(kernel, capability, vocab, able, warps, ruled, drawn)
            shared, text = made.metadata.shared, made.asm["ptx"]
            print(kernel.__name__, vocab, able, ruled, drawn, shared)
            assert shared <= LIMIT, f"{kernel.__name__} takes {shared} bytes of shared memory"
            assert kernel is not adjust_jit.adjust or not re.search(r"fma\.rn|div\.full|div\.approx", text), (
                "rounds otherwise"
            )
            assert not re.search(r"(atom|red)\.[a-z.]*\.f(32|64)", text), f"{kernel.__name__} adds floats by atomics"


if __name__ == "__main__":
    main(int(sys.argv[1]))
