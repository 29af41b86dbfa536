"""The query benchmark from end to end with a micro model, and its arithmetic on known latencies."""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.bench.small_rigs import RATES
from tests.fakes.inline_runtime import InlineRuntime
from tests.fakes.micro import CROP_SIZE, micro_config, micro_tensors, write_micro

from gapless.bench import cuda_rig
from gapless.bench.clients import ask, ask_all
from gapless.bench.latency import Sample, Slice, percentile, row_of
from gapless.bench.pictures import SIZES, jpegs
from gapless.bench.query import COLUMNS, Query
from gapless.bench.query_run import Options, QueryBench, fill_gains
from gapless.bench.vlm_rig import VlmRig
from gapless.cli.main import main
from gapless.images.crops import CropSpec, tiling
from gapless.kernels.choose import choose
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.registry import Loaded, load_model
from gapless.observe.accounting import Accounting
from gapless.observe.counters import Counters
from gapless.weights.folder import TOKENIZER
from gapless.weights.hub import ASSETS

FEWEST = {"short": 6, "long": 4}
SMALL = Options((1, 3), lengths={"short": (3, 3), "long": (12, 16)}, rounds=1, fewest=FEWEST, waves=2, seconds=600)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load_model(write_micro(tmp_path_factory.mktemp("micro"), max_context=800))


class SmallRig(VlmRig):
    def _measure_rates(self):
        return RATES


class InlineVlmRig(SmallRig):
    """On the CUDA device's own code."""

    def _open(self, model, table, config):
        return cuda_rig.open_device(model, table, config, runtime=InlineRuntime())


@pytest.fixture(scope="module")
def bench(loaded: Loaded) -> Iterator[QueryBench]:
    rig = SmallRig(loaded, rows=3)
    yield QueryBench(rig, SMALL)
    rig.close()


@pytest.fixture(scope="module")
def report(bench: QueryBench) -> dict[str, Any]:
    saved: list[str] = []
    found = bench.run(lambda report: saved.append(json.dumps(report)))
    assert len(saved) == SMALL.waves and json.loads(saved[-1])["rows"] == json.loads(json.dumps(found))["rows"]
    assert found["notes"] == []
    return found


def test_a_row_for_each_length_number_of_callers_and_depth_with_every_column(report: dict[str, Any]) -> None:
    keys = [(row["answer"], row["concurrency"], row["depth"]) for row in report["rows"]]
    assert keys == [(a, c, d) for a in ("short", "long") for c in (1, 3) for d in (1, 2)]
    for row in report["rows"]:
        assert set(COLUMNS) <= set(row)
        assert all(row[name] is not None for name in COLUMNS)
        assert row["requests"] == 2 * SMALL.requests(row["answer"], row["concurrency"])
        assert row["latency_p50_ms"] <= row["latency_p90_ms"] <= row["latency_p99_ms"]
        assert 0 < row["ttft_p50_ms"] < row["latency_p99_ms"]
        assert row["preemptions"] == 0
    assert Query(concurrency=(1, 3)).complete(report)
    assert not Query(concurrency=(1, 3, 7)).complete(report)


def test_answers_have_the_lengths_they_were_given_and_end_by_surprise(report: dict[str, Any]) -> None:
    for row in report["rows"]:
        low, high = SMALL.lengths[row["answer"]]
        assert low <= row["answer_tokens"] <= high
        if row["depth"] == 1:
            assert row["zombie_share"] == 0 and row["steps_in_flight"] <= 1
        else:
            assert row["zombie_share"] > 0


def test_lengths_differ_where_they_may(bench: QueryBench, report: dict[str, Any]) -> None:
    lengths = {sample.tokens for one in bench.slices["long", 3, 2] for sample in one.samples}
    assert len(lengths) > 1 and lengths <= set(range(12, 17))


def test_depths_really_take_turns(report: dict[str, Any]) -> None:
    order = [int(name.partition("depth ")[2][0]) for name in report["seconds"] if "callers" in name]
    assert order == [1, 2] * 4 + [2, 1] * 4


def test_gains_are_requests_per_second_above_depth_1(report: dict[str, Any]) -> None:
    rows = {(row["answer"], row["concurrency"], row["depth"]): row for row in report["rows"]}
    for (answer, callers, depth), row in rows.items():
        right = row["requests_per_s"] / rows[answer, callers, 1]["requests_per_s"] - 1
        assert row["observed_gain"] == pytest.approx(right, rel=1e-3)
        assert depth == 2 or row["observed_gain"] == 0
    alone = [{"answer": "short", "concurrency": 1, "depth": 2, "requests_per_s": 3.0}]
    fill_gains(alone)
    assert alone[0]["observed_gain"] is None


def test_the_picture_of_it(report: dict[str, Any]) -> None:
    image = Query(concurrency=(1, 3)).draw(report)
    assert image.height == 2 * 640 and len(set(np.asarray(image).reshape(-1, 3)[::997].sum(axis=1))) > 3
    with pytest.raises(ValueError, match="no row"):
        Query().draw({**report, "rows": []})


def test_on_the_gpus_own_code_redrawn_ends_reach_what_was_captured(loaded: Loaded) -> None:
    rig = InlineVlmRig(loaded, rows=2)
    try:
        vlm = rig.vlm(2)
        assert vlm.plan is not None and vlm.plan.graphs > 0
        for number, length in enumerate((3, 9, 3)):
            rig.end_after(2, length, length, seed=number)
            found = ask_all(vlm, jpegs(10 * number, 4, CROP_SIZE), 2, {})
            assert [sample.tokens for sample in found.samples] == [length] * 4
        assert "depth 2" in rig.facts()["memory"]
    finally:
        rig.close()


def test_random_weights_answer_with_another_models_tokenizer() -> None:
    raw = micro_config(max_context=800)
    raw["text"]["vocab_size"] = 4096  # more ids than the bundled tokenizer has words
    config = read_config(raw)
    model = Moondream(config, micro_tensors(raw, end_bias=-30.0), choose(torch.device("cpu"), exact=True))
    rig = SmallRig(Loaded(model, config, ASSETS / "glint" / TOKENIZER, "micro (random weights)", config.revision), 2)
    options = Options(concurrency=(2,), lengths={"long": (9, 9)}, rounds=1, waves=1, seconds=600)
    try:
        found = QueryBench(rig, options).run(list)
    finally:
        rig.close()
    assert found["notes"] == [] and [row["answer_tokens"] for row in found["rows"]] == [9.0, 9.0]


def test_percentiles_are_of_the_nearest_rank() -> None:
    values = [float(v) for v in range(100, 0, -1)]
    assert [percentile(values, p) for p in (50, 90, 99, 100, 0)] == [50, 90, 99, 100, 1]
    assert [percentile([3.0, 1.0, 2.0], p) for p in (50, 90, 99)] == [2, 3, 3]
    assert percentile([7.0], 50) == percentile([7.0], 99) == 7.0
    assert percentile([4.0, 1.0], 50) == 1.0
    with pytest.raises(ValueError, match="no value"):
        percentile([], 50)


def spent(tokens: int, zombies: int, busy: float, idle: float) -> Accounting:
    counters = Counters(tokens=tokens, zombies=zombies)
    return Accounting(counters, {"decode": 1}, {"decode": busy}, idle, {}, (0.0, 1.0, 1.0))


def test_a_row_of_known_latencies() -> None:
    first = Slice(tuple(Sample(1.0, 10.0 + i, 100.0 + i, 5.0, 3) for i in range(10)), 2.0, spent(30, 10, 90.0, 10.0))
    second = Slice((Sample(3.0, 50.0, 500.0, None, 1),), 3.0, spent(1, 0, 60.0, 40.0))
    row = row_of("short", 4, 2, [first, second])
    assert (row["requests"], row["requests_per_s"], row["slices"]) == (11, 2.2, [0.33333, 5.0])
    assert [row[f"latency_p{p}_ms"] for p in (50, 90, 99)] == [105.0, 109.0, 500.0]
    assert [row[f"ttft_p{p}_ms"] for p in (50, 90, 99)] == [15.0, 19.0, 50.0]
    assert [row[f"tpot_p{p}_ms"] for p in (50, 90, 99)] == [5.0, 5.0, 5.0]
    assert row["prepare_p50_ms"] == 1.0
    assert (row["idle_share"], row["answer_tokens"], row["tokens_per_s"]) == (0.25, 2.8182, 6.2)
    assert row["zombie_share"] == pytest.approx(10 / 41, rel=1e-4)
    assert row["steps_in_flight"] == 1.5


class SlowVLM:
    """Takes `pause` for an answer, if anybody else asks meanwhile; counts who was there."""

    def __init__(self, callers: int) -> None:
        self.together = threading.Barrier(callers)
        self.seen: Counter[bytes] = Counter()
        self.most = 0

    def encode_image(self, data: bytes) -> bytes:
        return data

    def query(self, image: bytes, question: str, settings: Any) -> dict[str, Any]:
        self.most = max(self.most, 1 + self.together.n_waiting)
        self.together.wait(timeout=10)
        self.seen[image] += 1
        return {"metrics": {"output_tokens": 3, "ttft_ms": 2.0, "decode_time_ms": 8.0}}

    def accounting(self) -> Accounting:
        return spent(0, 0, 0.0, 0.0)


def test_callers_ask_at_once_and_about_each_picture_once() -> None:
    vlm: Any = SlowVLM(4)
    found = ask_all(vlm, [bytes([i]) for i in range(8)], 4, {})
    assert vlm.most == 4 and set(vlm.seen.values()) == {1} and len(found.samples) == 8
    assert all(s.ttft_ms == s.prepare_ms + 2.0 and s.tpot_ms == 4.0 for s in found.samples)
    assert row_of("short", 4, 1, [found])["idle_share"] is None


def test_a_request_that_fails_is_told() -> None:
    vlm: Any = SimpleNamespace(
        encode_image=bytes, accounting=lambda: spent(0, 0, 0.0, 0.0), query=lambda *_, **__: 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        ask_all(vlm, [b"1", b"2"], 2, {})
    with pytest.raises(ZeroDivisionError):
        ask(vlm, b"1", {})


def test_no_caller_waits_for_one_that_could_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    submit = ThreadPoolExecutor.submit

    def refused(pool: ThreadPoolExecutor, work: Any) -> Any:
        if len(begun) == 2:
            raise RuntimeError("can't start new thread")
        begun.append(submit(pool, work))
        return begun[-1]

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
    vlm: Any = SlowVLM(4)
    with pytest.raises(RuntimeError, match="new thread"):
        ask_all(vlm, [b"1", b"2"], 4, {})
    assert len(begun) == 2 and all(caller.done() for caller in begun) and not vlm.seen


def test_no_two_pictures_are_alike_and_their_sizes_go_round() -> None:
    found = jpegs(3, 9, 378)
    assert len(set(found)) == 9 and found == jpegs(3, 9, 378)
    sizes = [Image.open(io.BytesIO(data)).size for data in found[1:5]]
    spec = CropSpec()
    tiles = [np.prod(tiling(*size, spec)) for size in sizes]
    assert tiles == sorted(tiles) and tiles[0] == 1 and tiles[-1] == spec.max_crops and len(set(sizes)) == len(SIZES)


def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gapless.bench.vlm_rig.measure_rates", lambda *_: RATES)
    folder = write_micro(tmp_path / "micro", max_context=800)
    words = ["--model", str(folder), "--device", "cpu", "--concurrency", "1", "--depth", "2", "--waves", "1"]
    out, png = tmp_path / "made" / "query.json", tmp_path / "made" / "query.png"
    assert main(["bench", "query", *words, "--out", str(out), "--png", str(png)]) == 0
    told, err = capsys.readouterr()
    assert "requests_per_s" in told and "micro, float32" in told and "reading" in told and str(png) in err
    report = json.loads(out.read_text())
    assert [row["answer_tokens"] for row in report["rows"]] == [3, pytest.approx(110, abs=10)]
    assert Image.open(png).height == 1280
    assert main(["bench", "query", "--compare", str(out), str(out), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2
