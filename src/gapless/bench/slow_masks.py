"""Masks from the host that take a known time, as a grammar engine's do: for benchmarks of rows that wait for them.

In: places to build a mask for. Out: the same masks as `constrain.masks.TableMasks`, after `seconds` of a thread that
sleeps, which holds the interpreter as little as native code does.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable

from gapless.constrain.table import Walker
from gapless.records import Mask, RowRef


class SlowMasks:
    """A `MaskSource`. `seconds` 0: at once. `wake` is called when a mask is ready."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.wake: Callable[[], None] | None = None
        self._ready: dict[RowRef, Mask] = {}
        self._due: list[tuple[float, int, RowRef, Mask]] = []
        self._count = 0
        self._news = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def request(self, ref: RowRef, walker: Walker) -> None:
        """See `MaskSource`."""
        if not self.seconds:
            self._ready[ref] = walker.mask()
            return
        with self._news:
            self._count += 1
            heapq.heappush(self._due, (time.perf_counter() + self.seconds, self._count, ref, walker.mask()))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="gapless-slow-masks", daemon=True)
                self._thread.start()
            self._news.notify()

    def take(self, ref: RowRef) -> Mask | None:
        """See `MaskSource`."""
        return self._ready.pop(ref, None)

    def forget(self, ref: RowRef) -> None:
        """See `MaskSource`."""
        with self._news:
            self._due = [entry for entry in self._due if entry[2] != ref]
            heapq.heapify(self._due)
        self._ready.pop(ref, None)

    def close(self) -> None:
        """End the thread."""
        with self._news:
            self._closed = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._news:
                while not self._closed and (not self._due or self._due[0][0] > time.perf_counter()):
                    self._news.wait(self._due[0][0] - time.perf_counter() if self._due else None)
                if self._closed:
                    return
                _, _, ref, mask = heapq.heappop(self._due)
                self._ready[ref] = mask
            if self.wake is not None:
                self.wake()
