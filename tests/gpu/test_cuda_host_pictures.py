"""Pictures in pinned memory on a GPU: the same bits come back, nothing waits for a copy, and over ten thousand requests
of all kinds nothing is allocated.

What flows in: the hash model, so that every answer is known, and a micro Moondream in bfloat16.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from tests.equal.test_prefix_cache import SPEC
from tests.fakes.adapters import HASHED
from tests.fakes.hash_prompts import PackingHashModel
from tests.fakes.micro import micro_config, micro_tensors
from tests.fakes.scene import Entry, expected, mix_of_requests, table_of
from tests.fakes.verdict import judge_all
from tests.gpu.mixes import mix
from tests.gpu.stage import answers, cuda_stage

from gapless.constrain.table import build_table
from gapless.device.cuda import CudaDevice
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates

pytestmark = pytest.mark.gpu
KINDS, ROUNDS, WARM = 250, 40, 8
"""Unlike requests, how often each comes, and rounds after which nothing new is asked of the driver."""
COUNTERS = ("segment.all.allocated", "segment.all.freed", "num_alloc_retries")
FLAT = {"rows": 32, "pages": 75, "page_size": 4, "lookahead": 1, "adapters": 2, "host": 3}


def kinds(seed: int) -> list[Entry]:
    """Short requests of all skills with and without pictures, further pictures, adapters and host-built masks."""
    rng, entries = random.Random(seed), []
    for entry in mix_of_requests(seed, KINDS, host=0.03, cancels=0.06, spread=20, inset=SPEC.prefix - 1):
        sampling = replace(entry.request.sampling, max_tokens=rng.choice([1, 2, 3, 9]), max_objects=3)
        adapter = rng.choice([None] * 7 + HASHED[:3])
        entries.append(replace(entry, request=replace(entry.request, sampling=sampling, adapter=adapter)))
    return entries


def again(entries: list[Entry], number: int) -> list[Entry]:
    return [replace(e, request=replace(e.request, id=e.request.id + number * KINDS)) for e in entries]


def taken() -> dict[str, int]:
    stats = torch.cuda.memory_stats()
    return {name: stats[name] for name in COUNTERS}


def test_nothing_is_allocated_over_ten_thousand_requests_of_all_kinds():
    entries = kinds(7)
    right = expected(SPEC, entries)
    model = PackingHashModel(SPEC, device=torch.device("cuda"))
    with cuda_stage(model, table_of(SPEC), 2, buckets=None, delays=(0.0, 0.001), **FLAT) as played:
        seen, before = [], None
        for number in range(ROUNDS):
            batch = again(entries, number)
            heard = played.play(batch)
            judge_all(heard, {id + number * KINDS: answer for id, answer in right.items()}, batch)
            seen.append((taken(), torch.cuda.memory_allocated()))
            print(number, seen[-1], flush=True)
            if number == WARM - 1:
                before = replace(played.stage.engine.counters)
        counters, slots = played.stage.engine.counters, played.device.referee.slots
        assert counters.finished + counters.failed == KINDS * ROUNDS == 10_000
        for name in ("prefix_hits", "prefix_evictions", "prefix_copies", "preemptions", "host_hits", "host_evictions"):
            assert getattr(counters, name) > getattr(before, name) > 0, f"no {name} in {counters}"
        assert slots.brought == counters.host_hits
        print(f"{counters.prefill_steps + counters.decode_steps} steps, {seen[WARM - 1]} -> {seen[-1]}, {counters}")
        assert all(counts == seen[WARM - 1][0] for counts, _ in seen[WARM:]), [counts for counts, _ in seen]
        assert max(held for _, held in seen[WARM:]) - seen[WARM - 1][1] < 2**20


def test_what_comes_back_in_bfloat16_are_the_bits_that_left_and_no_launch_waits():
    config = read_config(micro_config())
    tensors = micro_tensors(micro_config(), end_bias=-30.0)
    model = Moondream(config, {name: t.to("cuda", torch.bfloat16) for name, t in tensors.items()})
    table, said = build_table(Templates.of(config).rules()), {}
    for host in (0, 8):
        with cuda_stage(model, table, 2, rows=4, pages=24, host=host, poison=True) as played:
            entries = mix(config, 3, 24, greedy=True, longest=12, pictures=5)
            played.play(entries)
            inner = played.device.device.device
            assert isinstance(inner, CudaDevice)
            torch.cuda.set_sync_debug_mode("error")
            try:
                said[host] = answers(played.play(again(entries, 1)))
            finally:
                torch.cuda.set_sync_debug_mode("default")
            slots, counters = played.device.referee.slots, played.stage.engine.counters
            assert (counters.host_hits > 0) == (host > 0) and counters.prefix_evictions > 0
            shown = {p.digest: p for entry in entries for p in entry.request.prompt.pictures}
            for slot, digest in slots.there.items():
                assert inner._uploads.kept[slot].is_pinned()
                assert seen_alone(model, shown[digest]) == bytes_of(inner._uploads.kept[slot])
    same = sum(said[0][number] == said[8][number] for number in said[0])
    assert same >= len(said[0]) - 2, "but for near-ties, since a step's prompts are others"


@torch.inference_mode()
def seen_alone(model: Moondream, picture) -> bytes:
    crops = torch.from_numpy(picture.crops).cuda()
    return bytes_of(model.encode_picture(crops, picture.tiling).cpu())


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()
