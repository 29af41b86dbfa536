"""The benchmarks of prefills and of pictures from end to end with a micro model, and the arithmetic behind them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.bench.small_rigs import CONFIG, MODEL, RATES, InlineRig, MicroRig, shorten
from tests.fakes.micro import micro_model, write_micro
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gapless.bench.flops import Work, encoder_work, prefill_work
from gapless.bench.prefill import COLUMNS as PREFILL_COLUMNS
from gapless.bench.prefill import Prefill
from gapless.bench.prefill_run import Options, PrefillBench
from gapless.bench.rates import Rates, measure_rates, on_worker
from gapless.bench.roofline import decode_weight_bytes
from gapless.bench.vision import COLUMNS as VISION_COLUMNS
from gapless.bench.vision_run import tiling_of
from gapless.cli.main import main
from gapless.models.moondream.config import REVISIONS, TextConfig, VisionConfig

SMALL = Options(texts=(5, 40), batches=(1, 3), steps=4, seconds=600)


@pytest.mark.parametrize("kind", [MicroRig, InlineRig])
def test_steps_of_so_many_prompts_each_with_a_block_of_its_own(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)
    rig = kind(9, prompt=40) if kind is MicroRig else kind((1, 3, 9), prompt=40)
    try:
        bench = PrefillBench(rig, SMALL)
        report = bench.run(list)
        counters = rig.session(2).engine.counters
    finally:
        rig.close()
    assert report["notes"] == []
    assert [(row["batch"], row["text_tokens"]) for row in report["rows"]] == [(1, 5), (1, 40), (3, 5), (3, 40)]
    for row in report["rows"]:
        assert set(PREFILL_COLUMNS) <= set(row) and all(row[name] is not None for name in PREFILL_COLUMNS)
        assert row["steps"] == SMALL.steps and row["positions"] == MODEL.prefix + row["text_tokens"]
        work = prefill_work(CONFIG.text, row["text_tokens"], row["batch"], 4)
        assert row["tflop_per_s"] == pytest.approx(work.flops / row["ms"] / 1e9, rel=1e-3)
        assert row["roofline_share"] == pytest.approx(row["floor_ms"] / row["ms"], rel=1e-3)
        if kind is InlineRig:  # on its clock all steps take the same
            period = row["ms"] / (1 - row["idle_share"])
            assert row["tokens_per_s"] == pytest.approx(1e3 * row["batch"] * row["positions"] / period, rel=1e-3)
    assert counters.prefill_steps == 4 * (SMALL.steps + 1) and counters.decode_steps == counters.zombies == 0
    assert counters.tokens == counters.finished == 2 * (1 + 3) * (SMALL.steps + 1)
    prefill = Prefill(texts=SMALL.texts, batches=SMALL.batches)
    assert prefill.complete(report) and prefill.draw(report).height == 640
    assert not Prefill().complete(report)


def counted(work: Callable[[], object]) -> int:
    """Operations that torch counts; attention is made of products that it knows."""
    with FlopCounterMode(display=False) as found, sdpa_kernel(SDPBackend.MATH), torch.inference_mode():
        work()
    return found.get_total_flops()


def test_operations_of_the_tower_are_those_that_torch_counts() -> None:
    vision = CONFIG.vision
    model = micro_model()
    for crops in (1, 4):
        pixels = torch.zeros(crops, vision.crop_size, vision.crop_size, 3, dtype=torch.uint8)
        assert encoder_work(vision, crops, 4).flops == counted(partial(model.vision.encode, pixels))


def test_operations_of_a_prompt_are_those_that_torch_counts() -> None:
    text, model = CONFIG.text, micro_model()
    cache, pages = model.new_cache(8, 16), torch.arange(1, 3)
    picture = torch.zeros(model.prefix - 1, text.dim)
    head = 2 * text.dim * text.vocab_size
    block = counted(partial(model.prefill_prefix, picture, cache, pages))
    assert prefill_work(text, 0, 1, 4).flops == block + head
    assert prefill_work(text, 0, 5, 4).flops == 5 * prefill_work(text, 0, 1, 4).flops
    one, two = (prefill_work(text, ids, 1, 4).flops for ids in (7, 8))
    matrices = text.n_layers * (4 * text.dim**2 + 2 * text.dim * text.ff_dim)
    assert two - one == 2 * matrices + 4 * text.n_layers * text.dim * (text.prefix_attn + 8)


def test_moondream_2_by_hand() -> None:
    weights = prefill_work(TextConfig(), 16, 8, 2).weight_bytes
    assert weights == pytest.approx(decode_weight_bytes(TextConfig(), 2), rel=1e-3)
    assert prefill_work(TextConfig(), 0, 1, 2).flops == pytest.approx(
        2 * 1.208e9 * 730 + 4 * 24 * 2048 * 730**2, rel=0.01
    )
    assert encoder_work(VisionConfig(), 1, 2).flops == pytest.approx(
        2 * 0.412e9 * 729 + 4 * 27 * 1152 * 729**2, rel=0.01
    )


def test_moondream_3_by_hand() -> None:
    """A token takes 16.78 M weights of attention and 0.39 M of tau in 24 layers, 33.55 M of feed-forward in 4, a router
    of 0.13 M and 8 experts of 6.29 M in 20: 1.556 G. A prompt's tokens read all 64 experts: 8.71 G with the head."""
    text = REVISIONS["moondream3"].text
    token = 24 * (4 * 2048**2 + 2 * 32 * 6144) + 4 * 2 * 2048 * 8192 + 20 * (64 * 2048 + 8 * 3 * 1024 * 2048)
    assert token == pytest.approx(1.556e9, rel=1e-3)
    head = 2048 * 51200
    block = prefill_work(text, 0, 1, 2)
    assert block.flops == 2 * token * 730 + 4 * 24 * 2048 * 730**2 + 2 * head
    assert block.weight_bytes == pytest.approx(2 * (token + head + 20 * 56 * 3 * 1024 * 2048), rel=1e-6)
    assert block.weight_bytes == pytest.approx(2 * 8.707e9, rel=1e-3)
    narrow = prefill_work(text, 0, 1, 2, 1)
    assert narrow.flops == block.flops
    assert block.weight_bytes - narrow.weight_bytes == pytest.approx(20 * 64 * 3 * 1024 * 2048, rel=1e-6)
    one, two = (prefill_work(text, ids, 1, 2).flops for ids in (7, 8))
    assert two - one == 2 * token + 4 * 24 * 2048 * (730 + 8)


def test_the_floor_is_the_higher_of_two() -> None:
    rates = Rates({"sum": 1e12, "copy": 9e12}, {64: 1e14, 128: 2e14}, "bfloat16")
    assert Work(2e11, 1e9).floor_ms(rates) == pytest.approx(1.0)
    assert Work(2e11, 5e9).floor_ms(rates) == pytest.approx(5.0)
    assert Work(2e11, 1e9).tflop_per_s(2.0) == pytest.approx(100.0)
    assert rates.as_dict()["matmul_tflop_per_s"] == {"bfloat16 64": 100.0, "bfloat16 128": 200.0}


def test_rates_are_measured_with_the_devices_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.bench.rates.SIDES", {"cpu": (64,)})
    monkeypatch.setattr("gapless.bench.rates.cpu_threads", lambda: 1)
    before = torch.get_num_threads()
    device = torch.device("cpu")
    rates, threads = on_worker(lambda: (measure_rates(device, torch.float32, 2**20), torch.get_num_threads()), device)
    assert rates.bandwidth == max(rate for name, rate in rates.reads.items() if name != "copy") > 0
    assert rates.flops > 0 and rates.dtype == "float32"
    assert threads == 1 and torch.get_num_threads() == before


@pytest.mark.parametrize(("tiles", "shape"), [(1, (1, 1)), (4, (2, 2)), (12, (3, 4)), (7, (1, 7))])
def test_tiles_are_laid_out_as_square_as_they_come(tiles: int, shape: tuple[int, int]) -> None:
    assert tiling_of(tiles) == shape


def test_both_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("vision_run", "rig"):
        monkeypatch.setattr(f"gapless.bench.{module}.measure_rates", lambda *_: RATES)
    model = ("--model", str(write_micro(tmp_path / "micro", max_context=800)), "--device", "cpu")
    png = tmp_path / "vision.png"
    assert main(["bench", "vision", *model, "--crops", "1", "--crops", "5", "--json", "--png", str(png)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["crops"] for row in report["rows"]] == [1, 5] and set(report["rows"][0]) == set(VISION_COLUMNS)
    assert report["rows"][0]["ms"] is None and report["rows"][1]["ms"] > 0
    assert report["rows"][1]["crops_per_s"] == pytest.approx(5000 / report["rows"][1]["encoder_ms"], rel=1e-3)
    assert Image.open(png).height == 640
    out = tmp_path / "prefill.json"
    assert main(["bench", "prefill", *model, "--text", "9", "--batch", "2", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "tokens_per_s" in told and "micro, float32" in told
    assert [(row["batch"], row["text_tokens"]) for row in json.loads(out.read_text())["rows"]] == [(2, 9)]
    assert main(["bench", "prefill", *model, "--text", "800"]) == 1
    assert "800 tokens behind a picture do not fit" in capsys.readouterr().err
    assert main(["bench", "prefill", "--compare", str(out), str(out)]) == 0
    assert "batch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["vision", "--crops", "2", "--crops", "74"], "no picture has 74 crops; glint makes up to 73"),
        (["decode", "--prompt", "700"], "700 ids behind a picture leave no room for an answer; glint has room for 646"),
        (
            ["decode", "--model", "moondream-3"],
            "random weights of moondream-3 take 37.1 GB on a CPU, but",
        ),
    ],
    ids=["crops", "prompt", "memory"],
)
def test_what_cannot_be_measured_is_refused_at_once(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gapless.models.machine.machine_memory", lambda: 25 * 10**9)
    assert main(["bench", *words]) == 1
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1
