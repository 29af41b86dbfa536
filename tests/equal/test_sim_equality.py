"""The engine on the simulated device says exactly what the oracle says, whatever the depth, pool and constraints."""

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.referee import Tally
from tests.fakes.scene import expected, limits_of, mix_of_requests, sim_stage
from tests.fakes.sim_device import Timing
from tests.fakes.verdict import judge_all

from gapless.observe.counters import Counters

SPEC = HashSpec()
UNALIGNED, ALIGNED = 4, 13
"""Page sizes with and without a partly filled last page of the picture block."""
AMPLE, TINY = 400, 27
SEEDS = tuple(range(5))
TIMES = (
    Timing(forward=1.0, sampling=0.1, copy=0.05, bookkeeping=0.5),
    Timing(forward=0.3, sampling=0.1, copy=0.7, bookkeeping=1.0, prefill=4.0),
)


def total(values: list[Tally] | list[Counters], name: str) -> int:
    return sum(getattr(value, name) for value in values)


def play(depth: int, host: float, pages: int, size: int = UNALIGNED, seeds=SEEDS) -> tuple[list[Tally], list[Counters]]:
    """Play scenes and judge all answers; returns what referees and engines counted."""
    tallies, counters = [], []
    for seed in seeds:
        entries = mix_of_requests(seed, 18, host=host, spread=12)
        limits = limits_of(SPEC, depth, pages=pages, page_size=size)
        stage, device = sim_stage(SPEC, limits, timing=TIMES[seed % 2], delays=(0.0, 3.0))
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        device.audit()
        tallies.append(device.referee.tally)
        counters.append(stage.engine.counters)
    return tallies, counters


def test_the_oracle_is_what_the_blocking_engine_says_to_one_request_alone():
    """So everything below is also compared with depth 1, one request at a time."""
    for seed in SEEDS[:3]:
        entries = mix_of_requests(seed, 18, cancels=0.0)
        right = expected(SPEC, entries)
        for entry in entries:
            stage, device = sim_stage(SPEC, limits_of(SPEC, 1))
            judge_all(stage.play([entry]), right, [entry])
            assert device.referee.tally.overlapped == 0


@pytest.mark.parametrize("pages", [AMPLE, TINY])
def test_depth_one_is_exact_and_never_overlaps(pages):
    tallies, counters = play(1, 0.0, pages)
    for counted in (total(tallies, "overlapped"), total(counters, "overlapped")):
        assert counted == 0, "depth 1 overlapped"
    for counted in (total(tallies, "zombies"), total(counters, "zombies")):
        assert counted == 0, "depth 1 made zombies"
    assert total(tallies, "most_refs") == len(SEEDS)


@pytest.mark.parametrize("pages", [AMPLE, TINY])
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_deeper_is_exact_and_really_overlaps(depth, pages):
    tallies, counters = play(depth, 0.0, pages)
    assert total(tallies, "overlapped") > 30 * len(SEEDS)
    assert total(tallies, "zombies") > len(SEEDS)
    for name in ("overlapped", "zombies"):
        assert total(counters, name) == total(tallies, name)
    assert total(tallies, "shared_blocks") > 10
    assert max(tally.most_refs for tally in tallies) == depth
    for name in ("decode_committed_during_prefill", "prefill_committed_during_decode"):
        assert min(getattr(tally, name) for tally in tallies) > 0
        assert total(counters, name) == total(tallies, name)
    if pages == TINY:
        assert total(tallies, "resumed") > 2
        assert total(tallies, "resumed_in_object") > 0, "no preemption in the middle of a point or box"


@pytest.mark.parametrize("host", [0.5, 1.0])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_host_masks_are_exact_and_park(depth, host):
    for pages in (AMPLE, TINY):
        tallies, counters = play(depth, host, pages, seeds=SEEDS[1:4])
        assert min(tally.parked for tally in tallies) > 10
        for name in ("parked", "overlapped", "zombies"):
            assert total(counters, name) == total(tallies, name), "parked or closed rows are counted"
        if depth == 1:
            assert total(tallies, "overlapped") == total(tallies, "zombies") == 0
        else:
            assert total(tallies, "overlapped") > 10 * len(tallies)
            assert total(tallies, "closed") > 0
        if pages == TINY:
            assert total(tallies, "resumed") > 2


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("size", [1, 3, ALIGNED, 16])
def test_every_page_size_is_exact(depth, size):
    play(depth, 0.2, pages=2 + 110 // size, size=size, seeds=SEEDS[:3])


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_what_a_host_mask_forbids_besides_the_table_is_not_said(depth):
    deny = tuple(range(20, 64, 2))
    for seed in SEEDS[:3]:
        entries = mix_of_requests(seed, 18, host=0.7, spread=12)
        stage, device = sim_stage(SPEC, limits_of(SPEC, depth, pages=TINY), delays=(0.0, 3.0), deny=deny)
        right = expected(SPEC, entries, deny)
        judge_all(stage.play(entries), right, entries)
        device.audit()
        assert {i: a.tokens for i, a in right.items()} != {i: a.tokens for i, a in expected(SPEC, entries).items()}


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("host", [0.0, 0.3, 1.0])
def test_many_seeds(depth, host):
    for pages in (AMPLE, TINY):
        play(depth, host, pages, seeds=range(100, 200))
