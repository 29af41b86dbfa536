"""The protocol every device speaks: host (threads on the CPU), cuda (streams), and the tests' simulated clock.

A device owns rows, slots, landing buffers and the KV cache. The loop hands it steps and waits for arrivals. The only
call that may block on the device is `wait` (I8). All calls come from the loop's thread. Calls for one step come in the
order launch -> finalize* / park* -> wait; forwards run in launch order on one compute stream (I1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gapless.costs import Costs
from gapless.records import Arrival, DeviceLimits, Mask, RowRef, Step


class Device(Protocol):
    """Launches steps and hands their results back."""

    @property
    def limits(self) -> DeviceLimits:
        """Sizes the ledgers are built from."""
        ...

    @property
    def costs(self) -> Costs | None:
        """What parts of prefill steps take, in seconds, measured when the device was made; None if nobody asked."""
        ...

    def launch(self, step: Step) -> None:
        """Enqueue the step's forward, and right behind it the sampling of every row not in `step.unsampled` or `fed`.

        Returns at once. Page grants, row starts and tail copies of the step are applied before the forward, in stream
        order. Results of sampled rows are copied to the slot's landing buffer behind an event.
        """
        ...

    def finalize(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> None:
        """Sample rows that waited, with their masks (bool [vocab], True = allowed); their records are copied out too.

        For a PREFILL or DECODE step the logits are those of its slot, which must not have been overwritten by a later
        forward: the loop parks first. A PARKED step samples from its lane and lands in the lane's own buffer. A mask
        of None closes a row that leaves (finalized or preempted): no token, flags MUTED only (I7).
        """
        ...

    def park(self, step: Step, lanes: Mapping[RowRef, int]) -> None:
        """Set aside the logits and hidden state of unsampled rows of `step` into parking lanes (one lane per row).

        A lane is held until its PARKED step was waited for, so a row may hold `depth` of them: lanes are numbered
        0..rows * depth - 1.
        """
        ...

    def wait(self, step: Step, rows: tuple[RowRef, ...]) -> Arrival:
        """Block until the records of `rows` have landed and return copies of them, in that order.

        `rows` are the step's rows that were sampled or closed and not parked; every step is waited for, also if all
        its rows were parked and `rows` is empty: its forward may have failed. Raises `InvariantBroken` if one of them
        has not been sampled, `StepFailed` if the step failed on the device, `DeviceLost` if nothing can be saved.
        """
        ...

    def watch(self, steps: int) -> None:
        """The arrivals of about so many more steps are to say in `spans` where forward ended and sampling began; others
        need not. The one call that any thread may make: it sets a number."""
        ...

    def release(self, ref: RowRef) -> None:
        """The row's life is over (no step in flight holds it); the device may forget it. Never blocks."""
        ...

    def close(self) -> None:
        """Stop workers and free memory. Idempotent."""
        ...
