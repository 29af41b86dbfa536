"""A full-size Moondream 2 of random weights in bf16: every skill mixed, random ends, cancels, tiny and ample pools.

Nothing may be left behind, nothing allocated while decoding, and nothing on the hot path may wait for the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from tests.fakes.adapters import shared_out
from tests.gpu.mixes import mix
from tests.gpu.stage import Played, cuda_stage, prove

from gapless.constrain.table import build_table
from gapless.errors import RequestCancelled
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates
from gapless.models.registry import random_model
from gapless.records import Adapter, StepKind

pytestmark = pytest.mark.gpu
ROWS, DEPTH, COUNT = 24, 2, 200
PAGE = 16
END_BIAS = 2.5
"""Raises the end's logit among about normal ones, so that answers end at surprising places."""
COUNTERS = ("allocation.all.allocated", "allocation.all.freed", "segment.all.allocated", "segment.all.freed")


@pytest.fixture(scope="module")
def model() -> Moondream:
    loaded = random_model("moondream-2", "cuda", "bfloat16", end_bias=END_BIAS).model
    assert isinstance(loaded, Moondream)
    return loaded


@pytest.fixture(scope="module")
def ample(model) -> Iterator[Played]:
    with open_stage(model, ROWS * (block_pages(model) + 20)) as played:
        yield played


def block_pages(model: Moondream) -> int:
    """Pages of a picture block."""
    return -(-model.prefix // PAGE)


def few_pages(model: Moondream) -> int:
    """Room for three pictures, and so few pages beside them that rows are preempted."""
    return 3 * block_pages(model) + 10


def open_stage(model: Moondream, pages: int, lookahead: int = 32, **slots: int):
    table = build_table(Templates.of(model.config).rules())
    sizes = {"rows": ROWS, "pages": pages, "page_size": PAGE, "lookahead": lookahead, **slots}
    return cuda_stage(model, table, DEPTH, buckets=None, poison=False, **sizes)


def counted() -> dict[str, int]:
    stats = torch.cuda.memory_stats()
    return {name: stats[name] for name in COUNTERS}


def play_200(played: Played, model: Moondream, seed: int, first: int, adapters: Sequence[Adapter] = ()) -> None:
    entries = mix(model.config, seed, COUNT, first=first, cancels=0.15, host=0.1, spread=120, pictures=6, longest=60)
    entries = shared_out(entries, adapters, seed)
    heard = played.play(entries)
    cancelled = {e.request.id for e in entries if e.cancelled is not None}
    early = 0
    for id, one in heard.items():
        if one.finish.error is not None:
            assert isinstance(one.finish.error, RequestCancelled) and id in cancelled, one.finish.error
            early += 1
    assert 0 < early < COUNT // 3
    tally = played.device.referee.tally
    assert tally.zombies > 0 and tally.parked > 0 and tally.shared_blocks > 0
    assert tally.decode_committed_during_prefill > 0 and tally.prefill_committed_during_decode > 0
    prove(played, DEPTH, True)


def test_200_requests_with_ample_pages(ample, model):
    play_200(ample, model, seed=1, first=1)


def test_200_requests_with_few_pages(model):
    with open_stage(model, few_pages(model), lookahead=8) as played:
        play_200(played, model, seed=2, first=1)
        assert played.stage.engine.counters.preemptions > 0
        assert played.device.referee.tally.resumed > 0


def settle_down(
    played: Played, model: Moondream, first: int, count: int = ROWS, adapters: Sequence[Adapter] = ()
) -> None:
    """Let `count` requests with long answers ride until none waits for its prefill."""
    for entry in shared_out(mix(model.config, first, count, first=first, spread=0), adapters, first):
        sampling = replace(entry.request.sampling, temperature=1.0, max_tokens=200)
        program = "reason" if entry.request.id % 2 else "text"
        played.stage.mailbox.submit(replace(entry.request, sampling=sampling, program=program))
    assert played.stage.tick()
    while played.stage.engine.admission.waiting:
        assert played.stage.tick()


def decode_ticks(played: Played, count: int) -> int:
    """Tick `count` times; how many decode steps were launched."""
    before = played.stage.engine.counters.decode_steps
    for _ in range(count):
        if not played.stage.tick():
            break
    return played.stage.engine.counters.decode_steps - before


def end(played: Played) -> None:
    """Cancel what runs, and audit."""
    for id, heard in played.stage.heard.items():
        if heard.finish is None:
            played.stage.mailbox.cancel(id)
    while played.stage.tick():  # cancellations are taken in the tick, and drain in those after it
        pass
    played.stage.engine.audit()
    played.device.audit()
    played.stage.heard = {}


def test_decode_allocates_nothing(ample, model):
    settle_down(ample, model, first=10_001)
    decode_ticks(ample, 5)
    prefills, before, replays = ample.stage.engine.counters.prefill_steps, counted(), ample.proof.replays
    launched = decode_ticks(ample, 40)
    after = counted()
    assert ample.stage.engine.counters.prefill_steps == prefills
    assert launched >= 20 and ample.proof.replays - replays >= 2 * launched
    assert after == before
    end(ample)


def test_decode_never_waits_for_the_device(ample, model):
    settle_down(ample, model, first=20_001)
    torch.cuda.set_sync_debug_mode("error")
    try:
        launched = decode_ticks(ample, 40)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert launched >= 20
    assert ample.device.steps[-1].kind is StepKind.DECODE
    end(ample)


def test_a_whole_mix_never_waits_for_the_device(ample, model):
    entries = mix(model.config, 9, 30, first=30_001, cancels=0.2, host=0.2, spread=30, longest=30)
    torch.cuda.set_sync_debug_mode("error")
    try:
        ample.play(entries)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    prove(ample, DEPTH, True)


def test_device_memory_is_flat_after_a_mix(ample, model):
    """The second of two equal mixes takes no new memory from the driver."""
    for first in (40_001, 50_001):
        before = torch.cuda.memory_stats()["segment.all.allocated"]
        ample.play(mix(model.config, 4, 60, first=first, spread=40, longest=30))
    assert torch.cuda.memory_stats()["segment.all.allocated"] == before
