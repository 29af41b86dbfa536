"""Whose fault an exception is: the requests on a failed step, or the engine as a whole (I11)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gapless.engine.book import Book
from gapless.errors import DeviceLost, GaplessError, InvalidRequest, InvariantBroken, RequestFailed
from gapless.records import Clock, RowRef, Step, StepKind


class Blame:
    """Turns an exception of one step into the failure of the requests on it."""

    def __init__(self, book: Book, clock: Clock) -> None:
        self._book = book
        self._clock = clock

    @contextmanager
    def on(self, rows: Iterable[RowRef], *, closing: bool = False) -> Iterator[None]:
        """An exception in here ends the requests on `rows` and no others, unless the engine itself is lost.

        `closing`: these rows have ended already and must only leave; if even that fails the device is lost.
        """
        try:
            yield
        except (DeviceLost, InvariantBroken):
            raise
        except Exception as error:
            if closing:
                raise DeviceLost(f"rows that had ended could not be closed: {error}") from error
            self._book.fail(rows, _failure(error), self._clock.now())

    def step(self, step: Step, error: Exception) -> None:
        """An exception ends the requests the whole step computes for; after a prefill of several, only the one that
        fails again by itself. One that ends the engine goes on as it came."""
        if isinstance(error, DeviceLost | InvariantBroken):
            raise error
        fail = self._book.fail_prefill if step.kind is StepKind.PREFILL else self._book.fail
        fail(step.rows, _failure(error), self._clock.now())


def _failure(error: Exception) -> GaplessError:
    if isinstance(error, InvalidRequest | RequestFailed):  # says itself what was wrong with the request
        return error
    failure = RequestFailed(f"a device step with this request failed: {error}")
    failure.__cause__ = error
    return failure
