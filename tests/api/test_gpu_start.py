"""A GPU's start that ends early gives everything back."""

from __future__ import annotations

import pytest

import gapless.device.cuda
from gapless.api import opening
from gapless.config import EngineConfig
from gapless.device.graphs import Stage
from gapless.errors import NotEnoughMemory


class Loaded:
    model = None


class Device:
    closed = False

    def __init__(self, *settings) -> None:
        opened.append(self)

    def prepare(self):
        yield Stage("a forward", 0, 2)
        raise NotEnoughMemory("the graphs do not fit", param="pages")

    def close(self) -> None:
        self.closed = True


class Impatient:
    def show(self, doing: str, done: int, total: int) -> None:
        raise KeyboardInterrupt


opened: list[Device] = []


@pytest.mark.parametrize(("progress", "error"), [(None, NotEnoughMemory), (Impatient(), KeyboardInterrupt)])
def test_a_start_that_is_cut_short_closes_the_device(monkeypatch, progress, error):
    opened.clear()
    monkeypatch.setattr(gapless.device.cuda, "CudaDevice", Device)
    with pytest.raises(error):
        opening._open_gpu(Loaded(), None, EngineConfig(), True, progress)
    assert [device.closed for device in opened] == [True]
