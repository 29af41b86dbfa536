"""What is captured into CUDA graphs asks the device for nothing: seen on shapes alone, every operation."""

from __future__ import annotations

import pytest
import torch
from tests.fakes.capture_watch import DEVICE, CaptureWatch
from tests.fakes.micro import micro_config, micro_tensors

from gapless.constrain.table import build_table
from gapless.device.packet import Layout
from gapless.device.program import Program
from gapless.device.tail import KINDS, MASKED, RULED, Feeds
from gapless.kernels.graphed import Graphed
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates
from gapless.records import DeviceLimits


def program_of(third: bool = False, adapters: int = 0) -> Program:
    raw = micro_config(third=third)
    config = read_config(raw)
    tensors = {name: t.to(DEVICE) for name, t in micro_tensors(raw).items()}
    model = Moondream(config, tensors, Graphed())
    limits = DeviceLimits(9, 40, 16, model.max_context, model.prefix, 2, model.vocab, adapters, 8)
    with torch.inference_mode():
        return Program(model, build_table(Templates.of(config).rules()), limits, Layout(8, 40, 12))


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of()


@pytest.mark.parametrize("count", [1, 8])
def test_a_forward_asks_for_nothing(program, count):
    with torch.inference_mode(), CaptureWatch() as watch:
        for spatial in (True, False):
            program.forward(count, 12, Feeds(spatial=spatial))
            program.forward(count, 5, Feeds(spatial=spatial))
    assert watch.operations > 50


@pytest.mark.parametrize("third", [False, True])
def test_a_forward_with_adapters_asks_for_nothing_and_does_more(third):
    program, operations = program_of(third, adapters=3), []
    for adapted in (False, True):
        with torch.inference_mode(), CaptureWatch() as watch:
            program.forward(8, 12, Feeds(adapted))
        operations.append(watch.operations)
    assert operations[1] > operations[0] + 10


@pytest.mark.parametrize("third", [False, True])
def test_the_prompt_that_is_measured_goes_through_an_adapter_if_there_are_slots(third):
    operations = []
    for adapters in (0, 3):
        program = program_of(third, adapters)
        with torch.inference_mode(), CaptureWatch() as watch:
            program.widest_prompt()
        operations.append(watch.operations)
    assert operations[1] > operations[0] + 10


@pytest.mark.parametrize("kind", [*KINDS, *RULED, MASKED], ids=lambda kind: kind.name)
def test_a_tail_asks_for_nothing(program, kind):
    with torch.inference_mode(), CaptureWatch() as watch:
        program.tail(program.batch.lines, kind)
        program.tail(program.batch.lines[:1], kind)
    assert watch.operations > 50


@pytest.mark.parametrize("masked", [False, True])
def test_adjusting_and_counting_ask_for_nothing(program, masked):
    with torch.inference_mode(), CaptureWatch() as watch:
        program.adjust(5, masked)
        program.count(5)
    assert watch.operations > 30


def test_grants_parked_rows_and_starts_ask_for_nothing(program):
    with torch.inference_mode(), CaptureWatch() as watch:
        program.extend()
        program.begin()
        program.park(3, 5)
        program.fetch(5)
        program.parked_tail(adjusted=True)
    assert watch.operations > 50
