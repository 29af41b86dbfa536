"""Reports of several models in one."""

from __future__ import annotations

import pytest

from gapless.bench.decode import Decode
from gapless.bench.gain_plot import gain_bars
from gapless.bench.joined import joined
from gapless.bench.load import load, names_of
from gapless.bench.model_report import report_rows


def report(name: str, period: float) -> dict:
    row = {"sampler": "greedy", "streams": 8, "device_ms": 2.0, "plan_ms": 0.1, "launch_ms": 0.1, "commit_ms": 0.1}
    row |= {"answer_tokens": 100.0, "predicted_gain": 0.0, "observed_gain": period, "sampling_ms": 0.1}
    return {
        "benchmark": "decode",
        "machine": {"cpu": "one"},
        "device": "cuda",
        "model": {"name": name, "dtype": "bfloat16"},
        "roofline": {"read_gb_per_s": period},
        "read_gb_per_s": {"copy": period},
        "rows": [{**row, "depth": depth, "period_ms": period} for depth in (1, 2)],
        "host": [{"device": "null", "rows": 8}],
        "seconds": {"waves": period},
        "notes": [f"{name} was measured"],
    }


def test_one_report_stays_as_it_is() -> None:
    assert joined([report("a", 3.0)]) == report("a", 3.0)


def test_of_several_each_row_says_its_model_and_each_model_its_facts() -> None:
    whole = joined([report("a", 3.0), report("b", 4.0)])
    assert [(row["model"], row["period_ms"]) for row in whole["rows"]] == [("a", 3.0)] * 2 + [("b", 4.0)] * 2
    assert [part["model"] for part in whole["host"]] == ["a", "b"]
    assert whole["model"] == {"name": "a, b", "dtype": "bfloat16"} and "roofline" not in whole
    assert whole["models"]["b"]["roofline"]["read_gb_per_s"] == 4.0 and whole["read_gb_per_s"] == {"copy": 3.0}
    assert whole["seconds"] == {"a: waves": 3.0, "b: waves": 4.0}
    assert whole["notes"] == ["a: a was measured", "b: b was measured"]


def test_gains_are_each_models_own() -> None:
    whole = joined([report("a", 3.0), report("b", 4.0)])
    lines = report_rows(whole["rows"])
    assert [(line.sampler, line.observed) for line in lines] == [("a, greedy", 3.0), ("b, greedy", 4.0)]
    assert [line.predicted.point.blocking_ms for line in lines] == [3.0, 4.0]
    assert [(bars.group, bars.observed) for bars in gain_bars(whole["rows"])] == [("a", 3.0), ("b", 4.0)]


def test_several_kinds_of_random_weights_may_be_named() -> None:
    assert names_of("moondream-3,moondream-3.1") == ["moondream-3", "moondream-3.1"]
    assert names_of(None) == [None] and names_of("a/folder, with a comma") == ["a/folder, with a comma"]
    both = Decode("moondream-3,moondream-3.1", "cuda", streams=(8,), depths=(2,), sampler="greedy")
    rows = [{"period_ms": 1.0, "forward_ms": 1.0}]
    assert both.complete({"device": "cuda, graphs", "rows": rows * 2})
    assert not both.complete({"device": "cuda, graphs", "rows": rows})


@pytest.mark.parametrize("size", ["small", "small-3.1"])
def test_random_weights_are_loaded_by_the_name_of_their_size(size: str) -> None:
    loaded = load(size, "cpu")
    assert loaded.name == f"{size} (random weights)" and (loaded.config.text.moe is None) is (size == "small")
