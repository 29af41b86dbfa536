"""Many pictures at a time, answers in their order.

In: items and the work to do for each. Out: `Outcome`s in the order of the items, each as soon as it and all before it
are there. Nothing here prints, or knows what the work is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from gapless.bench.asks import Result
from gapless.errors import GaplessError

T = TypeVar("T")
AT_ONCE = 16
"""Pictures that are asked about at the same time; the engine batches them."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What became of one of many: its result, or the error that ended it."""

    of: T
    result: Result | None = None
    error: GaplessError | None = None


def each_in_order(items: Sequence[T], work: Callable[[T], Result]) -> Iterator[Outcome[T]]:
    """Do `work` for all items, `AT_ONCE` at a time, and yield the outcomes in the items' order.

    A `GaplessError` ends its own item only. When the caller stops early, what has not begun is dropped.
    """
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="gapless-cli")
    waiting: deque[tuple[T, Future[Result]]] = deque()
    try:
        for item in items:
            waiting.append((item, pool.submit(work, item)))
            if len(waiting) > 2 * AT_ONCE:
                yield _outcome(*waiting.popleft())
        while waiting:
            yield _outcome(*waiting.popleft())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _outcome(item: T, future: Future[Result]) -> Outcome[T]:
    try:
        return Outcome(item, future.result())
    except GaplessError as error:
        return Outcome(item, error=error)
