"""A model that waits where it is told to, and the workers behind it."""

from __future__ import annotations

import threading

from tests.device.rig import SPEC
from tests.fakes.hash_model import HashModel

from gapless.config import HostDeviceConfig

PLAIN = HostDeviceConfig(threads=1)


def workers() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name in ("gapless-compute", "gapless-copy")}


class Gated(HashModel):
    """Waits in every forward until told to go on; fails when told to."""

    def __init__(self) -> None:
        super().__init__(SPEC)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.failure: BaseException | None = None
        self.threads: set[str] = set()

    def forward(self, x, positions, tables, cache):
        self.threads.add(threading.current_thread().name)
        self.entered.set()
        assert self.gate.wait(30)
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        return super().forward(x, positions, tables, cache)
