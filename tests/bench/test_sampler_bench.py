"""The benchmark of sampling, on a CPU: a row for each wish and number of rows, and no row that ends meanwhile."""

from __future__ import annotations

import pytest
import torch
from tests.bench.small_rigs import RATES

from gapless.bench import sampler_run
from gapless.bench.sampler import COLUMNS, WISHES, Sampler
from gapless.device.packet import Count
from gapless.device.rows import RowStore


def test_every_wish_is_timed_with_rows_that_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stores: list[RowStore] = []

    class Noted(RowStore):
        def __init__(self, rows: int, max_pages: int, device: torch.device) -> None:
            super().__init__(rows, max_pages, device)
            stores.append(self)

    monkeypatch.setattr(sampler_run, "measure_rates", lambda device, dtype: RATES)
    monkeypatch.setattr(sampler_run, "RowStore", Noted)
    report = sampler_run.SamplerBench("cpu", (1, 9), 2, 600).run(list)
    assert report["notes"] == []
    assert [(row["wish"], row["rows"]) for row in report["rows"]] == [(wish, n) for wish in WISHES for n in (1, 9)]
    for row in report["rows"]:
        assert set(COLUMNS) <= set(row) and row["us"] > 0 and row["kernels"] == "torch" and row["torch_us"] is None
        assert row["read_mb"] == pytest.approx(
            4e-6 * 2048 * row["rows"] * (4 if row["wish"] == "adjusted" else 1), rel=1e-3
        )
    for store in stores:
        assert store.counts[0, Count.DONE] == 1 and not store.counts[1:, Count.DONE].any()
        assert bool((store.counts[1:, Count.POSITION] == 803).all())  # once to begin with, and twice timed
    mixed = stores[-3].reals[1:, 2] > 0
    assert mixed.tolist() == [True, *[False] * 7, True]
    assert Sampler(rows=(1, 9)).complete(report) and not Sampler().complete(report)
    assert Sampler().draw(report).height == 640
