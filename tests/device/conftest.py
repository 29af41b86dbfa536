"""Devices for the tests of this room."""

import pytest
from tests.device.gated import PLAIN, Gated
from tests.device.rig import host_device


@pytest.fixture
def gated():
    model = Gated()
    device = host_device(model, PLAIN)
    yield model, device
    model.gate.set()
    device.close()
