"""Mask builders that take their time: on the simulated clock, or on a real thread.

Both read the mask from the walker's table at once, hand it over only after a seeded delay, and keep count. They prove
that host-masked rows wait for their masks and nobody else does.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from tests.fakes.sim_clock import SimClock

from gapless.constrain.table import Walker
from gapless.records import Mask, RowRef


def narrowed(walker: Walker, deny: tuple[int, ...]) -> Mask:
    """The walker's mask without the ids of `deny`, unless nothing would be left."""
    mask = walker.mask().copy()
    mask[list(deny)] = False
    return mask if mask.any() else walker.mask().copy()


class SimMasks:
    """`MaskSource` on a simulated clock. Delays are uniform in `delays` (seconds), drawn in the order of asking.

    `deny`: ids that are forbidden beyond what the table forbids.
    """

    def __init__(self, clock: SimClock, delays: tuple[float, float], seed: int = 0, deny: tuple[int, ...] = ()) -> None:
        self._clock = clock
        self._delays = delays
        self._deny = deny
        self._random = random.Random(seed)
        self._ready: dict[RowRef, tuple[float, Mask]] = {}
        self.requested = 0

    def request(self, ref: RowRef, walker: Walker) -> None:
        """See `MaskSource`."""
        assert ref not in self._ready, f"two masks are wanted for {ref}"
        self.requested += 1
        self._ready[ref] = (self._clock.now() + self._random.uniform(*self._delays), narrowed(walker, self._deny))

    def take(self, ref: RowRef) -> Mask | None:
        """See `MaskSource`."""
        if ref in self._ready and self._ready[ref][0] <= self._clock.now():
            return self._ready.pop(ref)[1]
        return None

    def forget(self, ref: RowRef) -> None:
        """See `MaskSource`."""
        self._ready.pop(ref, None)

    def next_ready(self) -> float | None:
        """When the next mask will be ready that is not yet; None if none is being built."""
        return min((at for at, _ in self._ready.values() if at > self._clock.now()), default=None)


class ThreadMasks:
    """`MaskSource` with one builder thread; `notify` is called for every finished mask. Close it when done."""

    def __init__(
        self, notify: Callable[[], None], delays: tuple[float, float], seed: int = 0, deny: tuple[int, ...] = ()
    ) -> None:
        self._notify = notify
        self._delays = delays
        self._deny = deny
        self._random = random.Random(seed)
        self._lock = threading.Condition()
        self._asked: list[tuple[float, int, RowRef, Mask]] = []
        self._ready: dict[RowRef, Mask] = {}
        self._order = 0
        self._open = True
        self._thread = threading.Thread(target=self._build, name="masks", daemon=True)
        self._thread.start()

    def request(self, ref: RowRef, walker: Walker) -> None:
        """See `MaskSource`."""
        with self._lock:
            self._order += 1
            due = time.monotonic() + self._random.uniform(*self._delays)
            self._asked.append((due, self._order, ref, narrowed(walker, self._deny)))
            self._lock.notify_all()

    def take(self, ref: RowRef) -> Mask | None:
        """See `MaskSource`."""
        with self._lock:
            return self._ready.pop(ref, None)

    def forget(self, ref: RowRef) -> None:
        """See `MaskSource`."""
        with self._lock:
            self._ready.pop(ref, None)
            self._asked = [item for item in self._asked if item[2] != ref]

    def close(self) -> None:
        """Stop the builder."""
        with self._lock:
            self._open = False
            self._lock.notify_all()
        self._thread.join()

    def _build(self) -> None:
        while True:
            with self._lock:
                if not self._open:
                    return
                now = time.monotonic()
                done = [item for item in self._asked if item[0] <= now]
                self._asked = [item for item in self._asked if item[0] > now]
                self._ready.update({ref: mask for _, _, ref, mask in done})
                if not done:
                    self._lock.wait(min((item[0] - now for item in self._asked), default=None))
            if done:
                self._notify()
