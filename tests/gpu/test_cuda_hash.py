"""The engine on a GPU says exactly what the oracle says: every depth, graphs on and off, table and host masks."""

from __future__ import annotations

import pytest
import torch
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.scene import expected, mix_of_requests, table_of
from tests.fakes.verdict import judge_all
from tests.gpu.stage import PINNED, cuda_stage, prove

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
