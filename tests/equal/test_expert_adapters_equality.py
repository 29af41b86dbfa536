"""A Moondream 3 with adapters in real arithmetic: the same bits at every depth, in any slot, preempted or alone.

Three adapters and none share two slots; the CPU device rehearses, and the GPU's own code runs without a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.fakes.inline_runtime import InlineRuntime
from tests.fakes.micro import micro_config, micro_tensors
from tests.fakes.refereed import Refereed
from tests.fakes.scene import Entry, Stage
from tests.fakes.sim_clock import SimClock
from tests.gpu.mixes import mix

from gapless.config import CudaDeviceConfig, EngineConfig, HostDeviceConfig
from gapless.constrain.masks import TableMasks
from gapless.constrain.table import build_table
from gapless.device.cuda import CudaDevice
from gapless.device.host import HostDevice
from gapless.engine.build import Engine
from gapless.engine.mailbox import ThreadMailbox
from gapless.kernels.graphed import Graphed
from gapless.models.moondream.adapters import Layout, branches
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates
from gapless.records import Adapter, Token

RAW = micro_config(third=True)
CONFIG = read_config(RAW)
RANK, AMPLE, TINY = 4, 120, 10
Told = dict[int, list[Token]]


def adapter(number: int, scale: float = 1.0) -> Adapter:
    """Random matrices of every branch; `scale` 0: an adapter of zeros."""
    g, layout = torch.Generator().manual_seed(number), Layout.of(CONFIG.text, RANK)
    flat = torch.zeros(layout.width)
    for name, branch in branches(CONFIG.text).items():
        for side, width in (("A", branch.into), ("B", RANK)):
            view = layout.view(flat, f"{name}.{side}")
            view.copy_(torch.randn(view.shape, generator=g) / width**0.5)
    return Adapter(f"a{number}", number, flat * scale)


ADAPTERS = [None, *(adapter(number) for number in (1, 2, 3))]


def entries(zero: bool = False) -> list[Entry]:
    """Eight requests of every program; each third with none. `zero`: all with none, or with one of zeros."""
    chosen = [None, adapter(9, 0.0)] if zero else ADAPTERS
    sampling = {"max_tokens": 28, "max_objects": 4}
    return [
        replace(
            e,
            request=replace(
                e.request,
                adapter=chosen[e.request.id % len(chosen)],
                sampling=replace(e.request.sampling, **sampling),
            ),
            cancelled=None,
        )
        for e in mix(CONFIG, 3, 8, spread=4)
    ]


def told(device: str, depth: int, played: list[Entry], pages: int = AMPLE) -> tuple[Told, Refereed]:
    """What each request was told, and the device that did."""
    kernels = None if device == "host" else Graphed(16)
    model = Moondream(CONFIG, micro_tensors(RAW, end_bias=-1.0), kernels)
    table, clock, mailbox = build_table(Templates.of(CONFIG).rules()), SimClock(), ThreadMailbox()
    config = EngineConfig(
        depth=depth, max_rows=5, page_size=16, pages=pages, lookahead=4, adapters=2, adapter_rank=RANK
    )
    if device == "host":
        inner = HostDevice(model, table, config, HostDeviceConfig(threads=1, poison=True))
    else:
        cuda = CudaDeviceConfig(buckets=(8,), arena_bytes=2**20, poison=True)
        inner = CudaDevice(model, table, config, cuda, InlineRuntime())
        list(inner.prepare())
    refereed = Refereed(inner, table)
    try:
        stage = Stage(Engine(refereed, table, config, TableMasks(), mailbox, clock), mailbox, clock)
        heard = stage.play(played)
    finally:
        refereed.close()
    assert all(one.finish is not None and one.finish.error is None for one in heard.values())
    return {number: one.tokens for number, one in heard.items()}, refereed


@cache
def alone(device: str) -> Told:
    """Each request by itself, at depth 1."""
    found: Told = {}
    for entry in entries():
        found |= told(device, 1, [replace(entry, arrives=0)])[0]
    return found


@cache
def without(device: str) -> Told:
    """All of them with no adapter, in a batch."""
    return told(device, 2, [replace(e, request=replace(e.request, adapter=None)) for e in entries()])[0]


def test_two_steps_in_flight_and_few_pages_say_what_one_and_many_say() -> None:
    found, refereed = told("host", 2, entries(), TINY)
    assert found == told("host", 1, entries())[0]
    tally = refereed.referee.tally
    assert tally.adapters >= 3 and tally.resumed > 0 and tally.zombies > 0


@pytest.mark.slow
@pytest.mark.parametrize("pages", [AMPLE, TINY])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("device", ["host", "cuda"])
def test_every_depth_says_what_each_hears_alone(device: str, depth: int, pages: int) -> None:
    found, refereed = told(device, depth, entries(), pages)
    assert found == alone(device)
    tally = refereed.referee.tally
    assert tally.adapters >= 3 and tally.most_rows > 2
    assert (tally.resumed > 0) is (pages == TINY)
    differ = {number for number, tokens in without(device).items() if tokens != found[number]}
    assert differ and not differ & {e.request.id for e in entries() if e.request.adapter is None}


@pytest.mark.slow
@pytest.mark.parametrize("device", ["host", "cuda"])
def test_an_adapter_of_zeros_is_none_to_the_last_bit(device: str) -> None:
    zeros, refereed = told(device, 2, entries(zero=True))
    assert refereed.referee.tally.adapters == 1
    assert zeros == without(device)


def test_a_new_version_under_the_same_name_is_what_later_requests_hear() -> None:
    """The first version runs on, the second is brought beside it, the picture's block is computed anew."""
    old, new = adapter(1), replace(adapter(2), name="a1", version=7)
    shown = next(e for e in entries() if e.request.prompt.picture is not None and e.request.program == "text").request
    long = replace(shown.sampling, max_tokens=20, temperature=0.0)

    def asked(number: int, own: Adapter, arrives: int = 0) -> Entry:
        return Entry(replace(shown, id=number, adapter=own, sampling=long), arrives)

    found, refereed = told("host", 2, [asked(1, old), asked(2, new, arrives=4), asked(3, new, arrives=6)])
    assert refereed.referee.tally.adapters == 2 and refereed.referee.tally.shared_blocks == 1
    first, second = (told("host", 1, [asked(9, own)])[0][9] for own in (old, new))
    assert first != second
    assert found == {1: first, 2: second, 3: second}
