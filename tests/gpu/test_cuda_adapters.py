"""Adapters on a GPU: exact with the hash model; at full size in bf16 beside rows without; uploads, and reloads.

Reloads go through the library, with the bundled model in float32, where an answer can only be one version's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.fakes.adapters import HASHED, plain_of, random_adapters, shared_out
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.scene import expected, mix_of_requests, table_of
from tests.fakes.verdict import judge_all
from tests.gpu.mixes import mix
from tests.gpu.near_tie import Reader, divergence
from tests.gpu.stage import Played, answers, cuda_stage, prove
from tests.gpu.test_cuda_moondream2 import (
    DEPTH,
    END_BIAS,
    ROWS,
    block_pages,
    counted,
    decode_ticks,
    end,
    few_pages,
    open_stage,
    play_200,
    settle_down,
)

import gapless
from gapless.constrain.table import build_table
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates
from gapless.models.registry import random_model
from gapless.records import Adapter
from gapless.weights.hub import ASSETS

pytestmark = pytest.mark.gpu
SIZES = ("moondream-2", "moondream-3")
SPEC = HashSpec()
AMPLE, TINY = 400, 33
COUNT = 8
RANKS = (16, 64)
DEVICE = "cuda"
MOON = ASSETS / "glint" / "adapters" / "moon" / "adapter.safetensors"


# -- the hash model: exact -------------------------------------------------------------------------------------------


def play_hashed(depth: int, slots: int, pages: int, graphs: bool = True, **sampling: int) -> Played:
    """A scene of the hash model, judged by the oracle; what was seen."""
    entries = shared_out(
        mix_of_requests(depth + 10 * slots, 24, host=0.5, spread=12, inset=SPEC.prefix - 1), HASHED, depth
    )
    entries = [
        replace(e, request=replace(e.request, sampling=replace(e.request.sampling, **sampling))) for e in entries
    ]
    model = HashModel(SPEC, device=torch.device(DEVICE))
    sizes = {"pages": pages, "page_size": 4, "lookahead": 8, "adapters": slots}
    with cuda_stage(model, table_of(SPEC), depth, graphs=graphs, seed=depth, **sizes) as played:
        judge_all(played.play(entries), expected(SPEC, entries), entries)
        prove(played, depth, graphs, landed=graphs)
        wanted = {e.request.adapter.name for e in entries if e.request.adapter and e.cancelled is None}
        assert played.device.referee.tally.adapters == played.proof.uploads >= len(wanted) > slots
        adapters = played.stage.engine.ledgers.adapters
        assert adapters.resident == slots and not adapters.held()
    return played


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_five_adapters_in_few_slots_are_exact(depth, slots):
    tally = play_hashed(depth, slots, AMPLE).device.referee.tally
    assert (tally.zombies > 0) == (depth > 1) and tally.parked > 0


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_preempted_rows_continue_with_their_adapter(depth, slots):
    played = play_hashed(depth, slots, TINY, max_tokens=35, max_objects=10)
    assert played.device.referee.tally.resumed > 0


@pytest.mark.parametrize("depth", [1, 3])
def test_without_graphs_it_is_exact(depth):
    play_hashed(depth, 2, AMPLE, graphs=False)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_versions_under_one_name_are_never_mixed(depth):
    """Requests of three versions of one adapter about the same pictures, at once: each gets its own."""
    versions = [replace(HASHED[0], version=90 + i, weights=HASHED[i].weights) for i in range(3)]
    entries = shared_out(mix_of_requests(depth, 18, host=0.2, spread=12), versions, depth, none=1)
    model = HashModel(SPEC, device=torch.device(DEVICE))
    with cuda_stage(model, table_of(SPEC), depth, page_size=4, lookahead=8, adapters=2) as played:
        judge_all(played.play(entries), expected(SPEC, entries), entries)
        assert played.device.referee.tally.adapters >= len(versions)


# -- full size, random weights, bf16 ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=SIZES)
def model(request) -> Iterator[Moondream]:
    loaded = random_model(request.param, DEVICE, "bfloat16", end_bias=END_BIAS).model
    assert isinstance(loaded, Moondream)
    yield loaded
    torch.cuda.empty_cache()


@pytest.fixture(scope="module", params=RANKS)
def rank(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def adapters(model, rank) -> list[Adapter]:
    return random_adapters(model.config.text, [rank] * COUNT, rank, model.device, model.dtype)


@pytest.fixture(scope="module")
def ample(model, rank) -> Iterator[Played]:
    with open_stage(model, ROWS * (block_pages(model) + 20), adapters=COUNT, rank=rank) as played:
        yield played


def test_200_requests_with_ample_pages(ample, model, adapters):
    play_200(ample, model, seed=1, first=1, adapters=adapters)
    assert ample.device.referee.tally.adapters == ample.proof.uploads >= COUNT
    assert ample.proof.uploads_beside > 0, "no adapter was brought while an earlier step was running"
    fused = model.any_width(ROWS, model.new_cache(2, 16), model.new_adapters(2, 8))
    assert fused == (model.config.text.moe is None), "steps with adapters went layer by layer"


def test_200_requests_with_few_pages_and_three_slots(model, rank, adapters):
    with open_stage(model, few_pages(model), lookahead=8, adapters=3, rank=rank) as played:
        play_200(played, model, seed=2, first=1, adapters=adapters)
        assert played.stage.engine.counters.preemptions > 0 and played.device.referee.tally.resumed > 0
        assert played.proof.uploads > COUNT, "no adapter was brought twice"


def test_decode_allocates_nothing_with_adapters_in_the_batch(ample, model, adapters):
    settle_down(ample, model, first=10_001, adapters=adapters)
    decode_ticks(ample, 5)
    prefills, before, replays = ample.stage.engine.counters.prefill_steps, counted(), ample.proof.replays
    launched = decode_ticks(ample, 40)
    after = counted()
    assert ample.stage.engine.ledgers.adapters.held()
    assert ample.stage.engine.counters.prefill_steps == prefills
    assert launched >= 20 and ample.proof.replays - replays >= 2 * launched
    assert after == before
    end(ample)


def test_a_whole_mix_never_waits_for_the_device(ample, model, adapters):
    entries = mix(model.config, 9, 30, first=30_001, cancels=0.2, host=0.2, spread=30, longest=30)
    torch.cuda.set_sync_debug_mode("error")
    try:
        ample.play(shared_out(entries, adapters, 9))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    prove(ample, DEPTH, True)


def test_rows_without_adapter_say_what_an_engine_without_slots_says(ample, model, adapters, capsys):
    """But for near-ties, which are counted."""
    entries = shared_out(mix(model.config, 5, 60, first=60_001, greedy=True), adapters, 5, none=COUNT)
    plain = plain_of(entries)
    assert len(plain) > 15 and len(entries) - len(plain) > 15
    heard = ample.play(entries)
    answers(heard)
    with open_stage(model, ROWS * (block_pages(model) + 20)) as without:
        right = without.play(plain)
        answers(right)
    table = build_table(Templates.of(model.config).rules())
    judged = [
        divergence(Reader(model), table, e.request, right[e.request.id].tokens, heard[e.request.id].tokens)
        for e in plain
    ]
    found = [one for one in judged if one is not None]
    with capsys.disabled():
        tokens = sum(len(right[e.request.id].tokens) for e in plain)
        print(f"\nwithout adapter: {len(found)} divergences in {tokens} tokens; {[str(f) for f in found[:5]]}")
    assert not [one for one in found if not one.near_for(model)]
    assert len(found) < 0.75 * len(plain)


# -- the library: reloads under load ---------------------------------------------------------------------------------


def other_version(folder: Path) -> Path:
    """The moon's adapter with its B drawn anew."""
    generator = torch.Generator().manual_seed(5)
    drawn = {
        name: (torch.randn(tensor.shape, generator=generator) * 0.1).to(tensor.dtype) if name.endswith(".B") else tensor
        for name, tensor in load_file(MOON).items()
    }
    save_file(drawn, folder / "adapter.safetensors")
    return folder


def test_a_reload_under_load_never_mixes_versions(tmp_path):
    """Threads ask while one name is given another version again and again: an answer is whole one's, and of a version
    that was loaded at some time between question and answer."""
    files = [MOON, other_version(tmp_path)]
    shown = [torch.randint(0, 256, (120, 160 + 40 * i, 3), dtype=torch.uint8).numpy() for i in range(3)]
    asked = {"settings": {"temperature": 0, "max_tokens": 12, "adapter": "moon"}}
    said: list[list[str]] = []
    with gapless.load("glint", device=DEVICE, dtype="float32", max_adapters=2, max_rows=6) as vlm:
        for file in files:
            vlm.load_adapter("moon", file)
            said.append([vlm.caption(picture, **asked)["caption"] for picture in shown])
        assert all(a != b for a, b in zip(*said, strict=True)), "the versions say the same"
        versions, current, over = [1], [0], threading.Event()  # which file each time; the last one that is loaded

        def ask(number: int) -> int:
            count = 0
            while not over.is_set():
                which, began = (number + count) % len(shown), current[0]
                answer = vlm.caption(shown[which], **asked)["caption"]
                assert answer in {said[v][which] for v in versions[began:]}, (answer, versions[began:])
                count += 1
            return count

        with ThreadPoolExecutor() as pool:
            asking = [pool.submit(ask, number) for number in range(6)]
            try:
                for turn in range(12):
                    versions.append(turn % 2)  # noted first: it may be given out from here on
                    vlm.load_adapter("moon", files[turn % 2])
                    current[0] = len(versions) - 1
                    assert vlm.caption(shown[0], **asked)["caption"] == said[turn % 2][0]
            finally:
                over.set()
            assert sum(one.result() for one in asking) > 12
