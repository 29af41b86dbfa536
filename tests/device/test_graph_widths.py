"""How many forwards are captured: at each width of page tables, or once where no width is any faster."""

from __future__ import annotations

import pytest
from tests.device.rig import SPEC, TABLE
from tests.fakes.hash_model import HashModel
from tests.fakes.inline_runtime import InlineRuntime

from gapless.config import CudaDeviceConfig, EngineConfig
from gapless.device.cuda import CudaDevice
from gapless.device.tail import Feeds


class Wide(HashModel):
    """Some of its steps do not mind how wide a page table is."""

    narrow_rows = 1
    max_context = 4096

    def any_width(self, rows, cache, adapters=None):
        assert cache is not None
        return rows > self.narrow_rows and adapters is None


@pytest.mark.parametrize("adapters", [0, 2])
def test_a_step_that_does_not_mind_is_captured_once(adapters):
    model = Wide(SPEC)
    config = EngineConfig(max_rows=4, page_size=16, pages=600, adapters=adapters)
    device = CudaDevice(model, TABLE, config, CudaDeviceConfig(), InlineRuntime())
    graphs = device.graphs
    widths = graphs._widths
    try:
        assert len(widths) > 2
        captured = {}
        for stage in device.prepare():
            captured[stage.name] = captured.get(stage.name, 0) + 1
        assert captured["spatial forward of 1 rows"] == len(widths) and captured["spatial forward of 4 rows"] == 1
        if adapters:
            assert captured["spatial adapted forward of 4 rows"] == len(widths)
        asked = []
        device.program.forward = lambda *args: asked.append(args)
        for key in list(graphs._captured):
            graphs._captured[key] = lambda key=key: asked.append(key[1:])
        for width in widths:
            graphs.forward(4, width, Feeds(spatial=False))
            graphs.forward(1, width, Feeds(spatial=False))
        assert [width for bucket, width, _ in asked if bucket == 4] == [widths[-1]] * len(widths)
        assert [width for bucket, width, _ in asked if bucket == 1] == list(widths)
    finally:
        device.close()
