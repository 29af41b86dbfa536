"""Real arithmetic in parts: a micro model says the same of prompts that are cut, and pictures are the same pictures."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.fakes.micro import micro_config, micro_tensors
from tests.fakes.refereed import Refereed
from tests.fakes.scene import Entry, Stage
from tests.fakes.sim_clock import SimClock
from tests.gpu.near_tie import Reader, divergence

from gapless.config import EngineConfig, HostDeviceConfig
from gapless.constrain.masks import TableMasks
from gapless.constrain.table import build_table
from gapless.costs import Costs
from gapless.device.host import HostDevice
from gapless.device.pictures import CropBatch, Shown
from gapless.engine.build import Engine
from gapless.engine.mailbox import ThreadMailbox
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates
from gapless.records import Picture, Prompt, Request, Sampling

COSTS = Costs(((1, 1e-3), (2, 2e-3), (13, 9e-3)), ((8, 1e-3), (32, 3e-3)))
TILING = (2, 3)


@pytest.fixture(scope="module")
def model():
    """In float32, with a tower that pictures go through together."""
    made = Moondream(read_config(micro_config()), micro_tensors(micro_config(), end_bias=-30.0))
    made.tower = made.vision
    return made


def picture(seed):
    crops = np.random.default_rng(seed).integers(0, 256, (7, 56, 56, 3), dtype=np.uint8)
    return Picture(f"{seed:064x}", crops, TILING, 56, 56)


def answers(model, limit, depth):
    """What is said of long prompts and large pictures, and in how many parts they were computed."""
    table = build_table(Templates.of(model.config).rules())
    config = EngineConfig(depth, max_rows=4, page_size=16, pages=80, lookahead=4)
    clock, mailbox = SimClock(), ThreadMailbox()
    device = Refereed(HostDevice(model, table, config, HostDeviceConfig(threads=1, poison=True)), table)
    device.told = COSTS
    rng, entries = np.random.default_rng(1), []
    for number in range(1, 6):
        ids = tuple(int(i) for i in rng.integers(22, 120, 70 if number % 2 else 6))
        prompt = Prompt(ids, ((),) * len(ids), picture(number % 3))
        request = Request(number, prompt, "text", Sampling(max_tokens=30, top_logprobs=2))
        entries.append(Entry(request, arrives=4 * number))
    try:
        engine = Engine(device, table, replace(config, max_step_ms=limit), TableMasks(), mailbox, clock)
        heard = Stage(engine, mailbox, clock).play(entries)
        device.audit()
        return [(e.request, heard[e.request.id].tokens) for e in entries], device.referee.tally, table
    finally:
        device.close()


@pytest.mark.parametrize("depth", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_cut_prompt_says_what_a_whole_one_says(model, depth):
    """Near-ties apart: crops are encoded in other numbers, which rounds differently."""
    whole, quiet, table = answers(model, None, 1)
    cut, tally, _ = answers(model, 3.0, depth)
    assert quiet.parts == 0 and min(tally.parts, tally.looks, tally.looked) > 1
    for (request, one), (_, other) in zip(whole, cut, strict=True):
        found = divergence(Reader(model), table, request, one, other)
        assert found is None or found.near, found


@torch.inference_mode()
def test_a_picture_encoded_over_several_steps_is_the_same_picture(model):
    batch, pixels = CropBatch(model, model.tower), torch.from_numpy(picture(1).crops)

    def embedded(*cuts):
        found = []
        for begin, end in pairwise((0, *cuts, 7)):
            part = Shown(None if begin else pixels, TILING, begin, end, later=end < 7)
            found += batch.of([part], batch.encode, list)
        return found[0]

    whole = embedded()
    for cuts in ((1,), (2, 6)):
        assert torch.allclose(embedded(*cuts), whole, rtol=1e-4, atol=1e-5)
