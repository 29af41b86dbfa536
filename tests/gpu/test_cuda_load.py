"""The library and the command line on a GPU: the same answers at every depth, with graphs and without; the plan."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from PIL import Image

import gapless
from gapless.cli.main import main
from gapless.config import CudaDeviceConfig, EngineConfig
from gapless.constrain.table import build_table
from gapless.device.cuda import CudaDevice
from gapless.device.pictures import CROP_BUCKETS
from gapless.errors import InvalidRequest, NotEnoughMemory
from gapless.models.moondream.templates import Templates
from gapless.models.registry import random_model

pytestmark = pytest.mark.gpu
PICTURES = [np.random.default_rng(i).integers(0, 256, (90 + 30 * i, 200, 3), dtype=np.uint8) for i in range(3)]


def answers(vlm) -> list:
    said = vlm.caption(PICTURES, settings={"max_tokens": 20})
    said += vlm.detect(PICTURES, "square", settings={"max_objects": 4})
    said += vlm.point(PICTURES, "circle", settings={"max_objects": 4})
    return [{key: value for key, value in one.items() if key != "metrics"} for one in said]


def test_answers_are_the_same_at_every_depth_with_graphs_and_without():
    found = []
    for depth, graphs, constraints in ((1, False, "device"), (2, True, "device"), (3, True, "host")):
        with gapless.load(
            "glint", device="cuda", dtype="float32", depth=depth, graphs=graphs, constraints=constraints, max_rows=4
        ) as vlm:
            assert (vlm.plan.graphs > 0) == graphs and "pages of 16 tokens" in str(vlm.plan)
            found.append(answers(vlm))
    assert len(found[0]) == 9
    assert [a.keys() for a in found[0]] == [a.keys() for a in found[1]]
    assert found[1] == found[0] and found[2] == found[0]


def test_auto_is_the_gpu_and_numbers_that_are_not_there_are_told():
    with gapless.load("glint", max_rows=2) as vlm:
        assert vlm.plan is not None and vlm.plan.rows == 2
        assert vlm.query(None, "what is this?", settings={"max_tokens": 3})["answer"] is not None
    with pytest.raises(InvalidRequest, match="GPUs are numbered 0 to"):
        gapless.load("glint", device="cuda:99")
    with pytest.raises(NotEnoughMemory, match="free after the weights"):
        gapless.load("glint", device="cuda", pages=2**24, page_size=64)


def test_the_command_line_says_the_plan(tmp_path, capsys):
    Image.fromarray(PICTURES[0]).save(tmp_path / "a.png")
    words = ["caption", str(tmp_path / "a.png"), "--device", "cuda:0", "--max-tokens", "5"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out.strip() and "KV cache" in err and "graphs in" in err
    assert main([*words, "--graphs", "off"]) == 0
    assert "no graphs" in capsys.readouterr().err


def test_a_full_size_start(capsys):
    loaded = random_model("moondream-2", "cuda", "bfloat16")
    table = build_table(Templates.of(loaded.config).rules())
    device = CudaDevice(loaded.model, table, EngineConfig(max_rows=128), CudaDeviceConfig())
    stages = [stage.name for stage in device.prepare()]
    prompts = len(device.program.packs.buckets)
    with capsys.disabled():
        print(f"\n{device.plan}")
    assert len(stages) == device.plan.graphs == 11 * (2 * 2 + 5) + 2 + len(CROP_BUCKETS) + prompts
    device.close()
    torch.cuda.empty_cache()


def test_loading_again_and_again_takes_no_more_memory():
    """What cuBLAS keeps for a stream (32 MiB and more on Hopper) is kept once, however many engines come and go.

    The second round is the measure: an engine's thread may leave its handle to the next one only after that has begun.
    """
    held = []
    for _ in range(8):
        with gapless.load("glint", device="cuda", max_rows=4) as vlm:
            vlm.caption(PICTURES[0], settings={"max_tokens": 5})
        del vlm
        gc.collect()
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_allocated())
    assert max(held[2:]) - held[1] < 64 * 2**20, held
