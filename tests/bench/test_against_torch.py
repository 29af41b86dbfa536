"""A benchmark beside itself with torch's kernels: what is chosen, what is compared, and what is said on a CPU."""

import json
from dataclasses import replace

import pytest
import torch
from tests.fakes.micro import write_micro

from gapless.bench.against import SAME, AgainstTorch, beside, chosen
from gapless.bench.decode import Decode
from gapless.bench.prefill import Prefill
from gapless.bench.query import Query
from gapless.bench.vision import Vision
from gapless.cli.main import main
from gapless.device import quick_rows
from gapless.device.rows import RowStore
from gapless.kernels import choose, reference
from gapless.kernels.graphed import Graphed


def report_of(benchmark, kernels, **rows):
    column = {"decode": "period_ms", "query": "requests_per_s"}[benchmark]
    told = [{"sampler": name, "streams": 8, "depth": 2, column: value, "idle_ms": 0.1} for name, value in rows.items()]
    return {"benchmark": benchmark, "kernels": kernels, "rows": told, "notes": ["late"]}


def test_each_row_has_what_torch_took_and_the_speed_up():
    found = beside(report_of("decode", "Triton", greedy=2.0, default=3.0), report_of("decode", "torch", greedy=7.0))
    assert [(row["torch_period_ms"], row["speed_up"]) for row in found["rows"]] == [(7.0, 3.5), (None, None)]
    assert found["notes"] == ["late", "torch's kernels: late"]
    assert found["against"]["kernels"] == "torch" and found["against"]["rows"][0]["period_ms"] == 7.0
    rates = beside(report_of("query", "Triton", greedy=30.0), report_of("query", "torch", greedy=20.0))
    assert rates["rows"][0]["speed_up"] == 1.5


def test_equal_kernels_are_said_to_be_equal():
    both = beside(report_of("decode", "torch", greedy=2.0), report_of("decode", "torch", greedy=2.1))
    assert both["notes"][-1] == SAME
    unknown = beside(report_of("decode", "torch", greedy=None), report_of("decode", "Triton", greedy=2.1))
    assert unknown["rows"][0]["speed_up"] is None and SAME not in unknown["notes"]


@pytest.mark.parametrize("benchmark", [Decode(), Prefill(), Vision(), Query()], ids=str)
def test_what_is_compared_stands_beside_what_it_is_compared_with(benchmark):
    both = chosen(benchmark, replace(benchmark, plain=True), True)
    assert isinstance(both, AgainstTorch) and both.plain.plain and not both.fast.plain
    columns, usual = both.tables["rows"], benchmark.tables["rows"]
    at = columns.index("speed_up")
    assert columns[at - 1] == f"torch_{columns[at - 2]}" and [c for c in columns if c in usual] == list(usual)
    assert both.title.startswith(benchmark.title)
    assert chosen(benchmark, replace(benchmark, plain=True), False) is benchmark


def test_plain_is_torch_alone_whatever_there_is(monkeypatch):
    gpu = torch.device("cuda")
    monkeypatch.setattr(choose, "find_spec", lambda name: name)
    monkeypatch.setattr(choose, "has_grouped", lambda device: False)
    monkeypatch.setattr(choose, "_triton", lambda device: "Triton's")
    assert choose.choose(gpu) == "Triton's" and choose.name_of(choose.choose(gpu)) == "Triton"
    assert type(choose.choose(gpu, plain=True)) is Graphed
    assert choose.name_of(choose.choose(gpu, plain=True)) == choose.name_of(reference) == "torch"
    monkeypatch.setattr("gapless.device.rows.quick_rows", lambda device: "quick")
    cpu = torch.device("cpu")
    assert RowStore(4, 4, cpu).kernels == "quick" and RowStore(4, 4, cpu, plain=True).kernels is None
    assert quick_rows.quick_rows(cpu) is None


@pytest.mark.slow
def test_the_command_measures_twice_and_says_that_a_cpu_has_one_set(tmp_path, capsys):
    folder = str(write_micro(tmp_path / "micro"))
    words = ["bench", "prefill", "--model", folder, "--device", "cpu", "--text", "5", "--batch", "1", "--against-torch"]
    assert main([*words, "--json", "--out", str(tmp_path / "report.json")]) == 0
    report = json.loads(capsys.readouterr().out)
    (row,) = report["rows"]
    assert row["torch_ms"] > 0 and row["speed_up"] == pytest.approx(row["torch_ms"] / row["ms"], rel=1e-3)
    assert report["kernels"] == report["against"]["kernels"] == "torch" and report["notes"][-1] == SAME
    assert json.loads((tmp_path / "report.json").read_text())["against"] == report["against"]
