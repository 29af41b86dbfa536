"""Short runs for compute-sanitizer, by name: everything the GPU does in an engine, at sizes that tools can bear.

    PYTHONPATH=src:. compute-sanitizer --tool memcheck --error-exitcode 9 python3 tests/gpu/sanitize.py
    PYTHONPATH=src:. compute-sanitizer --tool racecheck --error-exitcode 9 python3 tests/gpu/sanitize.py pixels experts

Racecheck has been seen to take more than 128 GB of host memory for a Moondream with graphs; `--eager` leaves them out.
It also reports cuDNN's attention, which is not ours to mend: `--kernel-name-exclude kns=cudnn` leaves that out; and,
where heads are 32 wide, the last line of `joined` in a sparse step: lanes of a warp that hold copies of one sum all
store it, by one instruction.

Answers are judged here too: a run that computed nothing would pass any memory check. The hash model's must be the
oracle's, a real one's those of the same weights on a CPU (`foretold`), and experts alone are held against float64.

Programs of one launch may wait for others of it (`narrow_jit`, `adapters_jit`): those that are waited for have lower
numbers, so they have begun when others wait, however few fit on the GPU beside what a tool adds to each.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import product
from typing import Any

import torch
from tests.fakes.adapters import random_adapters, shared_out
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.micro import micro_config, micro_tensors
from tests.fakes.ruled import tables, with_rules
from tests.fakes.scene import Entry, expected, mix_of_requests, table_of
from tests.fakes.verdict import judge_all
from tests.gpu.foretold import judge
from tests.gpu.mixes import mix
from tests.gpu.stage import Played, answers, cuda_stage
from tests.kernels.drawn_sparse import Sizes, Sparse, draw, step
from tests.kernels.interpreted_pixels import CASES, SIDE, STEP
from torch import Tensor

from gapless.config import KVDType
from gapless.constrain.table import build_table
from gapless.device.tail import Feeds
from gapless.kernels import reference
from gapless.kernels.choose import choose
from gapless.kernels.triton.sparse_choices import CUT, MANY
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.random_weights import has_fp8, random_config, random_tensors
from gapless.models.moondream.templates import Templates

GPU = torch.device("cuda")
BUCKETS = (4, 8)
NARROW = (8, 24)
"""Batches at which experts in FP8 are multiplied as they are stored."""
RANK = 16
ROWS = (1, 2, 8, 17, 24, 32)
"""Of experts alone. One row has kernels of its own; at 2 and 24 others are told to multiply FP8 too."""
ALONE = Sizes(dim=512, ff=512, heads=8, vocab=512, experts=64, share=2, inner=256)
"""As few numbers as leave loops two turns, and as many programs as do not all fit on a GPU at once."""
ERROR = 1e-2


def hash_run(graphs: bool) -> str:
    """Graphs, both kinds of masks, pictures, and few pages."""
    spec = HashSpec()
    entries = mix_of_requests(3, 7, host=0.3, spread=6)
    model = HashModel(spec, device=GPU)
    with cuda_stage(
        model, table_of(spec), 2, graphs=graphs, buckets=BUCKETS, pages=27, page_size=4, lookahead=8
    ) as played:
        judge_all(played.play(entries), expected(spec, entries), entries)
        return _did(played)


def rules_run(graphs: bool) -> str:
    """Rules in two slots for more tables, and adjusted logits; the same judge."""
    spec = HashSpec()
    entries = with_rules(mix_of_requests(5, 8, cancels=0.0, spread=4, adjusted=0.6), 0.6, 5)
    sizes = {"page_size": 4, "lookahead": 8, "grammars": 2, "numbers": max(table.numbers for table in tables())}
    with cuda_stage(
        HashModel(spec, device=GPU), table_of(spec), 2, graphs=graphs, buckets=BUCKETS[1:], **sizes
    ) as played:
        judge_all(played.play(entries), expected(spec, entries), entries)
        assert played.device.referee.tally.grammars > 0 and any(e.request.sampling.adjusts for e in entries)
        return _did(played)


def micro_run(graphs: bool) -> str:
    """The real layers in bf16 at sizes that the fused kernels do not take, vision included."""
    raw = micro_config()
    weights = {name: tensor.bfloat16() for name, tensor in micro_tensors(raw).items()}
    model = Moondream(read_config(raw), {name: tensor.to(GPU) for name, tensor in weights.items()})
    entries = mix(model.config, 3, 6, greedy=True, host=0.3, spread=4, longest=12)
    with cuda_stage(
        model, build_table(Templates.of(model.config).rules()), 2, graphs=graphs, buckets=BUCKETS, pages=60
    ) as played:
        return _answered(played, model, weights, entries)


def fused_run(graphs: bool) -> str:
    """A Moondream 2: rows with adapters of two ranks, with none, and with coordinates."""
    return _random_run("small", BUCKETS, 14, graphs, adapted=True)


def sparse_run(graphs: bool) -> str:
    """A Moondream 3: experts in bf16, few rows and many."""
    return _random_run("small-3", NARROW, 26, graphs)


def fp8_run(graphs: bool) -> str:
    """Experts in FP8, at both batches that multiply them as they are stored."""
    return _random_run("small-3.1", NARROW, 26, graphs)


def kept_run(graphs: bool) -> str:
    """Keys and values in FP8, of either generation, the second with experts in FP8 too."""
    return "; ".join(_random_run(size, BUCKETS, 14, graphs, kv_dtype="fp8") for size in ("small", "small-3.1"))


def tuned_run(graphs: bool) -> str:
    """Experts in FP8 with adapters, which go layer by layer."""
    return _random_run("small-3.1", BUCKETS, 14, graphs, adapted=True, fused=False)


def pixels_run() -> str:
    """Pictures cut on the GPU: to the byte what is cut on a CPU."""
    source = torch.Generator().manual_seed(3)
    for size, tiling in CASES:
        picture = torch.randint(0, 256, (*size, 3), generator=source, dtype=torch.uint8)
        found, right = (torch.full((1 + tiling[0] * tiling[1], SIDE, SIDE, 3), n, dtype=torch.uint8) for n in (7, 8))
        found = found.to(GPU)
        choose(GPU).cut_crops(picture.to(GPU), tiling, STEP, found)
        reference.cut_crops(picture, tiling, STEP, right)
        assert torch.equal(found.cpu(), right), f"a picture of {size} was cut otherwise"
    return f"{len(CASES)} pictures"


def experts_run() -> str:
    """Steps with experts in FP8 by kernels that multiply them as they are: rows that take what the router says, all the
    same experts, and all different ones."""
    worst, ways = 0.0, {"router's": None, "same": _to_the_same, "different": _to_different_ones}
    for rows, (name, routed) in product(ROWS, ways.items()):
        worst = max(worst, error := _alone(rows, routed))
        print(f"  {rows} rows, {name} experts: {error:.5f}", flush=True)
    return f"{len(ROWS) * len(ways)} steps, at most {worst:.5f} from float64"


ENGINES: dict[str, Callable[[bool], str]] = {
    "hash": hash_run,
    "rules": rules_run,
    "micro": micro_run,
    "fused": fused_run,
    "sparse": sparse_run,
    "fp8": fp8_run,
    "kept": kept_run,
    "tuned": tuned_run,
}
"""With graphs or without."""
KERNELS: dict[str, Callable[[], str]] = {"pixels": pixels_run, "experts": experts_run}


def _random_run(
    size: str,
    buckets: tuple[int, ...],
    count: int,
    graphs: bool,
    *,
    adapted: bool = False,
    fused: bool = True,
    kv_dtype: KVDType = "auto",
) -> str:
    """A model of random weights, whose steps must be fused or not, through the loop."""
    config = random_config(size)
    tensors = random_tensors(config, GPU, torch.bfloat16, end_bias=0.0, fp8=has_fp8(size))
    weights = {name: tensor.cpu() for name, tensor in tensors.items()}
    model = Moondream(config, tensors, kv_dtype=kv_dtype)
    entries = mix(config, 3, count, greedy=True, spread=4, longest=12)
    slots = 2 if adapted else 0
    if adapted:
        entries = shared_out(entries, random_adapters(config.text, [8, RANK], RANK, GPU, torch.bfloat16), 3)
    table, rows = build_table(Templates.of(config).rules()), buckets[-1]
    with cuda_stage(
        model, table, 2, graphs=graphs, buckets=buckets, rows=rows, pages=8 * rows, adapters=slots, rank=RANK
    ) as played:
        program, used = played.device.device.device.program, _buckets_of(played)
        assert program.any_width(rows, Feeds(adapted=adapted)) == fused, f"steps were {'not ' * fused}fused"
        _must_be_cut(model, buckets)
        said = _answered(played, model, weights, entries)
        assert all(used[bucket] for bucket in buckets), f"steps had {dict(used)} rows"
        return said


def _must_be_cut(model: Moondream, buckets: Sequence[int]) -> None:
    """Assert that experts in FP8 are multiplied as they are stored, where that is meant."""
    if model.expert_itemsize == 1 and torch.cuda.get_device_capability() == (9, 0):
        step = model.text.sparse
        assert step is not None and [step.choice(rows).cut for rows in buckets] == [rows in NARROW for rows in buckets]


def _buckets_of(played: Played) -> Counter[int]:
    """Counts steps by their batch from now on."""
    graphs, used = played.device.device.device.graphs, Counter[int]()
    forward = graphs.forward

    def counted(bucket: int, width: int, feeds: Feeds) -> None:
        used[bucket] += 1
        forward(bucket, width, feeds)

    graphs.forward = counted
    return used


def _answered(played: Played, model: Moondream, weights: dict[str, Tensor], entries: list[Entry]) -> str:
    """Play a scene; the same weights on a CPU judge it."""
    heard = played.play(entries)
    answers(heard)
    wide = {n: t if t.dtype is torch.float8_e4m3fn else t.float() for n, t in weights.items()}
    alone = Moondream(model.config, wide, reference, "fp8" if model.kv_dtype.itemsize == 1 else "auto")
    table = build_table(Templates.of(model.config).rules())
    choices, others, worst = judge(alone, table, entries, heard, RANK)
    return f"{_did(played)}, {choices} choices, {others} of them not the judge's, by at most {worst:.4f}"


def _did(played: Played) -> str:
    return f"{played.stage.ticks} ticks, {played.proof.replays} graph replays"


def _alone(rows: int, routed: Callable[[Sparse, int], list[int]] | None) -> float:
    """A step of experts behind which a dense layer comes, twice the same; how far it is from float64 on a CPU."""
    drawn = draw(rows, rows, ALONE, narrow=True, dtype=torch.bfloat16)
    drawn.decoder.blocks.reverse()  # experts first: what they read is the norm of x, so they can be told apart
    counts, scene, kernels = None if routed is None else routed(drawn, rows), _there(drawn), choose(GPU)
    fused = kernels.fuse_sparse(scene.decoder)
    assert fused is not None, "steps were not fused"
    if torch.cuda.get_device_capability() == (9, 0):
        fused = fused.with_choices({most: replace(of, experts=CUT[8], cut=True) for most, of in MANY.items()})
        assert rows == 1 or fused.choice(rows).cut
    kernels.compile_ahead(fused, ROWS, scene.keys.shape[3])
    fused.poison()
    with torch.inference_mode():
        first, hidden = (
            fused.forward(scene.x, scene.positions, scene.tables, scene.keys, scene.values).cpu() for _ in range(2)
        )
        assert torch.equal(first, hidden), f"{rows} rows are not the same again"
        chosen = fused._room.chosen[: rows * ALONE.share].view(rows, -1).long().cpu()
        taken = torch.zeros(rows, ALONE.experts, dtype=torch.bool).scatter_(1, chosen, True)
        assert fused.taken[0].tolist() == (taken.sum(0).tolist() if counts is None else counts)
        right = step(drawn, forced=[taken, taken[:, :0]])[0]
    error = float((hidden.double() - right).norm() / right.norm())
    assert error < ERROR, f"{rows} rows are {error} from float64"
    return error


def _there(of: Any) -> Any:
    """The same on the GPU, whatever it is made of."""
    if isinstance(of, Tensor):
        return of.to(GPU)
    if isinstance(of, list | tuple):
        return type(of)(_there(part) for part in of)
    if is_dataclass(of) and not isinstance(of, type):
        return replace(of, **{field.name: _there(getattr(of, field.name)) for field in fields(of)})
    return of


def _to_the_same(scene: Sparse, rows: int) -> list[int]:
    """Let all rows take the first experts. How many take each."""
    scene.decoder.blocks[0].mlp.router.bias[: ALONE.share] = 100.0
    return [rows] * ALONE.share + [0] * (ALONE.experts - ALONE.share)


def _to_different_ones(scene: Sparse, rows: int) -> list[int]:
    """Let each row take experts of its own."""
    block, taken = scene.decoder.blocks[0], rows * ALONE.share
    n = torch.nn.functional.layer_norm(scene.x, scene.x.shape[1:], block.ln.weight, block.ln.bias, reference.LN_EPS)
    router = block.mlp.router
    router.bias.zero_()
    router.weight.zero_()
    router.weight[:taken] = (
        (100.0 * n / n.float().square().sum(1, keepdim=True)).to(n.dtype).repeat_interleave(ALONE.share, 0)
    )
    router.bias[taken:] = -100.0
    return [1] * taken + [0] * (ALONE.experts - taken)


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module; says what each run did and how long it took. One that fails stops no other. 1 if one failed."""
    parser = argparse.ArgumentParser(description="Short runs for compute-sanitizer.")
    names = (*ENGINES, *KERNELS)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(names)}; all of them if left out")
    parser.add_argument("--eager", action="store_true", help="engines without graphs")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in names]
    if unknown:
        parser.error(f"there is no run {', '.join(unknown)}; there are {', '.join(names)}")
    failed = []
    for name in options.names or names:
        began = time.perf_counter()
        try:
            did = ENGINES[name](not options.eager) if name in ENGINES else KERNELS[name]()
        except Exception:
            traceback.print_exc()
            failed.append(name)
            did = "failed"
        print(f"{name}: {did}, {time.perf_counter() - began:.1f} s", flush=True)
    print(f"{len(failed)} failed, peak memory {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
