"""A measurement in sections: each is timed and guarded, and none begins after the time is over.

In: named pieces of work. Out: how long each took, and notes on what failed or was left out; the rest goes on. Whoever
wants to see how far things are is told before each.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from gapless.api.load import Progress


class Sections:
    """See the module. `limit`: seconds after which no section begins; `total`: how many there will be, for
    `progress`. `seconds`: of each section, by name."""

    def __init__(
        self, limit: float, total: int, progress: Progress | None = None, now: Callable[[], float] = perf_counter
    ) -> None:
        self.notes: list[str] = []
        self.seconds: dict[str, float] = {}
        self._limit = limit
        self._total = total
        self._progress = progress
        self._now = now
        self._began = now()
        self._done = 0

    @property
    def left(self) -> float:
        """Seconds in which a section may still begin."""
        return self._limit - (self._now() - self._began)

    def run(self, name: str, work: Callable[..., None], *arguments: object) -> None:
        """Do `work`, unless the time is over. Its failure is a note."""
        if self._progress is not None:
            self._progress.show(name, self._done, self._total)
        self._done += 1
        began = self._now()
        if began - self._began >= self._limit:
            self.leave_out(name)
            return
        try:
            work(*arguments)
        except Exception as error:
            self.notes.append(f"{name}: {type(error).__name__}: {error} (at {_origin(error)})")
        self.seconds[name] = round(self._now() - began, 2)

    def leave_out(self, name: str) -> None:
        """Note that there is no time for a section."""
        self.notes.append(f"{name}: left out, the time was over")


@contextmanager
def still() -> Iterator[None]:
    """What lives now is not looked through by the garbage collector: its pauses would be measured. Afterwards it is
    again, or a rig that was closed would keep its memory."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _origin(error: Exception) -> str:
    """The innermost places an error passed, file and line, outermost first."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
