"""Any device with a referee in front of it: the same judgement of every call that the simulated device gets.

What flows in and out is the device protocol. Invariant: the device never sees a call the referee did not accept.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.fakes.referee import Referee

from gapless.constrain.table import Table
from gapless.costs import Costs
from gapless.device.base import Device
from gapless.errors import DeviceLost, InvariantBroken
from gapless.records import Arrival, DeviceLimits, Mask, RowRef, Step


class Refereed:
    """See the module. `steps` keeps every launched step, in order."""

    def __init__(self, device: Device, table: Table) -> None:
        self.device = device
        self.referee = Referee(device.limits, table)
        self.steps: list[Step] = []
        self.told: Costs | None = None

    @property
    def costs(self) -> Costs | None:
        """See `Device`; a test may say otherwise."""
        return self.told or self.device.costs

    @property
    def limits(self) -> DeviceLimits:
        """See `Device`."""
        return self.device.limits

    def launch(self, step: Step) -> None:
        """See `Device`."""
        self.referee.launch(step)
        self.steps.append(step)
        try:
            self.device.launch(step)
        except Exception:
            self.referee.launch_failed(step)
            raise

    def finalize(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> None:
        """See `Device`."""
        self.referee.finalize(step, masks)
        try:
            self.device.finalize(step, masks)
        except Exception:
            self.referee.finalize_failed(step, masks)
            raise

    def park(self, step: Step, lanes: Mapping[RowRef, int]) -> None:
        """See `Device`."""
        self.referee.park(step, lanes)
        self.device.park(step, lanes)

    def wait(self, step: Step, rows: tuple[RowRef, ...]) -> Arrival:
        """See `Device`."""
        self.referee.before_wait(step, rows)
        try:
            arrival = self.device.wait(step, rows)
        except (DeviceLost, InvariantBroken):
            self.referee.lost()
            raise
        except Exception:
            self.referee.wait_failed(step)
            raise
        self.referee.after_wait(step, rows, arrival)
        return arrival

    def watch(self, steps: int) -> None:
        """See `Device`."""
        self.device.watch(steps)

    def release(self, ref: RowRef) -> None:
        """See `Device`."""
        self.referee.release(ref)
        self.device.release(ref)

    def close(self) -> None:
        """See `Device`."""
        self.device.close()

    def audit(self) -> None:
        """When idle: nothing is left behind."""
        self.referee.audit()
