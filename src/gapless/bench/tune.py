"""The search of `gapless tune`: the best choice of tiles for each batch size, one part of a step after the other.

In: what a menu offers, and a `Trial` that knows which choices are right and what a step takes with each. Out: `Found`
by batch size. A choice that is not right, or cannot be compiled, never wins; one that is faster by less than `NOISE`
does not either. Candidates take turns, so what else the machine does meanwhile falls on all alike; those that came
close are timed again, longer, beside what stood before. Nothing here knows a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, Protocol, TypeVar

C = TypeVar("C")
K_contra = TypeVar("K_contra", contravariant=True)
NOISE = 0.004
"""By what part of a step a choice must be faster to win."""
CLOSE = 6
"""Candidates that are timed again."""
QUICK, CAREFUL = 5, 25
"""Turns."""


class Trial(Protocol[K_contra]):
    """What can be found out about choices for a batch size. Times are microseconds of a step."""

    def prepare(self, rows: int, choices: Sequence[K_contra]) -> None:
        """Compile them, as many at once as the machine can."""
        ...

    def right(self, rows: int, choice: K_contra) -> bool:
        """Whether a step computes what the reference does, every time, the same bits each time."""
        ...

    def times(self, rows: int, choices: Sequence[K_contra], turns: int) -> list[float | None]:
        """What a step takes with each, in turns; None for one that fails."""
        ...


@dataclass(frozen=True, slots=True)
class Found(Generic[C]):
    """For a batch size: what won, microseconds of a step with what there was `before` and `after`; how many were tried,
    and how many of the fast ones were `wrong`. `whole`: no part was left out for want of time."""

    choice: C
    before: float
    after: float
    tried: int
    wrong: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Steps(Generic[C]):
    """What a search goes through: `menu(part, choice, rows)` for each part, from the choice of each batch size on."""

    parts: Sequence[str]
    start: Mapping[int, C]
    menu: Callable[[str, C, int], list[C]]

    @property
    def sections(self) -> int:
        """How many there are."""
        return len(self.parts) * len(self.start)


Tell = Callable[[str, int, int], None]
"""What begins, how many sections are over, and of how many."""


class Search(Generic[C]):
    """One run. `seconds`: no part begins after that long."""

    def __init__(self, trial: Trial[C], steps: Steps[C], seconds: float, tell: Tell) -> None:
        self._trial, self._steps, self._tell = trial, steps, tell
        self._ends, self._done = perf_counter() + seconds, 0
        self.found: dict[int, Found[C]] = {}

    def run(self) -> None:
        """Fill `found` with the batch sizes that time is left for. Raises `ValueError` if what there is already is not
        right, and what a trial raises; what was found before that stays."""
        for rows, start in self._steps.start.items():
            if perf_counter() >= self._ends:
                break
            self.found[rows] = self._best(rows, start)

    def _best(self, rows: int, start: C) -> Found[C]:
        trial, best, tried, wrong, whole = self._trial, start, 0, 0, True
        trial.prepare(rows, [start])
        if not trial.right(rows, start):
            raise ValueError(f"the tiles that there are compute steps of {rows} rows wrongly on this GPU")
        for part in self._steps.parts:
            self._tell(f"{part}, {rows} rows", self._done, self._steps.sections)
            self._done += 1
            if perf_counter() >= self._ends:
                whole = False
                continue
            offered = self._steps.menu(part, best, rows)
            best, refused = self._better(rows, best, offered)
            tried, wrong = tried + len(offered), wrong + refused
        before, after = self._compared(rows, start, best)
        if after >= before:
            best, after = start, before
        return Found(best, before, after, tried, wrong, whole)

    def _better(self, rows: int, now: C, offered: list[C]) -> tuple[C, int]:
        """The fastest of those offered that is right, or `now`; and how many faster ones are wrong."""
        self._trial.prepare(rows, offered)
        timed = zip(offered, self._trial.times(rows, offered, QUICK), strict=True)
        quick = sorted(((took, i, choice) for i, (choice, took) in enumerate(timed) if took is not None))
        close = [now, *(choice for _, _, choice in quick[:CLOSE])]
        times = self._trial.times(rows, close, CAREFUL)
        limit = (times[0] or float("inf")) * (1 - NOISE)
        order = sorted((took, i) for i, took in enumerate(times) if took is not None and i and took < limit)
        wrong = 0
        for _, i in order:
            if self._trial.right(rows, close[i]):
                return close[i], wrong
            wrong += 1
        return now, wrong

    def _compared(self, rows: int, start: C, best: C) -> tuple[float, float]:
        """What a step takes with each, beside one another."""
        before, after = self._trial.times(rows, [start, best], CAREFUL)
        if before is None or after is None:
            raise ValueError(f"steps of {rows} rows ran at first, and fail now")
        return before, after
