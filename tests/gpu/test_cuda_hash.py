"""The engine on a GPU says exactly what the oracle says: every depth, graphs on and off, table and host masks."""

from __future__ import annotations

import pytest
import torch
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.scene import expected, mix_of_requests, table_of
from tests.fakes.verdict import judge, judge_all
from tests.gpu.stage import PINNED, cuda_stage, prove

from gapless.errors import RequestFailed

pytestmark = pytest.mark.gpu
SPEC = HashSpec()
AMPLE, TINY = 400, 27
ALL = None


def play(depth: int, graphs: bool, host: float, pages: int, buckets=PINNED, size: int = 4, seed: int = 1) -> None:
    entries = mix_of_requests(seed, 18, host=host, spread=12)
    model = HashModel(SPEC, device=torch.device("cuda"))
    table = table_of(SPEC)
    with cuda_stage(
        model, table, depth, graphs=graphs, buckets=buckets, pages=pages, page_size=size, lookahead=8, seed=seed
    ) as played:
        judge_all(played.play(entries), expected(SPEC, entries), entries)
        prove(played, depth, graphs, landed=host < 1)
        tally = played.device.referee.tally
        assert played.stage.engine.counters.parked == tally.parked
        assert (tally.parked > 0) == (host > 0)
        if host == 0.0:
            assert (tally.zombies > 0) == (depth > 1)
            assert (tally.resumed > 0) == (pages == TINY)


@pytest.mark.parametrize("pages", [AMPLE, TINY])
@pytest.mark.parametrize("host", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_graphs_are_exact(depth, host, pages):
    play(depth, True, host, pages)


@pytest.mark.parametrize("host", [0.0, 0.5])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_without_graphs_it_is_exact(depth, host):
    play(depth, False, host, TINY)


@pytest.mark.parametrize("size", [1, 13, 16])
def test_every_bucket_and_page_size_is_exact(size):
    play(2, True, 0.2, 2 + 110 // size, buckets=ALL, size=size, seed=2)


class Fragile(HashModel):
    """Fails in the next forward that Python runs: with graphs on that is a prefill's."""

    failure: Exception | None = None

    def forward(self, x, positions, tables, cache):
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        return super().forward(x, positions, tables, cache)


@pytest.mark.parametrize("failure", [ValueError("a bug"), torch.OutOfMemoryError("CUDA out of memory")], ids=repr)
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_prefill_that_fails_before_its_end_harms_nobody_else(depth, graphs, failure):
    entries = mix_of_requests(5, 10, host=0.0, cancels=0.0, spread=10)
    right = expected(SPEC, entries)
    model = Fragile(SPEC, device=torch.device("cuda"))
    with cuda_stage(model, table_of(SPEC), depth, graphs=graphs, page_size=4, lookahead=8) as played:
        model.failure = failure
        heard = played.play(entries)
        assert model.failure is None, "the fault never struck"
        for i, one in heard.items():
            judge(one, right[i], (RequestFailed,))
        lost = sum(one.finish.error is not None for one in heard.values())
        assert lost + played.stage.engine.counters.retried > 0
        assert lost < len(entries)
