"""The engine on the rehearsing CPU device says exactly what the oracle says, with jitter, late copies and poison."""

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.host_stage import host_stage
from tests.fakes.referee import Tally
from tests.fakes.scene import expected, mix_of_requests
from tests.fakes.verdict import judge_all

SPEC = HashSpec()
AMPLE, TINY = 400, 27
SEEDS = (1, 2)


def play(depth: int, host: float, pages: int, seeds=SEEDS, size: int = 4) -> list[Tally]:
    """Play scenes and judge all answers; the engine's own counters must agree with the referee."""
    tallies = []
    for seed in seeds:
        entries = mix_of_requests(seed, 18, host=host, spread=12)
        with host_stage(HashModel(SPEC), depth, pages=pages, page_size=size, seed=seed) as (stage, device):
            judge_all(stage.play(entries), expected(SPEC, entries), entries)
            device.audit()
            counted, seen = stage.engine.counters, device.referee.tally
            assert (counted.parked, counted.overlapped, counted.zombies) == (seen.parked, seen.overlapped, seen.zombies)
            tallies.append(device.referee.tally)
    return tallies


def total(tallies: list[Tally], name: str) -> int:
    return sum(getattr(tally, name) for tally in tallies)


@pytest.mark.parametrize("pages", [AMPLE, TINY])
def test_depth_one_is_exact_and_never_overlaps(pages):
    tallies = play(1, 0.0, pages)
    assert total(tallies, "overlapped") == total(tallies, "zombies") == 0
    assert total(tallies, "most_refs") == len(SEEDS)


@pytest.mark.parametrize("pages", [AMPLE, TINY])
@pytest.mark.parametrize("depth", [2, pytest.param(3, marks=pytest.mark.slow), 4])
def test_deeper_is_exact_and_really_overlaps(depth, pages):
    tallies = play(depth, 0.0, pages)
    assert total(tallies, "overlapped") > 35 * len(SEEDS)
    assert total(tallies, "zombies") > len(SEEDS)
    assert max(tally.most_refs for tally in tallies) == depth
    assert min(tally.decode_committed_during_prefill for tally in tallies) > 0
    assert min(tally.prefill_committed_during_decode for tally in tallies) > 0
    if pages == TINY:
        assert total(tallies, "resumed") > 0


@pytest.mark.parametrize("host", [0.5, 1.0])
@pytest.mark.parametrize("depth", [1, 2, pytest.param(3, marks=pytest.mark.slow), 4])
def test_host_masks_are_exact_and_park(depth, host):
    tallies = play(depth, host, TINY if host == 1.0 else AMPLE)
    assert min(tally.parked for tally in tallies) > 5
    if depth == 1:
        assert total(tallies, "overlapped") == total(tallies, "zombies") == 0
    else:
        assert total(tallies, "overlapped") > 10 * len(SEEDS)


def test_a_box_is_resumed_in_its_middle():
    tallies = play(4, 0.0, TINY, seeds=(3, 4, 5))
    assert total(tallies, "resumed_in_object") > 0


@pytest.mark.parametrize("size", [1, 13, 16])
def test_other_page_sizes_are_exact(size):
    play(2, 0.2, 2 + 110 // size, seeds=(1,), size=size)


def test_what_a_host_mask_forbids_besides_the_table_is_not_said():
    deny = tuple(range(20, 64, 2))
    entries = mix_of_requests(3, 18, host=0.7, spread=12)
    with host_stage(HashModel(SPEC), 2, deny=deny) as (stage, device):
        right = expected(SPEC, entries, deny)
        judge_all(stage.play(entries), right, entries)
        device.audit()
    assert {i: a.tokens for i, a in right.items()} != {i: a.tokens for i, a in expected(SPEC, entries).items()}


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("host", [0.0, 0.5, 1.0])
def test_many_seeds(depth, host):
    for pages in (AMPLE, TINY):
        play(depth, host, pages, seeds=range(100, 112))
