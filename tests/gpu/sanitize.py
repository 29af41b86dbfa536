"""A short run for compute-sanitizer: graphs, both kinds of masks, pictures, preemption, fused steps with adapters; half
a minute under it.

    PYTHONPATH=src:. compute-sanitizer --tool memcheck --error-exitcode 9 python3 tests/gpu/sanitize.py

Answers of the hash model are judged by the oracle here too: a run that computed nothing would pass any memory check.
"""

from __future__ import annotations

import time

import torch
from tests.fakes.adapters import random_adapters, shared_out
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.micro import micro_config, micro_tensors
from tests.fakes.scene import expected, mix_of_requests, table_of
from tests.fakes.verdict import judge_all
from tests.gpu.mixes import mix
from tests.gpu.stage import answers, cuda_stage

from gapless.constrain.table import build_table
from gapless.device.tail import Feeds
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.random_weights import random_config, random_tensors
from gapless.models.moondream.templates import Templates

BUCKETS = (4, 8)


def hash_run() -> str:
    """A scene with few pages: judged by the oracle."""
    spec = HashSpec()
    entries = mix_of_requests(3, 7, host=0.3, spread=6)
    model = HashModel(spec, device=torch.device("cuda"))
    with cuda_stage(model, table_of(spec), 2, buckets=BUCKETS, pages=27, page_size=4, lookahead=8) as played:
        judge_all(played.play(entries), expected(spec, entries), entries)
        return f"hash model: {played.stage.ticks} ticks, {played.proof.replays} graph replays"


def micro_run() -> str:
    """The real layers in bf16, vision included."""
    raw, device = micro_config(), torch.device("cuda")
    tensors = {name: t.to(device, torch.bfloat16) for name, t in micro_tensors(raw).items()}
    model = Moondream(read_config(raw), tensors)
    table = build_table(Templates.of(model.config).rules())
    entries = mix(model.config, 3, 6, greedy=True, host=0.3, spread=4, longest=12)
    with cuda_stage(model, table, 2, buckets=BUCKETS, pages=60) as played:
        answers(played.play(entries))
        return f"micro model: {played.stage.ticks} ticks, {played.proof.replays} graph replays"


def fused_run() -> str:
    """Sizes that the fused kernels take: rows with adapters of two ranks, with none, and with coordinates."""
    config, device = random_config("small"), torch.device("cuda")
    model = Moondream(config, random_tensors(config, device, torch.bfloat16, end_bias=0.0))
    adapters = random_adapters(config.text, [8, 16], 16, device, torch.bfloat16)
    entries = shared_out(mix(config, 3, 8, greedy=True, spread=4, longest=12), adapters, 3)
    with cuda_stage(
        model, build_table(Templates.of(config).rules()), 2, buckets=BUCKETS, pages=60, adapters=2, rank=16
    ) as played:
        program = played.device.device.device.program
        assert program.any_width(BUCKETS[-1], Feeds(adapted=True)), "steps were not fused"
        answers(played.play(entries))
        return f"fused model: {played.stage.ticks} ticks, {played.proof.replays} graph replays"


def main() -> None:
    """All runs; says how long each took."""
    for run in (hash_run, micro_run, fused_run):
        began = time.perf_counter()
        print(f"{run()}, {time.perf_counter() - began:.1f} s", flush=True)
    print(f"peak memory {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
