"""Numbers that the pages tell about GPUs are those of the code."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gapless.api.load import LARGEST, ROWS
from gapless.config import EngineConfig
from gapless.device.gpus import OLDEST
from gapless.device.sizing import SPARE, GpuPlan, device_limits
from gapless.kernels.triton.table import built_in, capabilities
from gapless.models.base import Model
from gapless.models.moondream.model import Moondream
from gapless.models.registry import load_model, random_config

ROOT = Path(__file__).resolve().parents[2]
README, PAGE, MEASURED = (
    " ".join((ROOT / name).read_text().split()) for name in ("README.md", "docs/gpu.md", "docs/performance.md")
)


class FullSize:
    """Moondream 2 without its weights: what sizing asks of a model."""

    config, dtype, kv_dtype = random_config("moondream-2"), torch.bfloat16, torch.bfloat16
    max_context, prefix, vocab = config.text.max_context, 730, config.text.vocab_size
    page_bytes, picture_bytes = Moondream.page_bytes, Moondream.picture_bytes


def pages(model: Model, rows: int) -> int:
    return device_limits(model, EngineConfig(max_rows=rows), 2**62).pages


@pytest.fixture(scope="module")
def glint() -> Model:
    return load_model("glint", "cpu").model


def test_the_line_at_the_start_is_the_plans_own(glint: Model) -> None:
    bare = GpuPlan("NVIDIA H200", 150_110_000_000, 740_000_000, 1_150_000_000, 410_000_000, 4161, 16, ROWS["cuda"])
    table = built_in((9, 0))
    assert table is not None
    whole = replace(bare, graphs=56, graph_bytes=80_000_000, seconds=0.7, tiles=table.source)
    assert f"gapless: {whole}" in PAGE
    known = ", ".join(f"{major}.{minor}" for major, minor in capabilities()[:-1])
    assert f"{known} and {{}}.{{}}".format(*capabilities()[-1]) in " ".join(PAGE.split())
    assert pages(glint, ROWS["cuda"]) == 4161


def test_pages_and_their_size(glint: Model) -> None:
    assert pages(glint, 64) == 64 * 65 + 1 and pages(FullSize(), 64) == 64 * 129 + 1
    assert "65 pages each for glint, 129 for Moondream 2" in PAGE
    size = FullSize().page_bytes(16)
    assert f"A page of 16 tokens takes {size / 1e6:.1f} MB" in PAGE
    assert f"64 rows are {64 * 129 * size / 1e9:.0f} GB" in PAGE
    assert SPARE == 2**30 and "1 GiB, and twice what one full step" in PAGE


def test_ranges_and_defaults() -> None:
    told = dict(re.findall(r"\| `(\w+)` \| [^|]+ \| ([^|]+) \|", README))
    assert told["depth"] == f"1 to {LARGEST['depth']}"
    assert told["max_rows"] == f"1 to {LARGEST['max_rows']}"
    assert told["pages"] == f"2 to {LARGEST['pages']}"
    assert told["threads"] == f"1 to {LARGEST['threads']}"
    assert told["page_size"].endswith(f"up to {LARGEST['page_size']}")
    assert f"{ROWS['cpu']}, on a GPU {ROWS['cuda']}" in README
    oldest = f"compute capability {OLDEST[0]}.{OLDEST[1]} or newer"
    assert oldest in README and oldest in PAGE


def test_measured_times_add_up_as_well_as_is_said() -> None:
    rows = json.loads((ROOT / "benchmarks" / "h200" / "decode-moondream2.json").read_text())["rows"]
    told = [r for r in rows if r["depth"] == 2 and r["sampler"] == "greedy"]
    off = [abs(r["device_ms"] + r["gap_ms"] - r["period_ms"]) for r in told]
    assert len(off) == 4 and max(off) < 0.05
    assert "within 0.05 ms" in MEASURED and "within 0.05 ms" in PAGE
    for row in told:
        assert f"| {row['streams']} | " in MEASURED and f"| {row['gap_ms']:.3f} ms | " in MEASURED
        assert f"| +{100 * row['predicted_gain']:.1f} % | +{100 * row['observed_gain']:.1f} % |" in MEASURED


def test_the_readme_sums_it_up() -> None:
    rows = json.loads((ROOT / "benchmarks" / "h200" / "decode-moondream2.json").read_text())["rows"]
    greedy = [r for r in rows if r["sampler"] == "greedy"]
    gains = [round(100 * r["observed_gain"]) for r in greedy if r["depth"] == 2]
    assert f"gives {min(gains)} to {max(gains)} % more tokens a second" in README
    periods = [f"{r['period_ms']:.2f}" for r in greedy if r["depth"] == 2]
    assert f"takes {', '.join(periods[:-1])} and {periods[-1]} ms" in README
    idle = {depth: [r["gap_ms"] for r in greedy if r["depth"] == depth] for depth in (1, 2)}
    assert f"from {min(idle[1]):.1f} ms or more to {max(idle[2]):.3f} at most," in README


def test_the_prediction_is_as_near_as_is_said() -> None:
    rows = json.loads((ROOT / "benchmarks" / "h200" / "decode-moondream2.json").read_text())["rows"]
    far = math.ceil(1000 * max(abs(r["predicted_gain"] - r["observed_gain"]) for r in rows)) / 10
    assert len(rows) == 24
    assert f"With the other kinds of rows, too, all predictions are within {far:.1f} points" in MEASURED
    for row in rows:
        if row["depth"] == 2 and row["sampler"] in ("spatial", "adapters"):
            assert f"| {row['period_ms']:.3f} ms | +{100 * row['over_greedy']:.1f} % |" in MEASURED


def test_callers_of_the_library_wait_as_is_said() -> None:
    rows = json.loads((ROOT / "benchmarks" / "h200" / "query-moondream2.json").read_text())["rows"]
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    assert len(pairs) == 8
    for one, two in pairs:
        assert (one["depth"], two["depth"]) == (1, 2) and one["concurrency"] == two["concurrency"]
        change = f"{100 * two['observed_gain']:+.0f} %"
        assert f"| {one['requests_per_s']:.1f} → {two['requests_per_s']:.1f} ({change}) |" in MEASURED


def test_a_second_question_is_as_fast_as_is_said() -> None:
    told = json.loads((ROOT / "benchmarks" / "h200" / "warm-question-moondream2.json").read_text())
    assert told["size"] == [640, 480] and told["warm_share"] <= 0.15, "what was wanted"
    first = f"{told['cold_ms']:.1f} ms from the bytes of a JPEG of 640 × 480 to the first token of the first question, "
    share, spent = f"({100 * told['warm_share']:.0f} %)", f"{told['warm_parts']['device_ms']:.1f}"
    second = f"{told['warm_ms']:.1f} to that of the second {share}, of which the GPU computes {spent}"
    assert f"medians of {told['rounds']} pictures" in MEASURED
    assert f"{first}{second}, and {told['turn_ms']:.1f} to that of a" in MEASURED
    for other in told["others"]:
        share = f"({100 * other['warm_share']:.0f} %)"
        assert f"{other['cold_ms']:.1f} and {other['warm_ms']:.1f}" in MEASURED and share in MEASURED
    assert f"it is {told['gone_ms']:.1f} ms, and {told['host_ms']:.1f} if what vision made" in MEASURED


def test_gaps_while_pictures_come_in_are_those_that_are_said() -> None:
    told = json.loads((ROOT / "benchmarks" / "h200" / "gaps-moondream2.json").read_text())
    asked, rows = told["asked"], {row["way"]: row for row in told["rows"]}
    for row in rows.values():
        gaps = f"| {row['gap_p50_ms']:.2f} ms | {row['gap_p99_ms']:.1f} ms | {row['longest_gap_ms']:.1f} ms | "
        assert f"{gaps}{row['tpot_p99_ms']:.2f} ms |" in MEASURED
    for name, digits in (("longest_gap", 1), ("tpot_p99", 2)):
        found = rows["cut"][f"{name}_ms"]
        assert found <= asked[f"{name}_ms"] and asked[name]
        assert f"{asked[f'{name}_ms']:.1f} ms: it is {found:.{digits}f}." in MEASURED
