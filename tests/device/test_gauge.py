"""What parts of prompts take is measured at the start, when somebody asks for it; the device is as new afterwards."""

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_tower import PackingTowerModel
from tests.fakes.inline_stage import inline_stage
from tests.fakes.micro import micro_model
from tests.fakes.scene import expected, mix_of_requests
from tests.fakes.verdict import judge_all

from gapless.config import EngineConfig, HostDeviceConfig
from gapless.constrain.table import build_table
from gapless.device.gauge import _table
from gapless.device.host import HostDevice
from gapless.device.pictures import CROP_BUCKETS
from gapless.models.moondream.templates import Templates

SPEC = HashSpec()


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [True, False])
def test_a_device_answers_as_ever_when_it_was_measured(graphs, monkeypatch):
    monkeypatch.setattr("gapless.device.packs.MOST_TOKENS", 64)
    monkeypatch.setattr("gapless.device.packing.STEPS", ((8, 4), (64, 8)))
    entries = mix_of_requests(2, 8, host=0.2, spread=4)
    with inline_stage(PackingTowerModel(SPEC), 2, graphs=graphs, max_step_ms=5.0) as (stage, device):
        costs, packs = device.costs, device.device.program.packs
        assert [most for most, _ in costs.crops] == list(CROP_BUCKETS)
        if graphs:
            assert [most for most, _ in costs.tokens] == list(packs.buckets)
        assert not costs.whole and costs.step > 0 and costs.picture > 0
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        device.audit()


def test_the_cpu_measures_only_when_there_is_a_limit_and_takes_pictures_whole():
    model = micro_model()
    table = build_table(Templates.of(model.config).rules())
    for limit in (None, 8.0):
        config = EngineConfig(max_rows=2, pages=40, max_step_ms=limit)
        device = HostDevice(model, table, config, HostDeviceConfig(threads=1))
        try:
            assert (device.costs is None) == (limit is None)
        finally:
            device.close()
    assert device.costs.whole and device.costs.tokens[-1][0] == model.max_context


def test_less_never_takes_longer_than_more():
    assert _table((2, 4, 5), (3.0, 1.0, 2.0)) == ((2, 1.0), (4, 1.0), (5, 2.0))
