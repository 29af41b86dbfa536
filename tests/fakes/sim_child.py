"""An engine process on the simulated device: the real loop, socket and arena, integer answers, no torch.

The model's name in `Opening` says what it does: "plain", "slow" (5 ms a step), "breaks" (the loop raises at the third
step), "exits" (the process ends at the third step), "mute" (it never reads again), "refuses" (it cannot be loaded).
"""

from __future__ import annotations

import os
import sys
import time

from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import limits_of, table_of
from tests.fakes.sim_clock import SimClock
from tests.fakes.sim_device import SimDevice

from gapless.api import child, wire
from gapless.config import EngineConfig
from gapless.errors import DeviceLost, NotEnoughMemory
from gapless.records import Arrival, RowRef, Step

SPEC = HashSpec(max_context=2048, end_permille=0)
"""It talks long, so that tests find it talking."""
ROWS = 5


class Device(SimDevice):
    """See the module."""

    def __init__(self, manner: str) -> None:
        super().__init__(
            limits_of(SPEC, 2, rows=ROWS, pages=2000, grammars=2, numbers=1000), table_of(SPEC), SPEC, SimClock()
        )
        self.referee.narrower = True  # guides forbid more than programs do
        self._manner = manner
        self._waits = 0

    def wait(self, step: Step, rows: tuple[RowRef, ...]) -> Arrival:
        self._waits += 1
        if self._manner == "slow":
            time.sleep(0.005)
        elif self._manner == "breaks" and self._waits == 3:
            raise DeviceLost("the simulated device is worn out") from KeyError("why")
        elif self._manner == "exits" and self._waits == 3:
            os._exit(7)
        elif self._manner == "mute" and self._waits == 3:
            time.sleep(1000)
        return super().wait(step, rows)


def main() -> None:
    line, arena = child.begin(sys.argv[1:])
    line.wait(None)
    message = wire.decode_downward(line.receive() or b"")
    assert isinstance(message, wire.Open)
    if message.opening.model == "refuses":
        line.send(wire.Progressed("trying", 1, 2))
        line.send(wire.Refused(wire.ErrorNote.of(NotEnoughMemory("0 of 9 pages fit", param="pages"))))
        line.close()
        sys.exit(1)
    device = Device(message.opening.model)
    loop = child.EngineLoop(line, arena, device, table_of(SPEC), EngineConfig(lookahead=8))
    child.ready(line, loop, ROWS - 1, SPEC.prefix, SPEC.max_context)
    closed = child.serve(line, loop, device)
    line.close()
    sys.exit(0 if closed else 1)
