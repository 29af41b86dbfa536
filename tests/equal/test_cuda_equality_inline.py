"""The CUDA device's own code, on a runtime without a GPU, says exactly what the oracle says."""

from collections import Counter

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.inline_stage import inline_stage
from tests.fakes.scene import expected, mix_of_requests
from tests.fakes.verdict import judge_all

SPEC = HashSpec()
AMPLE, TINY = 400, 27


@pytest.mark.parametrize("pages", [AMPLE, TINY])
@pytest.mark.parametrize("host", [0.0, pytest.param(0.5, marks=pytest.mark.slow), 1.0])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_padded_batches_and_static_buffers_are_exact(depth, host, pages):
    entries = mix_of_requests(depth, 18, host=host, spread=12)
    with inline_stage(HashModel(SPEC), depth, pages=pages, seed=depth) as (stage, device):
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        device.audit()
        tally, replays = device.referee.tally, device.device.graphs.replays
        assert replays["forward"] == stage.engine.counters.decode_steps > 0
        assert replays["tail"] > 0
        assert (replays["parked"] > 0) == (tally.parked > 0) == (host > 0)
        assert replays["extend"] > 0
        assert (tally.overlapped > 0) == (depth > 1)


@pytest.mark.parametrize(("graphs", "buckets"), [(False, None), (True, (16,)), (True, (3, 8))])
def test_other_buckets_and_no_graphs_are_exact(graphs, buckets):
    entries = mix_of_requests(7, 18, host=0.2, spread=12)
    with inline_stage(HashModel(SPEC), 2, graphs=graphs, buckets=buckets, seed=7) as (stage, device):
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        device.audit()
        assert (sum(device.device.graphs.replays.values()) > 0) == graphs


@pytest.mark.parametrize("depth", [1, 3])
def test_narrow_page_tables_hold_every_position(depth, monkeypatch):
    """Cut off too early, a table would lose a row's own page: after preemption, for zombies, in mixed company."""
    monkeypatch.setattr("gapless.device.graphs.NARROW", 32)
    entries = mix_of_requests(11, 24, host=0.2, spread=12)
    with inline_stage(HashModel(SPEC), depth, pages=TINY, seed=depth) as (stage, device):
        used, graphs = Counter(), device.device.graphs
        forward = graphs.forward

        def counted(bucket, width, feeds):
            used[width] += 1
            forward(bucket, width, feeds)

        monkeypatch.setattr(graphs, "forward", counted)
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        device.audit()
        assert {8, 16} <= set(used) <= {8, 16, 32} and min(used[8], used[16]) > 5
        assert device.referee.tally.resumed > 0
