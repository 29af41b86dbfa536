"""A device that computes nothing: every step is done when it is launched. What is left is the host's part.

In: steps. Out: arrivals with one ordinary token per row, so rows never end by themselves. It counts its calls: with
any number of rows a decode step is one launch and one wait.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from gapless.costs import Costs
from gapless.device.record import WIDTH, Field, Reader
from gapless.errors import InvariantBroken
from gapless.records import POISON, Arrival, DeviceLimits, Mask, RowRef, Step

WORD = 100
"""An id without a meaning of its own."""


class NullDevice:
    """See the module."""

    costs: Costs | None = None
    """See `Device`."""

    def __init__(self, limits: DeviceLimits) -> None:
        self._limits = limits
        self._time = 0.0
        self._reader = Reader()
        self._lines = np.full((limits.rows, WIDTH), float(POISON))
        self._lines[:, Field.FLAGS], self._lines[:, Field.TOKEN], self._lines[:, Field.LOGPROB] = 0, WORD, 0

    @property
    def limits(self) -> DeviceLimits:
        """Sizes the ledgers are built from."""
        return self._limits

    def launch(self, step: Step) -> None:
        """Nothing to do. Raises `InvariantBroken` for host masks, which are not measured here."""
        if step.unsampled:
            raise InvariantBroken(f"step {step.id} has rows with host masks; the null device samples all at once")

    def finalize(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> None:
        """No row waits for a mask."""

    def park(self, step: Step, lanes: Mapping[RowRef, int]) -> None:
        """No row waits for a mask."""

    def wait(self, step: Step, rows: tuple[RowRef, ...]) -> Arrival:
        """One token for each row, read from lines like a real device's; the device's clock counts steps."""
        landed = time.perf_counter()
        self._time += 1.0
        lines = self._lines[: len(rows)]
        lines[:, Field.STEP], lines[:, Field.ROW], lines[:, Field.EPOCH] = step.id, step.rows.numbers, step.rows.epochs
        records = self._reader.read(lines, step.id, step.rows)
        return Arrival(step.id, records, self._time - 1.0, self._time, landed=landed)

    def watch(self, steps: int) -> None:
        """See `Device`."""

    def release(self, ref: RowRef) -> None:
        """Rows hold nothing here."""

    def close(self) -> None:
        """Nothing to free."""
