"""A runtime without a GPU: streams that are done at once, ordinary memory for "pinned", graphs that call their work.

What flows in: the CUDA device's calls. What flows out: the same results as on a GPU, computed on the CPU at once, and
what a test wants to know of the order of calls. Copies to the host are held back until their event is waited for, so a
result read too early is seen as poison. `fails` makes a mark raise, as a GPU's error surfaces late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor


@dataclass(eq=False)
class InlineEvent:
    runtime: InlineRuntime
    at: float = 0
    late: list[Callable[[], None]] = field(default_factory=list)
    waited: int = 0

    def synchronize(self) -> None:
        self.waited += 1
        if self.runtime.fails is not None:
            raise self.runtime.fails
        work, self.late = self.late, []
        with torch.inference_mode():
            for copy in work:
                copy()


@dataclass(eq=False)
class InlineRuntime:
    """`memory_of` (free, total) is what the GPU says it has; `captured` counts captures, `copies` copies home;
    `calls` names the last calls of a life in their order."""

    memory_of: tuple[int, int] = (2**40, 2**40)
    peak: int = 0
    sick: bool = False
    fails: BaseException | None = None
    captured: int = 0
    copies: int = 0
    uploads: int = 0
    calls: list[str] = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    name: str = "an imaginary GPU"
    clock: Iterator[float] = field(default_factory=lambda: count(1))
    """What marks are stamped with, in microseconds: a count, unless a test gives it the time."""

    @contextmanager
    def setting_up(self) -> Iterator[None]:
        yield

    def bind(self) -> None:
        pass

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def event(self, timed: bool = False) -> InlineEvent:
        return InlineEvent(self)

    def mark(self, event: InlineEvent) -> None:
        event.at = next(self.clock)

    def copy_out(
        self,
        source: Tensor,
        target: Tensor,
        after: InlineEvent,
        landed: InlineEvent,
        began: InlineEvent | None = None,
    ) -> None:
        assert after.at, "a copy waits for a mark that the compute stream is never given"
        self.copies += 1
        self._time(began, landed)
        taken = source.clone()
        landed.late.append(lambda: target.copy_(taken))

    def upload(self, source: Tensor, target: Tensor, arrived: InlineEvent, began: InlineEvent | None = None) -> None:
        self.uploads += 1
        self._time(began, arrived)
        target.copy_(source)

    def _time(self, began: InlineEvent | None, ended: InlineEvent) -> None:
        if began is not None:
            self.mark(began)
            self.mark(ended)

    def seconds(self, earlier: InlineEvent, later: InlineEvent) -> float:
        if not (earlier.at and later.at):
            raise ValueError("Both events must be recorded before calculating elapsed time.")  # as torch does
        return (later.at - earlier.at) / 1e6

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1
        return torch.inference_mode()(work)

    def settle(self) -> None:
        self.calls.append("settle")

    def healthy(self) -> bool:
        return not self.sick

    def memory(self) -> tuple[int, int]:
        return self.memory_of

    def peak_of(self, work: Callable[[], None]) -> int:
        work()
        return self.peak

    def give_back(self) -> None:
        self.calls.append("give back")
