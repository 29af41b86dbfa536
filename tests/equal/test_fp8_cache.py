"""Keys and values in FP8 through the whole engine: no answer depends on company, on what is kept, or on making room."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.fakes.micro import write_micro

import gapless

PICTURES = [np.random.default_rng(seed).integers(0, 256, (60 + seed, 90, 3), dtype=np.uint8) for seed in range(3)]
QUESTIONS = ("what", "what is it", "how many are there now")


def ask(vlm: gapless.VLM, number: int) -> tuple[str, dict[str, Any]]:
    """The same number is the same request: greedy and sampled ones by turns, as long as they may get."""
    settings = {"max_tokens": 120 - 10 * (number % 3), "temperature": 0.7 * (number % 2), "seed": number}
    said = vlm.query(PICTURES[number % 3], QUESTIONS[number // 3 % 3], settings=settings)
    return said["answer"], said["metrics"]


LONG = pytest.mark.slow


@pytest.mark.parametrize(
    ("depth", "count", "times"), [(2, 4, 1), pytest.param(1, 18, 2, marks=LONG), pytest.param(2, 18, 2, marks=LONG)]
)
def test_answers_are_those_of_requests_that_are_alone(depth, count, times, tmp_path) -> None:
    folder = write_micro(tmp_path / "micro", end_bias=-1e4)
    how: dict[str, Any] = {"kv_dtype": "fp8", "device": "cpu", "threads": 1}
    with gapless.load(folder, depth=1, max_rows=1, prefix_cache=False, **how) as vlm:
        alone = [ask(vlm, number)[0] for number in range(count)]
    with gapless.load(folder, depth=1, max_rows=1, prefix_cache=False, device="cpu", threads=1) as plain:
        assert [ask(plain, number)[0] for number in range(2)] != alone[:2], "FP8 changed nothing: it was not there"
    with gapless.load(folder, depth=depth, max_rows=6, pages=15, **how) as vlm, ThreadPoolExecutor(count) as pool:
        for _ in range(times):
            assert [answer for answer, _ in pool.map(ask, [vlm] * count, range(count))] == alone
        stats = vlm.stats()
    assert min(stats["preemptions"], stats["prefix_copies"]) > 0
    assert times == 1 or min(stats["cached_tokens"], stats["recomputed_tokens"]) > 0
