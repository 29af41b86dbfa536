"""Keys and values in FP8 through the whole engine: no answer depends on company, on what is kept, or on making room."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes.micro import micro_config, write_micro
from tests.weights.adapter_writers import write_adapter

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


def drawn(seed: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """A and B of rank 4 for every linear of text, large enough to change answers."""
    g, text = torch.Generator().manual_seed(seed), micro_config()["text"]
    wide, inner = text["dim"], text["ff_dim"]
    shapes = {
        "attn.qkv": (3 * wide, wide),
        "attn.proj": (wide, wide),
        "mlp.fc1": (inner, wide),
        "mlp.fc2": (wide, inner),
    }
    pairs = {}
    for name, (out, into) in ((f"text.blocks.{i}.{n}", s) for i in range(text["n_layers"]) for n, s in shapes.items()):
        a, b = torch.randn(4, into, generator=g), torch.randn(out, 4, generator=g)
        pairs[name] = (a / 5, b / 5)
    return pairs


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "limit"), [(1, None), (2, 0.1), (3, 0.1), (4, None)])
def test_with_adapters_cut_pictures_and_host_memory_answers_are_those_of_requests_that_are_alone(
    depth, limit, tmp_path
) -> None:
    """Two adapters and none, more pictures than there are pages for: what was seen of them comes back from the host."""
    folder = write_micro(tmp_path / "micro", end_bias=-1e4)
    adapters = {name: write_adapter(tmp_path / name, drawn(seed), 0) for seed, name in enumerate("ab")}
    how: dict[str, Any] = {"kv_dtype": "fp8", "device": "cpu", "threads": 1, "adapters": adapters}

    def one(vlm: gapless.VLM, number: int) -> str:
        settings = {"max_tokens": 110 - 10 * (number % 3), "temperature": 0.7 * (number % 2), "seed": number}
        if number % 3:
            settings["adapter"] = "ab"[number % 3 - 1]
        return vlm.query(PICTURES[number // 3 % 3], QUESTIONS[number % 2], settings=settings)["answer"]

    with gapless.load(folder, depth=1, max_rows=1, prefix_cache=False, **how) as vlm:
        alone = [one(vlm, number) for number in range(12)]
    assert len(set(alone)) == 12
    more = {"pages": 26, "picture_cache_host": "200KB", "max_step_ms": limit}
    with gapless.load(folder, depth=depth, max_rows=6, **how, **more) as vlm, ThreadPoolExecutor(12) as pool:
        for _ in range(3):
            assert list(pool.map(one, [vlm] * 12, range(12))) == alone
        stats = vlm.stats()
    assert min(stats[what] for what in ("host_hits", "prefix_copies", "prefix_evictions", "preemptions")) > 0
    assert (stats["prompt_parts"] > 0) == (limit is not None)
