"""Contexts of 32768: the CUDA device's own code on a runtime without a GPU, where answers cross from one width of page
tables into the next. The truth is the CPU device, which has no widths, and the naive implementation.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from tests.fakes.inline_runtime import InlineRuntime
from tests.fakes.micro import micro_config, micro_tensors
from tests.fakes.refereed import Refereed
from tests.fakes.scene import Entry, Stage
from tests.fakes.sim_clock import SimClock
from tests.models.naive_moondream import Naive, Row, gap

from gapless.config import CudaDeviceConfig, EngineConfig, HostDeviceConfig
from gapless.constrain.masks import TableMasks
from gapless.constrain.table import build_table
from gapless.device.cuda import CudaDevice
from gapless.device.host import HostDevice
from gapless.engine.build import Engine
from gapless.engine.mailbox import ThreadMailbox
from gapless.errors import PromptTooLong
from gapless.kernels.graphed import Graphed
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates
from gapless.records import Picture, Prompt, Request, Sampling

CONTEXT = 32768
NEAR = 1e-4
RAW = micro_config(CONTEXT, third=True)
CONFIG = EngineConfig(max_rows=3, page_size=16, pages=1000, lookahead=16)


def long_model(kernels=None, **text):
    """`text`: other dimensions."""
    raw = {**RAW, "text": RAW["text"] | text}
    tensors = micro_tensors(raw)
    tensors["text.lm_head.bias"][0] = -20.0  # answers go on to their limit
    return Moondream(read_config(raw), tensors, kernels)


def shown():
    crops = np.random.default_rng(1).integers(0, 256, (2, 56, 56, 3), dtype=np.uint8)
    return Picture("9" * 64, crops, (1, 1), 56, 56)


def request(number, ids, tokens, front=None):
    body = np.random.default_rng(number).integers(21, 128, ids).tolist()
    body = body if front else [0, *body]
    return Request(number, Prompt(tuple(body), ((),) * len(body), front), "text", Sampling(max_tokens=tokens))


def answers(device, table, depth, asked):
    config = EngineConfig(**{f: getattr(CONFIG, f) for f in CONFIG.__slots__} | {"depth": depth})
    clock, mailbox = SimClock(), ThreadMailbox()
    refereed = Refereed(device(config), table)
    try:
        stage = Stage(Engine(refereed, table, config, TableMasks(), mailbox, clock), mailbox, clock)
        heard = stage.play([Entry(one) for one in asked])
    finally:
        refereed.close()
    for one in heard.values():
        assert one.finish is not None and one.finish.error is None
    return {number: [t.id for t in one.tokens] for number, one in heard.items()}


def both(asked, narrow, monkeypatch):
    """What the CPU device says, what the CUDA device says at each depth, and the widths it used."""
    monkeypatch.setattr("gapless.device.graphs.NARROW", narrow)
    model, graphed = long_model(), long_model(Graphed())
    table = build_table(Templates.of(model.config).rules())
    widths: Counter[int] = Counter()

    def on_cuda(config):
        device = CudaDevice(graphed, table, config, CudaDeviceConfig(graphs=False, poison=True), InlineRuntime())
        forward, prompt = device.graphs.forward, device.program.prompt
        device.graphs.forward = lambda bucket, width, *rest: (widths.update([width]), forward(bucket, width, *rest))
        device.program.prompt = lambda *args: (widths.update([args[-1]]), prompt(*args))
        return device

    def on_cpu(config):
        return HostDevice(model, table, config, HostDeviceConfig(threads=1))

    right = answers(on_cpu, table, 1, asked)
    assert all(answers(on_cuda, table, depth, asked) == right for depth in (1, 2))
    assert answers(on_cpu, table, 2, asked) == right
    return right, widths


def naive_answer(one, said):
    """How many tokens are no near tie to the naive implementation, which looks once over the whole sequence. Those are
    its own."""
    weights = micro_tensors(RAW)
    weights["text.lm_head.bias"][0] = -20.0
    raw = {"revision": "moondream3", **RAW, "region": RAW["region"] | {"heads": "linear", "sizes": "log"}}
    raw["text"] = RAW["text"] | {"tau": "erf"}
    naive = Naive(raw, {name: t.numpy() for name, t in weights.items()})
    rows = []
    if one.prompt.picture is not None:
        block = naive.picture(one.prompt.picture.crops, one.prompt.picture.tiling)
        rows = [Row(x, 0) for x in (naive.w["text.wte"][0], *block)]
    rows += [naive.word(i) for i in (*one.prompt.ids, *said[:-1])]
    scores = [naive.logits(h) for h in naive.hidden(rows)[-len(said) :]]
    sure = [at for at, found in enumerate(scores) if gap(found) > NEAR]
    assert [int(scores[at].argmax()) for at in sure] == [said[at] for at in sure]
    return len(sure)


def test_answers_cross_widths_and_are_the_naive_ones(monkeypatch):
    """Widths from 16 positions on, in tables for 32768: prompts and answers of up to 90 positions."""
    asked = [request(1, 14, 36), request(2, 35, 34, shown()), request(3, 5, 40)]
    right, widths = both(asked, 16, monkeypatch)
    assert set(widths) == {2, 4, 8}
    assert [len(said) for said in right.values()] == [36, 34, 40]
    assert naive_answer(asked[0], right[1]) > 30 and naive_answer(asked[1], right[2]) > 28


@pytest.mark.slow
def test_a_long_prompt_crosses_the_usual_widths(monkeypatch):
    """Widths from 1024 on: a prompt that ends before 1024 and goes over it, and one before 2048; cut for its width."""
    asked = [request(1, 1000, 60), request(2, 2020, 50, shown())]
    right, widths = both(asked, 1024, monkeypatch)
    assert set(widths) == {64, 128, 256}
    assert [len(said) for said in right.values()] == [60, 50]
    assert naive_answer(asked[0], right[1]) > 50


@pytest.mark.slow
def test_the_last_position_of_the_context_is_of_use():
    """A prompt of almost all 32768 positions, fed 64 ids at a time over the widest table; one token more is refused."""
    model = long_model(Graphed(), n_heads=1, n_kv_heads=1, n_layers=1)
    table = build_table(Templates.of(model.config).rules())
    config = EngineConfig(depth=2, max_rows=1, page_size=16, lookahead=16)
    device = CudaDevice(model, table, config, CudaDeviceConfig(graphs=False), InlineRuntime())
    fed = []
    forward = model.forward
    model.forward = lambda x, *rest: (fed.append(len(x)), forward(x, *rest))[1]
    clock, mailbox = SimClock(), ThreadMailbox()
    try:
        stage = Stage(Engine(device, table, config, TableMasks(), mailbox, clock), mailbox, clock)
        heard = stage.play([Entry(request(1, CONTEXT - 9, 8)), Entry(request(2, CONTEXT - 9, 9))])
    finally:
        device.close()
    assert max(fed) == 64 and len(heard[1].tokens) == 8 and heard[1].finish.error is None
    assert isinstance(heard[2].finish.error, PromptTooLong)


@pytest.mark.parametrize("kernels", [None, Graphed()])
def test_positions_reach_as_far_as_the_context(kernels):
    """The tables of angles and of tau levels hold position 32767, with its own values."""
    model = long_model(kernels)
    text = model.text
    assert text.cos.shape[0] == text.sin.shape[0] == CONTEXT
    frequency = 1.5e6 ** (-2 * np.arange(4) / 8)
    angle = (CONTEXT - 1) * frequency
    assert np.allclose(text.cos[-1, :4].numpy(), np.cos(angle), atol=4e-3)  # float32 angles, as in the reference
    for layer, block in enumerate(text.blocks):
        alpha = micro_tensors(RAW)[f"text.blocks.{layer}.attn.tau.alpha"].double()
        right = 0.5 + torch.sigmoid(alpha * np.log(CONTEXT))
        assert block.tau.levels.shape == (CONTEXT, 4)
        assert torch.allclose(block.tau.levels[-1].double(), right, atol=1e-6)
